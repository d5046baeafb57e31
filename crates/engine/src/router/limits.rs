// SPDX-License-Identifier: Apache-2.0
//! Limits of how many neighbours a router's kernel has to resolve.

use std::sync::atomic::{AtomicU64, Ordering};

use netvm_switch::{Policer, PolicerError};

use super::DestinationLimit;

/// Units that the bucket of all unresolved neighbours holds, and gets in a second.
const UNITS: u64 = 1 << 32;

/// Limits how many neighbours the kernel has to resolve that it never knew, of all routers together: all namespaces
/// share the kernel's neighbour table, and while the entries without an answer fill it, no neighbour can be learned. An
/// entry stays for 3 s (`mcast_solicit` requests, one each `retrans_time_ms`).
#[derive(Debug)]
pub(crate) struct UnresolvedLimit {
    bucket: Policer,
    /// Units for one neighbour: fewer, the larger the kernel's table is.
    cost: AtomicU64,
    /// What one source may cause in a second, so that a scan leaves some to others.
    sources: DestinationLimit,
}

impl UnresolvedLimit {
    /// For a kernel's table of this size, as [`UnresolvedLimit::set_table`].
    pub(crate) fn new(table: u32, hz: u64) -> Result<Self, PolicerError> {
        let bucket = Policer::new(UNITS, UNITS, hz)?;
        let limit =
            Self { bucket, cost: AtomicU64::new(UNITS), sources: DestinationLimit::of_sources(hz, 1) };
        limit.set_table(table);
        Ok(limit)
    }

    /// `table`: the most entries of the kernel's table (`gc_thresh3`), of which three eighths may wait for an answer.
    pub(crate) fn set_table(&self, table: u32) {
        let rate = (table / 8).max(8);
        self.cost.store(UNITS / u64::from(rate), Ordering::Relaxed);
        self.sources.set_packets(u8::try_from(rate / 4).unwrap_or(u8::MAX));
    }

    /// Whether the kernel may resolve one more. `source`: a hash of the router and the source.
    pub(crate) fn admit(&self, now: u64, source: u64) -> bool {
        self.sources.admit(now, source) && self.bucket.admit(now, self.cost.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_leaves_room_in_the_kernels_table_and_some_of_it_to_other_sources() {
        const HZ: u64 = 1_000_000;
        let unresolved = UnresolvedLimit::new(1024, HZ).unwrap();
        let destinations = DestinationLimit::of_misses(HZ);
        let ask = |now: u64, source: u64, destination: u64| {
            let destination = destination.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            destinations.admit_if(now, destination, || unresolved.admit(now, source << 32 | source))
        };
        // Two sources scan, and a third one asks for a neighbour now and then.
        let (mut scanned, mut asked, mut answered) = (0, 0, 0);
        for n in 0..300_000u64 {
            let now = HZ + n * 10;
            scanned += u32::from(ask(now, 1 + n % 2, n));
            if n % 10_000 == 0 {
                asked += 1;
                answered += u32::from(ask(now, 7, u64::MAX - n));
            }
        }
        assert!((150..=4 * 64).contains(&scanned), "{scanned} in 3 s");
        assert_eq!(answered, asked);
    }

    #[test]
    fn the_limit_follows_the_size_of_the_kernels_table() {
        const HZ: u64 = 1_000_000;
        let unresolved = UnresolvedLimit::new(1024, HZ).unwrap();
        // Each source asks once.
        let admitted = |second: u64| {
            let times = (second * HZ..(second + 1) * HZ).step_by(100);
            times.filter(|now| unresolved.admit(*now, now << 32 | now)).count()
        };
        let counts = [admitted(10), admitted(11)];
        unresolved.set_table(8192);
        let counts = [counts[0], counts[1], admitted(12)];
        // The bucket is full at first, and what is left of it in the end is enough for a few more.
        for (count, expected) in counts.into_iter().zip([256, 128, 1024]) {
            assert!(count.abs_diff(expected) <= 10, "{counts:?}");
        }
    }
}
