// SPDX-License-Identifier: Apache-2.0
//! Tells the neighbours of an interface which MAC address its addresses have now: an ARP announcement (RFC 5227,
//! section 3) or an unsolicited neighbour advertisement (RFC 4861, section 7.2.6). A container that starts again may
//! get the address of the one before, whose MAC address they still know.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use netvm_wire::neighbour::{Holder, MAX_ANSWER, Request};
use netvm_wire::{FrameBuilder, MacAddr};

use crate::ifreq::check;

/// Announces addresses by an interface of the calling thread's namespace, which is up.
///
/// # Errors
/// The kernel's error.
pub(super) fn announce(index: u32, mac: MacAddr, addresses: impl Iterator<Item = IpAddr>) -> io::Result<()> {
    let addresses: Vec<IpAddr> = addresses.collect();
    if addresses.is_empty() {
        return Ok(());
    }
    // No protocol: nothing is received.
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: a new descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: a structure of integers: zeros are valid.
    let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    to.sll_family = libc::AF_PACKET as libc::c_ushort;
    to.sll_ifindex = index as libc::c_int;
    let sent = send_all(&fd, &to, addresses.into_iter().filter_map(|address| announcement(mac, address)));
    // The kernel waits for an RCU grace period when it closes such a socket, some 15 ms. Many interfaces wait together.
    let closing = std::thread::Builder::new().name("netvm-netns".to_owned());
    let _ = closing.spawn(move || drop(fd));
    sent
}

/// Sends frames by an interface.
fn send_all(fd: &OwnedFd, to: &libc::sockaddr_ll, frames: impl Iterator<Item = Vec<u8>>) -> io::Result<()> {
    for frame in frames {
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        let (bytes, to) = (frame.as_ptr().cast(), std::ptr::from_ref(to).cast());
        // SAFETY: frame and address live until the call returns, and have these lengths.
        let sent =
            unsafe { libc::sendto(fd.as_raw_fd(), bytes, frame.len(), libc::MSG_DONTWAIT, to, length) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// What tells all hosts of the link who has an address.
fn announcement(mac: MacAddr, address: IpAddr) -> Option<Vec<u8>> {
    match address {
        IpAddr::V4(address) => {
            FrameBuilder::new(mac, MacAddr::BROADCAST).arp_request(address, address).to_vec().ok()
        }
        IpAddr::V6(_) => {
            // The answer to somebody who has no address goes to all.
            let asked = Request { target: address.into(), source: None, source_mac: mac };
            let mut frame = vec![0; MAX_ANSWER];
            let length = asked.answer(Holder { mac, is_router: false, vlan: None }, &mut frame)?;
            frame.truncate(length);
            Some(frame)
        }
    }
}

#[cfg(test)]
mod tests {
    use netvm_wire::neighbour::Message;

    use super::*;

    #[test]
    fn an_announcement_claims_the_address() {
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        for address in ["10.0.0.1", "2001:db8::1"] {
            let address: IpAddr = address.parse().unwrap();
            let frame = announcement(mac, address).unwrap();
            assert_eq!(Message::read(&frame), Some(Message::Claim(address.into(), mac)));
            assert!(frame[0] & 1 == 1, "for all hosts");
        }
    }
}
