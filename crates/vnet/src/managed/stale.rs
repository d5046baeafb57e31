// SPDX-License-Identifier: Apache-2.0
//! Interfaces of an earlier netvmd that are about to end, and whose names are needed.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use netlink_packet_route::link::LinkAttribute;
use netvm_netlink::{Requests, by_name, inside};

/// How long such an interface may take to end, in steps.
const STALE_STEPS: u32 = 100;
const STALE_STEP: Duration = Duration::from_millis(10);

/// What an interface is to be called in a network namespace, and its MAC address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) name: &'a str,
    pub(super) mac: [u8; 6],
    pub(super) namespace: BorrowedFd<'a>,
}

impl Wanted<'_> {
    /// Gives an interface this name by `act`, again as long as one with the same name and MAC address has it.
    pub(super) fn give<T>(self, mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        for _ in 0..STALE_STEPS {
            match act() {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && self.is_stale() => {}
                outcome => return outcome,
            }
            std::thread::sleep(STALE_STEP);
        }
        act()
    }

    fn is_stale(self) -> bool {
        let find = || by_name(&mut Requests::open()?, self.name);
        let found = inside(self.namespace, find).flatten();
        let has_mac = LinkAttribute::Address(self.mac.to_vec());
        // What has gone meanwhile was stale, too.
        found.is_ok_and(|link| link.is_none_or(|link| link.attributes.contains(&has_mac)))
    }
}
