// SPDX-License-Identifier: Apache-2.0
//! Requests on interfaces by name: netdevice(7).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const TUNGETIFF: libc::Ioctl = 0x8004_54d2;

/// A request on an interface.
pub(crate) struct Request(libc::ifreq);

impl Request {
    /// A request on the interface `name`.
    ///
    /// # Errors
    /// `EINVAL` if the name is empty, has a NUL or more than 15 bytes.
    pub(crate) fn new(name: &str) -> io::Result<Self> {
        // SAFETY: a structure of integers, arrays and a union of these: zeros are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if !(1..request.ifr_name.len()).contains(&name.len()) || name.contains('\0') {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        Ok(Self(request))
    }

    pub(crate) fn with_flags(mut self, flags: i32) -> Self {
        self.0.ifr_ifru.ifru_flags = flags as libc::c_short;
        self
    }

    pub(crate) fn with_mtu(mut self, mtu: u16) -> Self {
        self.0.ifr_ifru.ifru_mtu = mtu.into();
        self
    }

    /// With a structure, which must be there until the request is carried out.
    pub(crate) const fn with_data(mut self, data: *mut libc::c_char) -> Self {
        self.0.ifr_ifru.ifru_data = data;
        self
    }

    /// Carries it out; returns what the kernel made of it.
    pub(crate) fn send(mut self, fd: BorrowedFd<'_>, code: libc::Ioctl) -> io::Result<Self> {
        // SAFETY: all codes that this crate passes take an ifreq, which lives until the call returns, and so does the
        // structure that one points to, which is as long as its own words say.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), code, &raw mut self.0) })?;
        Ok(self)
    }

    /// The flags of the answer.
    pub(crate) fn flags(&self) -> i32 {
        // SAFETY: every member of the union is made of integers, and the answer or `zeroed` wrote all of it.
        i32::from(unsafe { self.0.ifr_ifru.ifru_flags })
    }

    /// The interface's name.
    pub(crate) fn name(&self) -> String {
        let bytes = self.0.ifr_name.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0);
        String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
    }

    /// The number of the answer: that of the interface.
    pub(crate) fn index(&self) -> i32 {
        // SAFETY: as in `flags`.
        unsafe { self.0.ifr_ifru.ifru_ifindex }
    }
}

/// Name and flags of the TAP device of a queue, as long as it is there.
pub(crate) fn device_of(queue: BorrowedFd<'_>) -> io::Result<Request> {
    Request::new("any")?.send(queue, TUNGETIFF)
}

/// A socket for requests.
pub(crate) fn control_socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The error of a call that returned less than 0.
pub(crate) fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
