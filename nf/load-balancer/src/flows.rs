// SPDX-License-Identifier: Apache-2.0
//! Targets of flows, for `--by sticky`.
//!
//! All threads of the NF share the table, as a flow's packets may reach any thread.

use netlib::clock;
use netvm_nf_common::SharedTable;
use netvm_wire::FiveTuple;

/// A bounded table of flows; both directions are one flow. Clones share the table.
#[derive(Clone, Debug)]
pub struct Flows {
    table: SharedTable<FiveTuple, u8>,
    /// Idle timeout in cycles.
    timeout: u64,
}

/// Result of a flow lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lookup {
    /// The index of its target; `None` if no target is available.
    pub(crate) target: Option<usize>,
    /// Whether it evicted another flow.
    pub(crate) evicted: bool,
    /// Whether its target changed.
    pub(crate) moved: bool,
}

/// A flow, and its hash.
#[derive(Clone, Copy)]
pub(crate) struct Flow<'a> {
    pub(crate) tuple: &'a FiveTuple,
    pub(crate) hash: u64,
}

impl Flows {
    /// At most about `capacity` flows, which expire after `timeout` seconds of silence.
    #[must_use]
    pub fn new(capacity: usize, timeout: u64) -> Self {
        Self { table: SharedTable::new(capacity), timeout: clock::cycles_in_micros(timeout * 1_000_000) }
    }

    /// The recorded target of a flow if `stays` accepts it, else the target of `choose`, which is
    /// recorded.
    pub(crate) fn find(
        &self,
        Flow { tuple, hash }: Flow<'_>,
        now: u64,
        stays: impl Fn(usize) -> bool,
        choose: impl FnOnce() -> Option<usize>,
    ) -> Lookup {
        let flow = tuple.canonical();
        // Not the bits that select targets (lower) or replicas (upper eight).
        let mut part = self.table.part(hash >> 32);
        let mut moved = false;
        if let Some((used, target)) = part.peek(&flow) {
            let (silent, target) = (now.saturating_sub(used) > self.timeout, usize::from(*target));
            if !silent && stays(target) {
                part.get(&flow, now);
                return Lookup { target: Some(target), evicted: false, moved: false };
            }
            moved = !silent;
        }
        let Some(target) = choose() else {
            return Lookup { target: None, evicted: false, moved: false };
        };
        let evicted = part.insert(flow, target as u8, now).is_some();
        Lookup { target: Some(target), evicted, moved }
    }

    /// Removes expired flows; returns the number that remain.
    pub(crate) fn expire(&self, now: u64) -> usize {
        self.table.expire(now.saturating_sub(self.timeout))
    }

    #[cfg(test)]
    pub(crate) fn set_timeout(&mut self, cycles: u64) {
        self.timeout = cycles;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm_wire::IpProto;
    use std::net::IpAddr;

    fn flow(port: u16) -> FiveTuple {
        let address = |last: u8| IpAddr::from([10, 0, 0, last]);
        FiveTuple::new((address(1), port), (address(2), 80), IpProto::TCP)
    }

    const fn found(target: usize) -> Lookup {
        Lookup { target: Some(target), evicted: false, moved: false }
    }

    #[test]
    fn a_flow_stays_in_both_directions_until_it_is_silent() {
        let mut flows = Flows::new(100, 1);
        flows.set_timeout(10);
        let find = |tuple: &FiveTuple, now, choice| {
            flows.find(Flow { tuple, hash: 0 }, now, |_| true, || Some(choice))
        };
        assert_eq!(find(&flow(1), 0, 3), found(3));
        assert_eq!(find(&flow(1).reversed(), 10, 4), found(3));
        assert_eq!(find(&flow(1), 20, 5), found(3), "use extends it");
        assert_eq!(find(&flow(2), 20, 6), found(6));
        assert_eq!(find(&flow(1), 31, 7), found(7), "silent for more than the timeout");
        assert_eq!(flows.expire(30), 2);
        assert_eq!(flows.expire(31), 1);
    }

    #[test]
    fn a_flow_moves_if_its_target_is_unavailable() {
        let flows = Flows::new(100, 1);
        flows.find(Flow { tuple: &flow(1), hash: 0 }, 0, |_| true, || Some(3));
        let moved = Lookup { target: Some(4), evicted: false, moved: true };
        assert_eq!(flows.find(Flow { tuple: &flow(1), hash: 0 }, 1, |target| target != 3, || Some(4)), moved);
        assert_eq!(flows.find(Flow { tuple: &flow(1), hash: 0 }, 1, |_| true, || None), found(4));
        let none = Lookup { target: None, evicted: false, moved: false };
        assert_eq!(flows.find(Flow { tuple: &flow(1), hash: 0 }, 1, |_| false, || None), none);
    }

    #[test]
    fn the_table_is_bounded() {
        let flows = Flows::new(160, 1);
        let add = |port: u16| {
            flows.find(Flow { tuple: &flow(port), hash: u64::from(port) << 32 }, 5, |_| true, || Some(0))
        };
        let evicted = (0..1000).filter(|port| add(*port).evicted).count();
        assert_eq!((flows.expire(5), evicted), (160, 840));
    }
}
