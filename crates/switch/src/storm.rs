// SPDX-License-Identifier: Apache-2.0
//! Storm control: limits, by ingress port, on frames that L2 switching floods. In: a frame to flood, by its class. Out:
//! whether it may be flooded. A loop of links multiplies flooded frames without end; the limits leave the workers time
//! for others.
//!
//! All workers share the counts, so a limit holds for a port with several queues. Cost: a compare-and-swap for each
//! flooded frame, beside the copies that flooding makes.

use netvm_wire::MacAddr;

use crate::fdb::MAX_PORTS;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::window::Window;

/// Why a frame is flooded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StormClass {
    /// To ff:ff:ff:ff:ff:ff.
    Broadcast,
    /// To another group address.
    Multicast,
    /// To an address that is behind no known port.
    UnknownUnicast,
}

impl StormClass {
    /// All classes, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Broadcast, Self::Multicast, Self::UnknownUnicast];

    /// The class of a frame to flood.
    #[inline]
    #[must_use]
    pub fn of(destination: MacAddr) -> Self {
        if destination == MacAddr::BROADCAST {
            Self::Broadcast
        } else if destination.is_multicast() {
            Self::Multicast
        } else {
            Self::UnknownUnicast
        }
    }
}

/// Most flooded frames per second of a port, by class; 0: no limit.
pub type StormLimits = [u32; StormClass::ALL.len()];

/// One port and class.
#[derive(Debug)]
struct Limit {
    per_second: AtomicU32,
    count: Window,
    dropped: AtomicU64,
}

/// Limits and counts of all ports.
#[derive(Debug)]
pub struct StormControl(Box<[[Limit; StormClass::ALL.len()]]>);

impl Default for StormControl {
    /// Without limits.
    fn default() -> Self {
        let limit =
            |_| Limit { per_second: AtomicU32::new(0), count: Window::new(), dropped: AtomicU64::new(0) };
        Self((0..MAX_PORTS).map(|_| StormClass::ALL.map(limit)).collect())
    }
}

impl StormControl {
    /// Sets the limits of a port.
    pub fn set(&self, port: u16, limits: StormLimits) {
        let Some(port) = self.0.get(usize::from(port)) else { return };
        for (limit, per_second) in port.iter().zip(limits) {
            limit.per_second.store(per_second, Ordering::Relaxed);
        }
    }

    /// Whether a frame of ingress port `port` may be flooded at tick `now`; counts it in either case.
    #[inline]
    pub fn admit(&self, port: u16, class: StormClass, now: u32) -> bool {
        let Some(port) = self.0.get(usize::from(port)) else { return true };
        let limit = &port[class as usize];
        let per_second = limit.per_second.load(Ordering::Relaxed);
        if per_second == 0 || limit.count.admit(now, per_second) {
            return true;
        }
        limit.dropped.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Frames of a port that were dropped, by class, since the start.
    #[must_use]
    pub fn dropped(&self, port: u16) -> [u64; StormClass::ALL.len()] {
        let port = self.0.get(usize::from(port));
        StormClass::ALL
            .map(|class| port.map_or(0, |port| port[class as usize].dropped.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::TICKS_PER_SECOND;

    #[test]
    fn each_class_of_each_port_has_its_limit() {
        let storm = StormControl::default();
        storm.set(1, [5, 7, 0]);
        let admitted = |port, class, now| (0..20).filter(|_| storm.admit(port, class, now)).count();
        let second = |now| StormClass::ALL.map(|class| admitted(1, class, now));
        assert_eq!(second(0), [5, 7, 20]);
        assert_eq!(second(TICKS_PER_SECOND - 1), [0, 0, 20]);
        assert_eq!(second(TICKS_PER_SECOND), [5, 7, 20]);
        assert_eq!(storm.dropped(1), [50, 46, 0]);
        assert_eq!((admitted(2, StormClass::Broadcast, 0), storm.dropped(2)), (20, [0; 3]), "another port");
        storm.set(1, [0; 3]);
        assert_eq!(second(TICKS_PER_SECOND), [20; 3]);
        assert!(storm.admit(u16::MAX, StormClass::Broadcast, 0), "a port that does not exist");
    }

    #[test]
    fn a_limit_holds_for_all_workers_together() {
        let storm = StormControl::default();
        storm.set(3, [1000; 3]);
        let admitted = std::thread::scope(|scope| {
            let worker = || (0..10_000).filter(|_| storm.admit(3, StormClass::UnknownUnicast, 1)).count();
            let workers = [(); 4].map(|()| scope.spawn(worker));
            workers.map(|worker| worker.join().unwrap()).iter().sum::<usize>()
        });
        assert_eq!((admitted, storm.dropped(3)), (1000, [0, 0, 39_000]));
    }

    #[test]
    fn frames_are_classified_by_destination() {
        let class = |address| StormClass::of(MacAddr(address));
        assert_eq!(class([0xff; 6]), StormClass::Broadcast);
        assert_eq!(class([0x33, 0x33, 0, 0, 0, 1]), StormClass::Multicast);
        assert_eq!(class([2, 0, 0, 0, 0, 1]), StormClass::UnknownUnicast);
    }
}
