// SPDX-License-Identifier: Apache-2.0
//! Sticky balancing of flows over replicas. In: a flow's hash. Out: the least occupied replica at the flow's first
//! packet, and the same replica from then on.
//!
//! Flows share hash buckets, and each bucket has one replica. The guarantee: while a flow's packets come and its
//! replica exists, all of them go to that replica. With more flows than buckets, an even spread is not guaranteed.

use std::sync::atomic::{AtomicU32, Ordering};

/// Ticks by which the clocks of two threads may differ.
const MAX_CLOCK_DIFFERENCE: u16 = 16;

/// The replica of each bucket, and the time of its last packet. Threads that share a table choose the same replica for
/// a flow.
#[derive(Debug)]
pub struct Sticky {
    /// Number of the replica, plus 1, in the lower half; the tick of the last packet in the upper one.
    buckets: Box<[AtomicU32]>,
    /// Ticks without a packet after which a bucket gets a new replica.
    idle: u16,
}

impl Sticky {
    /// A table of 2^`order` buckets. A bucket gets a new replica after more than `idle` ticks without a packet. `idle`
    /// must be longer than packets stay with a replica, so that no packet overtakes another.
    #[must_use]
    pub fn new(order: u32, idle: u16) -> Self {
        Self { buckets: (0..1usize << order).map(|_| AtomicU32::new(0)).collect(), idle }
    }

    /// How many buckets one of these replicas has that had a packet in the last `idle` ticks.
    #[must_use]
    pub fn live(&self, now: u16, is_one: impl Fn(u16) -> bool) -> usize {
        let is_live = |held: u32| {
            let idle = now.wrapping_sub((held >> 16) as u16);
            let is_ahead = idle > u16::MAX - MAX_CLOCK_DIFFERENCE;
            (held as u16)
                .checked_sub(1)
                .is_some_and(|replica| (is_ahead || idle <= self.idle) && is_one(replica))
        };
        self.buckets.iter().filter(|bucket| is_live(bucket.load(Ordering::Relaxed))).count()
    }

    /// The replica of a flow, by its hash: its current one if that `is_available`, otherwise the one that `best`
    /// returns. Numbers of replicas are below `u16::MAX`; ticks wrap around. Writes a bucket at most once a tick, and
    /// when its replica changes.
    #[inline]
    pub fn choose(
        &self,
        hash: u64,
        now: u16,
        is_available: impl Fn(u16) -> bool,
        best: impl Fn() -> u16,
    ) -> u16 {
        let bucket = &self.buckets[hash as usize & (self.buckets.len() - 1)];
        // Relaxed: the word orders no other memory.
        let mut held = bucket.load(Ordering::Relaxed);
        loop {
            let last = (held >> 16) as u16;
            let idle = now.wrapping_sub(last);
            // Another thread's clock may be ahead.
            let is_ahead = idle > u16::MAX - MAX_CLOCK_DIFFERENCE;
            let replica = (held as u16).checked_sub(1);
            let kept = replica.filter(|replica| (is_ahead || idle <= self.idle) && is_available(*replica));
            let chosen = kept.unwrap_or_else(&best);
            let at = if is_ahead { last } else { now };
            let next = u32::from(at) << 16 | u32::from(chosen.wrapping_add(1));
            if next == held {
                return chosen;
            }
            match bucket.compare_exchange_weak(held, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return chosen,
                Err(found) => held = found,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_stays_while_its_replica_exists_and_its_packets_come() {
        let sticky = Sticky::new(4, 10);
        let choose =
            |hash, now, there: &[u16], best| sticky.choose(hash, now, |own| there.contains(&own), || best);
        assert_eq!(choose(5, 0, &[1, 2], 1), 1);
        assert_eq!(choose(5, 10, &[1, 2], 2), 1, "idle for no longer");
        assert_eq!(choose(6, 10, &[1, 2], 2), 2, "another flow");
        assert_eq!(choose(5 + 16, 20, &[1, 2], 2), 1, "the same bucket");
        assert_eq!(choose(5, 31, &[1, 2], 2), 2, "idle for longer");
        assert_eq!(choose(5, 31, &[1, 0], 0), 0, "its replica is gone");
        assert_eq!(choose(5, 31, &[1, 0], 1), 0, "a replica can have the number 0");
        assert_eq!(choose(5, 30u16.wrapping_sub(u16::MAX), &[1, 0], 1), 0, "ticks wrap around");
        assert_eq!(choose(5, 29, &[1, 0], 1), 0, "of a thread whose clock is behind");
    }

    #[test]
    fn buckets_with_recent_packets_are_live() {
        let sticky = Sticky::new(4, 10);
        let live = |now, replica| sticky.live(now, |own| own == replica);
        assert_eq!(live(0, 0), 0);
        for (hash, now, replica) in [(1, 0, 0), (2, 5, 0), (3, 5, 7)] {
            sticky.choose(hash, now, |_| true, || replica);
        }
        assert_eq!([live(10, 0), live(11, 0), live(15, 0), live(16, 0)], [2, 1, 1, 0]);
        assert_eq!([live(4, 7), live(15, 7), live(16, 7)], [1, 1, 0], "also by a clock that is behind");
    }

    #[test]
    fn threads_choose_the_same_replica_for_a_flow() {
        let sticky = Sticky::new(8, 10);
        let choices =
            |own: u16| (0..256).map(|hash| sticky.choose(hash, 0, |_| true, || own)).collect::<Vec<_>>();
        let barrier = std::sync::Barrier::new(4);
        let all: Vec<_> = std::thread::scope(|scope| {
            let one = |own| {
                barrier.wait();
                choices(own)
            };
            let threads: Vec<_> = (0..4).map(|own| scope.spawn(move || one(own))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(all.iter().all(|choices| *choices == all[0]));
    }
}
