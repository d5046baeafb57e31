// SPDX-License-Identifier: Apache-2.0
//! Limits on punted packets by destination. In: the hash of a router and an address. Out: whether one more packet
//! conforms.
//!
//! All workers share a limit, because flows to one destination may be on any of them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Packets of a destination in a window of time.
///
/// A hash table with one entry per slot: two destinations with the same slot are limited less, never more.
///
/// Cost: one cache line that workers share; a packet that exceeds the limit only reads it.
#[derive(Debug)]
pub(crate) struct DestinationLimit {
    slots: Box<[AtomicU64]>,
    /// Length of a window in cycles.
    window: u64,
    /// Packets of a destination per window.
    packets: AtomicU64,
}

/// A slot holds, from the highest bit: the destination's tag, the window, and the packets of that window.
const WINDOW_BITS: u32 = 24;
const COUNT_BITS: u32 = 8;
const WINDOWS: u64 = (1 << WINDOW_BITS) - 1;
const COUNTS: u64 = (1 << COUNT_BITS) - 1;

impl DestinationLimit {
    const SLOTS: usize = 1024;

    /// For unresolved neighbours, so that one that never answers does not use up the share of misses: TCP's initial
    /// window and a few more packets, four times a second.
    pub(crate) fn of_misses(hz: u64) -> Self {
        Self::new(hz / 4, 16)
    }

    /// For packets that leave by the interface that received them: one a second, for which the kernel sends an ICMP
    /// redirect. The kernel itself sends redirects more and more seldom if the sender ignores them.
    pub(crate) fn of_redirects(hz: u64) -> Self {
        Self::new(hz, 1)
    }

    /// For sources: the unknown neighbours that each may ask for in a second.
    pub(crate) fn of_sources(hz: u64, most: u8) -> Self {
        Self::new(hz, most)
    }

    fn new(window: u64, packets: u8) -> Self {
        let slots = (0..Self::SLOTS).map(|_| AtomicU64::new(0)).collect();
        Self { slots, window: window.max(1), packets: AtomicU64::new(packets.into()) }
    }

    /// Changes the number of packets of a destination per window.
    pub(crate) fn set_packets(&self, packets: u8) {
        self.packets.store(packets.into(), Ordering::Relaxed);
    }

    /// Whether one more packet conforms. `destination`: a hash of the router and the address.
    pub(crate) fn admit(&self, now: u64, destination: u64) -> bool {
        self.admit_if(now, destination, || true)
    }

    /// The same; the first packet of a window also needs `may_begin`.
    pub(crate) fn admit_if(&self, now: u64, destination: u64, may_begin: impl FnOnce() -> bool) -> bool {
        let mut may_begin = Some(may_begin);
        let (tag, window) = (destination >> 32, (now / self.window) & WINDOWS);
        let slot = &self.slots[destination as usize % Self::SLOTS];
        // Relaxed: the words order no other memory.
        let most = self.packets.load(Ordering::Relaxed);
        let mut word = slot.load(Ordering::Relaxed);
        loop {
            let (its_tag, its_window) = (word >> (WINDOW_BITS + COUNT_BITS), word >> COUNT_BITS & WINDOWS);
            // A worker whose clock is behind counts in the later window.
            let is_later = its_window.wrapping_sub(window) & WINDOWS < WINDOWS / 2;
            let (window, count) =
                if its_tag == tag && is_later { (its_window, word & COUNTS) } else { (window, 0) };
            if count >= most || (count == 0 && may_begin.take().is_some_and(|may| !may())) {
                return false;
            }
            let next = (tag << WINDOW_BITS | window) << COUNT_BITS | (count + 1);
            match slot.compare_exchange_weak(word, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(found) => word = found,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_destination_has_its_own_limit() {
        let limit = DestinationLimit::of_misses(1000);
        let (a, b) = (7 << 32 | 1, 9 << 32 | 2);
        let admitted = |now, destination| (0..100).filter(|_| limit.admit(now, destination)).count();
        assert_eq!((admitted(0, a), admitted(0, b)), (16, 16));
        assert_eq!((admitted(249, a), admitted(250, a)), (0, 16));
        let limit = DestinationLimit::of_redirects(1000);
        let admitted = |now| (0..100).filter(|_| limit.admit(now, a)).count();
        assert_eq!((admitted(0), admitted(999), admitted(1000)), (1, 0, 1));
    }

    #[test]
    fn threads_share_the_limit_of_a_destination() {
        let limit = DestinationLimit::of_misses(1000);
        // Four windows.
        let admitted = || (0..1000).filter(|now| limit.admit(*now, 7 << 32 | 1)).count();
        let sum: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(admitted)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(sum, 4 * 16);
    }
}
