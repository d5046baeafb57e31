// SPDX-License-Identifier: Apache-2.0
//! A TAP device for programs that listen, such as tcpdump: what is written to it reaches their packet sockets, and
//! nothing else of the host.

use std::fs;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;

use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netvm_netlink::{Requests, change_link, discard_received, index_of, set_up};

use crate::OpenError;
use crate::tap::attach;

/// The largest MTU that a TAP device may have: whole TCP segments fit.
const MTU: u32 = 65_521;
/// `struct virtio_net_hdr` of a finished packet.
const NO_OFFLOADS: [u8; 10] = [0; 10];

/// The interface, which ends when it is dropped.
#[derive(Debug)]
pub struct ListeningInterface {
    tap: OwnedFd,
    name: String,
}

impl ListeningInterface {
    /// Makes the interface of this name, which must not be there yet, and brings it up. It has no addresses, does not
    /// speak ARP or IPv6, and the kernel discards what it receives.
    ///
    /// # Errors
    /// [`OpenError`] names the step that failed.
    pub fn open(name: &str) -> Result<Self, OpenError> {
        let fail = |step| OpenError::of(name, step);
        let (tap, name) = attach(name, libc::IFF_TUN_EXCL).map_err(fail("cannot make the TAP device"))?;
        isolate(&name).map_err(fail("cannot keep its packets from the host"))?;
        Ok(Self { tap, name })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Shows a frame, or the first bytes of one, to the programs that listen.
    ///
    /// # Errors
    /// The kernel's error: `EIO` while the interface is down, `EINVAL` for less than an Ethernet header.
    pub fn show(&self, frame: &[u8]) -> io::Result<()> {
        rustix::io::writev(&self.tap, &[IoSlice::new(&NO_OFFLOADS), IoSlice::new(frame)])?;
        Ok(())
    }
}

fn isolate(name: &str) -> io::Result<()> {
    let mut requests = Requests::open()?;
    let index = index_of(&mut requests, name)?.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
    discard_received(&mut requests, index)?;
    match fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1") {
        // A kernel without IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        outcome => outcome?,
    }
    let mut message = LinkMessage::default();
    (message.header.flags, message.header.change_mask) = (LinkFlags::Noarp, LinkFlags::Noarp);
    message.attributes = vec![LinkAttribute::Mtu(MTU)];
    change_link(&mut requests, index, message)?;
    set_up(&mut requests, index, true)
}
