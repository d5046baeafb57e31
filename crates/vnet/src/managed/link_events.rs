// SPDX-License-Identifier: Apache-2.0
//! Changes of interfaces, in this network namespace and in those that it knows: a container's interface that somebody
//! takes down, for example. The socket does not keep those namespaces alive.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::ifreq::check;

/// Bytes of `struct nlmsghdr`, and of `struct ifinfomsg` behind it.
const HEADER: usize = 16;
const INFO: usize = 16;
const RTM_NEWLINK: u16 = 16;
/// Longest datagram.
const DATAGRAM: usize = 64 << 10;
/// Receive buffer: thousands of events.
const RECEIVE_BUFFER: libc::c_int = 4 << 20;

/// A change of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkEvent {
    /// The number of its namespace; `None`: this process's.
    pub namespace: Option<i32>,
    /// Its index there.
    pub index: u32,
    /// Whether it is up now.
    pub is_up: bool,
}

/// The events.
#[derive(Debug)]
pub struct LinkEvents {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl LinkEvents {
    /// Opens a socket. Without CAP_NET_BROADCAST it has the events of this namespace only.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })?;
        // SAFETY: a new descriptor.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // If these fail, there are fewer events; callers look for themselves at intervals.
        let _ = set(&socket, libc::SOL_NETLINK, libc::NETLINK_LISTEN_ALL_NSID, 1);
        let _ = set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER);
        // SAFETY: a structure of integers: zeros are valid.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        address.nl_groups = libc::RTMGRP_LINK as u32;
        let length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: an address and its length.
        check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
        Ok(Self { socket, buffer: vec![0; DATAGRAM] })
    }

    /// Passes on the queued events of at most `most` datagrams; `Ok(false)` if some were lost.
    ///
    /// # Errors
    /// The kernel's error; [`io::ErrorKind::WouldBlock`] once all are read.
    pub fn read(&mut self, most: usize, mut each: impl FnMut(LinkEvent)) -> io::Result<bool> {
        for _ in 0..most {
            match self.receive() {
                Ok((namespace, count)) => {
                    parse(self.buffer.get(..count).unwrap_or_default(), namespace, &mut each);
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Receives a datagram: the number of its namespace, and its length.
    fn receive(&mut self) -> io::Result<(Option<i32>, usize)> {
        let mut control = Control([0; 64]);
        let mut part = libc::iovec { iov_base: self.buffer.as_mut_ptr().cast(), iov_len: self.buffer.len() };
        // SAFETY: a structure of integers and pointers: zeros are valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        (message.msg_control, message.msg_controllen) = (control.0.as_mut_ptr().cast(), control.0.len());
        // SAFETY: the buffers of the message live until the call returns.
        let count = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        // SAFETY: the kernel has filled the message and its control buffer.
        Ok((unsafe { namespace_of(&message) }, count))
    }
}

/// A control buffer, aligned for `cmsghdr`.
#[repr(align(8))]
struct Control([u8; 64]);

/// The number of the namespace from which a message is; `None`: this process's.
///
/// # Safety
/// The kernel has filled the message and its control buffer.
unsafe fn namespace_of(message: &libc::msghdr) -> Option<i32> {
    // SAFETY: the caller's message, which the kernel has filled.
    let first = unsafe { libc::CMSG_FIRSTHDR(message).as_ref() }?;
    if (first.cmsg_level, first.cmsg_type) != (libc::SOL_NETLINK, libc::NETLINK_LISTEN_ALL_NSID) {
        return None;
    }
    // SAFETY: this type of message carries a number; it may be unaligned.
    Some(unsafe { libc::CMSG_DATA(first).cast::<i32>().read_unaligned() })
}

fn parse(mut rest: &[u8], namespace: Option<i32>, each: &mut impl FnMut(LinkEvent)) {
    let word = |bytes: &[u8], at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    while let Some(length) = word(rest, 0) {
        let length = length as usize;
        let Some(message) = rest.get(..length).filter(|message| message.len() >= HEADER) else { return };
        let kind = message.get(4..).and_then(<[u8]>::first_chunk).map(|kind| u16::from_ne_bytes(*kind));
        if kind == Some(RTM_NEWLINK)
            && message.len() >= HEADER + INFO
            && let (Some(index), Some(flags)) = (word(message, HEADER + 4), word(message, HEADER + 8))
        {
            each(LinkEvent { namespace, index, is_up: flags & libc::IFF_UP as u32 != 0 });
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
}

fn set(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: a number and its length.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), length) })?;
    Ok(())
}

impl AsFd for LinkEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for LinkEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_in_a_datagram_that_is_cut_anywhere() {
        let message = |kind: u16, index: u32, flags: u32| {
            let mut bytes = 36u32.to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.resize(HEADER + 4, 0);
            bytes.extend(index.to_ne_bytes());
            bytes.extend(flags.to_ne_bytes());
            bytes.resize(36, 0);
            bytes
        };
        let datagram = [message(RTM_NEWLINK, 7, 0x1043), message(17, 8, 1), message(RTM_NEWLINK, 9, 0x1002)];
        let datagram = datagram.concat();
        let found = |bytes: &[u8]| {
            let mut found = Vec::new();
            parse(bytes, Some(3), &mut |event| found.push(event));
            found
        };
        let event = |index, is_up| LinkEvent { namespace: Some(3), index, is_up };
        assert_eq!(found(&datagram), [event(7, true), event(9, false)]);
        (0..datagram.len()).for_each(|end| assert!(found(&datagram[..end]).len() < 2));
    }
}
