//! Flows that were allowed, so that what returns in them is.
//!
//! All threads of the NF share them, as a flow's two directions may come to different threads. They are spread over parts, each
//! with a lock of its own; a thread holds one for the time of a look-up.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netlib::clock;
use netvm_nf_common::LruTable;
use netvm_wire::FiveTuple;

use crate::Subject;

const PARTS: usize = 16;

/// A flow that was allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// The packet that a rule allowed: the flow's direction.
    pub(crate) first: Subject,
    /// The rules by which it was allowed last, as their readings are counted.
    pub(crate) generation: u64,
}

/// What the state of a packet's flow says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// The rules allowed the flow.
    Allowed,
    /// Rules that are not those of now allowed it, by this packet.
    Outdated(Subject),
    /// Nothing.
    Unknown,
}

/// A bounded table of flows, of the same content for both of their directions. Clones are the same table.
#[derive(Clone, Debug)]
pub struct States {
    parts: Arc<[Mutex<LruTable<FiveTuple, State>>]>,
    timeout: u64,
}

impl States {
    /// At most about `capacity` flows, forgotten after `timeout` seconds of silence.
    #[must_use]
    pub fn new(capacity: usize, timeout: u64) -> Self {
        let part = || Mutex::new(LruTable::new(capacity.div_ceil(PARTS)));
        Self {
            parts: (0..PARTS).map(|_| part()).collect(),
            timeout: clock::cycles_in_micros(timeout * 1_000_000),
        }
    }

    fn part(&self, flow: &FiveTuple) -> MutexGuard<'_, LruTable<FiveTuple, State>> {
        let part = flow.plain_hash() as usize % PARTS;
        // A thread that panicked within a table's method may leave it in disorder, but never unsound; its NF ends then.
        self.parts[part].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of the packet's flow; using it keeps it.
    pub(crate) fn find(&self, tuple: FiveTuple, generation: u64, now: u64) -> Known {
        let flow = tuple.canonical();
        let mut part = self.part(&flow);
        match part.peek(&flow) {
            Some((used, _)) if now.saturating_sub(used) > self.timeout => {
                part.remove(&flow);
                Known::Unknown
            }
            Some((_, state)) if state.generation != generation => Known::Outdated(state.first),
            Some(_) => {
                part.get(&flow, now);
                Known::Allowed
            }
            None => Known::Unknown,
        }
    }

    /// Remembers that the packet was allowed; whether another flow was forgotten for it.
    pub(crate) fn allow(&self, first: Subject, generation: u64, now: u64) -> bool {
        let flow = first.tuple.canonical();
        self.part(&flow).insert(flow, State { first, generation }, now).is_some()
    }

    /// Forgets the packet's flow.
    pub(crate) fn forget(&self, tuple: FiveTuple) {
        let flow = tuple.canonical();
        self.part(&flow).remove(&flow);
    }

    /// Forgets flows that have been silent for too long; returns how many are left.
    pub(crate) fn expire(&self, now: u64) -> usize {
        let since = now.saturating_sub(self.timeout);
        let left = |part: &Mutex<LruTable<_, _>>| {
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            // A bounded number at a time: other threads wait for the lock.
            for _ in 0..256 {
                if part.pop_unused_since(since).is_none() {
                    break;
                }
            }
            part.len()
        };
        self.parts.iter().map(left).sum()
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
    fn both_directions_have_one_state_that_use_keeps_and_silence_ends() {
        let states = States::new(100, 1);
        let second = states.timeout;
        let first = subject(1000);
        assert_eq!(states.find(first.tuple, 0, 0), Known::Unknown);
        states.allow(first, 0, 0);
        assert_eq!(states.find(first.tuple.reversed(), 0, second), Known::Allowed);
        assert_eq!(states.find(first.tuple, 0, 2 * second), Known::Allowed);
        assert_eq!(states.find(first.tuple, 1, 2 * second), Known::Outdated(first));
        assert_eq!(states.find(first.tuple, 0, 3 * second + 1), Known::Unknown);
        assert_eq!(states.expire(3 * second + 1), 0);
        states.allow(first, 0, 0);
        states.forget(first.tuple.reversed());
        assert_eq!(states.find(first.tuple, 0, 0), Known::Unknown);
    }

    #[test]
    fn the_table_is_bounded_and_expires() {
        let states = States::new(160, 1);
        let evicted = (0..1000).filter(|port| states.allow(subject(*port), 0, 5)).count();
        let held = states.expire(5);
        assert!(held <= 160 && held + evicted == 1000, "{held} {evicted}");
        assert_eq!(states.expire(5 + states.timeout), held);
        assert_eq!(states.expire(6 + states.timeout), 0);
    }
}
