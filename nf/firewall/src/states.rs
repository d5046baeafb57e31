// SPDX-License-Identifier: Apache-2.0
//! States of allowed flows, which allow their return traffic.
//!
//! All threads of the NF share them, as a flow's two directions may reach different threads.

use netlib::clock;
use netvm_nf_common::SharedTable;
use netvm_wire::FiveTuple;

use crate::Subject;

/// The state of an allowed flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// The packet that a rule allowed, in the flow's direction. Its tuple has no ports for ICMP.
    pub(crate) first: Subject,
    /// Generation of the rules that last allowed it.
    pub(crate) generation: u64,
}

/// Result of a state lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The current rules allowed the flow.
    Allowed,
    /// Earlier rules allowed it, by this packet.
    Outdated(Subject),
    /// No state.
    Unknown,
}

/// A bounded table of flow states; both directions share a state. Clones share the table.
#[derive(Clone, Debug)]
pub struct States {
    table: SharedTable<FiveTuple, State>,
    timeout: u64,
}

impl States {
    /// At most about `capacity` flows, which expire after `timeout` seconds of silence.
    #[must_use]
    pub fn new(capacity: usize, timeout: u64) -> Self {
        Self { table: SharedTable::new(capacity), timeout: clock::cycles_in_micros(timeout * 1_000_000) }
    }

    /// Looks up the packet's flow and marks it as used.
    pub(crate) fn find(&self, tuple: FiveTuple, generation: u64, now: u64) -> Lookup {
        let flow = tuple.canonical();
        let mut part = self.table.part_of(&flow);
        match part.peek(&flow) {
            Some((used, _)) if now.saturating_sub(used) > self.timeout => {
                part.remove(&flow);
                Lookup::Unknown
            }
            Some((_, state)) if state.generation != generation => Lookup::Outdated(state.first),
            Some(_) => {
                part.get(&flow, now);
                Lookup::Allowed
            }
            None => Lookup::Unknown,
        }
    }

    /// Records an allowed packet of a flow; true if that evicted another flow.
    pub(crate) fn allow(&self, flow: FiveTuple, first: Subject, generation: u64, now: u64) -> bool {
        let flow = flow.canonical();
        self.table.part_of(&flow).insert(flow, State { first, generation }, now).is_some()
    }

    /// Removes the packet's flow.
    pub(crate) fn forget(&self, tuple: FiveTuple) {
        let flow = tuple.canonical();
        self.table.part_of(&flow).remove(&flow);
    }

    /// Removes expired flows; returns the number that remain.
    pub(crate) fn expire(&self, now: u64) -> usize {
        self.table.expire(now.saturating_sub(self.timeout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm_wire::{Fragment, IpProto};
    use std::net::IpAddr;

    fn subject(port: u16) -> Subject {
        let address = |last: u8| IpAddr::from([10, 0, 0, last]);
        let tuple = FiveTuple::new((address(1), port), (address(2), 80), IpProto::TCP);
        Subject::new(tuple, Fragment::Whole, 3)
    }

    #[test]
    fn both_directions_share_a_state_that_expires_when_silent() {
        let states = States::new(100, 1);
        let second = states.timeout;
        let first = subject(1000);
        assert_eq!(states.find(first.tuple, 0, 0), Lookup::Unknown);
        states.allow(first.tuple, first, 0, 0);
        assert_eq!(states.find(first.tuple.reversed(), 0, second), Lookup::Allowed);
        assert_eq!(states.find(first.tuple, 0, 2 * second), Lookup::Allowed);
        assert_eq!(states.find(first.tuple, 1, 2 * second), Lookup::Outdated(first));
        assert_eq!(states.find(first.tuple, 0, 3 * second + 1), Lookup::Unknown);
        assert_eq!(states.expire(3 * second + 1), 0);
        states.allow(first.tuple, first, 0, 0);
        states.forget(first.tuple.reversed());
        assert_eq!(states.find(first.tuple, 0, 0), Lookup::Unknown);
    }

    #[test]
    fn the_table_is_bounded_and_expires() {
        let states = States::new(160, 1);
        let evicted =
            (0..1000).filter(|port| states.allow(subject(*port).tuple, subject(*port), 0, 5)).count();
        let held = states.expire(5);
        assert!(held <= 160 && held + evicted == 1000, "{held} {evicted}");
        assert_eq!(states.expire(5 + states.timeout), held);
        assert_eq!(states.expire(6 + states.timeout), 0);
    }
}
