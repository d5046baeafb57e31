//! Limits of how many neighbours a router's kernel has to resolve.

use netvm_switch::{Meter, PolicerError};

use super::DestinationLimit;

/// Limits how many neighbours the kernel has to resolve that it never knew, of all routers together: all namespaces share the
/// kernel's neighbour table, and while the entries without an answer fill it, no neighbour can be learned. An entry stays for 3 s
/// (`mcast_solicit` requests, one each `retrans_time_ms`).
#[derive(Debug)]
pub(crate) struct UnresolvedLimit {
    meter: Meter,
    /// What one source may cause in a second, so that a scan leaves some to others.
    sources: DestinationLimit,
}

impl UnresolvedLimit {
    /// `table`: the most entries of the kernel's table (`gc_thresh3`), of which three eighths may wait for an answer.
    pub(crate) fn new(table: u32, hz: u64) -> Result<Self, PolicerError> {
        let rate = (table / 8).max(8);
        let meter = Meter::new(Some((rate.into(), rate.into())), None, hz)?;
        let sources = DestinationLimit::of_sources(hz, u8::try_from(rate / 4).unwrap_or(u8::MAX));
        Ok(Self { meter, sources })
    }

    /// Whether the kernel may resolve one more. `source`: a hash of the router and the source.
    pub(crate) fn admit(&self, now: u64, source: u64) -> bool {
        self.sources.admit(now, source) && self.meter.admit(now, 1)
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
}
