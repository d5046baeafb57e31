// SPDX-License-Identifier: Apache-2.0
//! What workers pass to the manager: changes that hosts and routers announce, as far as their port's quota allows. A
//! port that floods messages loses only its own.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use netvm_wire::Address;

use super::message::{Change, Query};
use crate::fdb::MAX_PORTS;
use crate::window::Window;

/// Announcements of a port that wait for the manager, which takes them every few milliseconds.
const WAITING: usize = 256;
/// Announcements of a port in a second.
pub const ANNOUNCEMENTS_PER_SECOND: u32 = 2000;

/// What a port has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// A host's membership.
    Group(Address, Change),
    /// A query.
    Query(Query),
    /// A sign of a multicast router of IPv4, or else IPv6.
    Router {
        /// Of IPv4.
        is_v4: bool,
    },
}

/// An announcement and its VLAN.
pub type InVlan = (u16, Announcement);

/// Of one port.
#[derive(Debug)]
struct OfPort {
    waiting: Mutex<Vec<InVlan>>,
    /// Whether there are any; the manager need not look otherwise.
    has_some: AtomicBool,
    second: Window,
    messages: AtomicU64,
    refused: AtomicU64,
}

/// The announcements of all ports. Workers add, the manager takes.
#[derive(Debug)]
pub struct Inbox(Box<[OfPort]>);

impl Default for Inbox {
    fn default() -> Self {
        let empty = |_| OfPort {
            waiting: Mutex::default(),
            has_some: AtomicBool::new(false),
            second: Window::new(),
            messages: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        };
        Self((0..MAX_PORTS).map(empty).collect())
    }
}

impl Inbox {
    /// Has room for announcements of a port. The manager calls it before workers may add any: they do not allocate.
    pub fn open(&self, port: u16) {
        if let Some(Ok(mut waiting)) = self.0.get(usize::from(port)).map(|port| port.waiting.lock()) {
            waiting.reserve_exact(WAITING);
        }
    }

    /// Adds what a message of a port at tick `now` announces. Returns whether all of it was; a worker never waits for a
    /// lock, so none is while the manager takes those of this port: the sender repeats it.
    pub fn add(&self, port: u16, announced: impl Iterator<Item = InVlan>, now: u32) -> bool {
        let Some(port) = self.0.get(usize::from(port)) else { return false };
        port.messages.fetch_add(1, Ordering::Relaxed);
        let mut is_whole = false;
        if let Ok(mut waiting) = port.waiting.try_lock() {
            is_whole = true;
            for one in announced {
                if waiting.len() == waiting.capacity() || !port.second.admit(now, ANNOUNCEMENTS_PER_SECOND) {
                    is_whole = false;
                    break;
                }
                waiting.push(one);
            }
            port.has_some.store(true, Ordering::Release);
        }
        if !is_whole {
            port.refused.fetch_add(1, Ordering::Relaxed);
        }
        is_whole
    }

    /// Moves the announcements of a port to `taken`, which is empty.
    pub fn take(&self, port: u16, taken: &mut Vec<InVlan>) {
        let Some(port) = self.0.get(usize::from(port)) else { return };
        if port.has_some.swap(false, Ordering::Acquire)
            && let Ok(mut waiting) = port.waiting.lock()
        {
            taken.reserve_exact(waiting.capacity());
            std::mem::swap(&mut *waiting, taken);
        }
    }

    /// Messages of IGMP and MLD of a port, and how many of them were refused, since the start.
    #[must_use]
    pub fn counts(&self, port: u16) -> (u64, u64) {
        let count =
            |port: &OfPort| (port.messages.load(Ordering::Relaxed), port.refused.load(Ordering::Relaxed));
        self.0.get(usize::from(port)).map_or((0, 0), count)
    }

    /// Counts a message of a port that its configuration refuses.
    pub fn refuse(&self, port: u16) {
        if let Some(port) = self.0.get(usize::from(port)) {
            port.messages.fetch_add(1, Ordering::Relaxed);
            port.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::TICKS_PER_SECOND;

    const JOIN: InVlan = (7, Announcement::Group(Address::from_v4_bits(0xef01_0203), Change::Join));

    #[test]
    fn a_port_that_floods_loses_only_its_own() {
        let inbox = Inbox::default();
        assert!(!inbox.add(1, [JOIN].into_iter(), 0), "not open");
        (1..3).for_each(|port| inbox.open(port));
        let mut taken = Vec::new();
        let mut rounds = 0;
        while inbox.add(1, [JOIN; 2].into_iter(), 0) {
            rounds += 1;
            if rounds % 50 == 0 {
                taken.clear();
                inbox.take(1, &mut taken);
                assert!(!taken.is_empty());
            }
        }
        assert_eq!(rounds, ANNOUNCEMENTS_PER_SECOND / 2);
        assert!(inbox.add(2, [JOIN].into_iter(), 0), "another port");
        assert!(!inbox.add(1, [JOIN].into_iter(), 0));
        taken.clear();
        inbox.take(1, &mut taken);
        assert!(inbox.add(1, std::iter::repeat_n(JOIN, WAITING), TICKS_PER_SECOND), "the next second");
        assert!(!inbox.add(1, [JOIN].into_iter(), 2 * TICKS_PER_SECOND), "the manager has not taken them");
        taken.clear();
        inbox.take(1, &mut taken);
        assert_eq!((taken.len(), taken[0]), (WAITING, JOIN));
        taken.clear();
        inbox.take(1, &mut taken);
        assert!(taken.is_empty());
        assert_eq!(inbox.counts(2), (1, 0));
        inbox.refuse(2);
        assert_eq!(inbox.counts(2), (2, 1));
    }
}
