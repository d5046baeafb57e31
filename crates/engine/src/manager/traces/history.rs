// SPDX-License-Identifier: Apache-2.0
//! What the workers' snapshots were made of, for events that refer to it: a packet may end when others are in force.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_model::Host;

use crate::policy::Policy;

/// How long a snapshot is remembered that is no longer in force: longer than a packet is followed, and its records
/// wait.
const KEPT: Duration = Duration::from_secs(15);
/// Most snapshots that are remembered.
const MAX_PUBLISHED: usize = 32;

/// The rules and names of one snapshot.
#[derive(Debug)]
pub(crate) struct Published {
    number: u32,
    pub(super) policy: Arc<Policy>,
    pub(super) host: Arc<Host>,
    /// Since when another one is in force.
    replaced: Option<Instant>,
}

/// Snapshots by number, the last one in force.
#[derive(Debug, Default)]
pub(crate) struct History {
    last: u32,
    list: VecDeque<Published>,
}

impl History {
    /// Adds what the next snapshots are made of. Returns their number.
    pub(super) fn add(&mut self, policy: Arc<Policy>, host: Arc<Host>) -> u32 {
        self.last = self.last.wrapping_add(1);
        if let Some(before) = self.list.back_mut() {
            before.replaced = Some(Instant::now());
        }
        self.list.push_back(Published { number: self.last, policy, host, replaced: None });
        self.last
    }

    pub(super) fn of(&self, number: u32) -> Option<&Published> {
        self.list.iter().rev().find(|published| published.number == number)
    }

    /// The one in force.
    pub(super) fn current(&self) -> Option<&Published> {
        self.list.back()
    }

    /// Forgets one that no event needs any more; all but the one in force, if no packet is followed.
    pub(super) fn forget_one(&mut self, follows_packets: bool) -> Option<Published> {
        let oldest = self.list.front()?;
        let age = oldest.replaced?.elapsed();
        let is_due = !follows_packets || age > KEPT || self.list.len() > MAX_PUBLISHED;
        if is_due { self.list.pop_front() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_remembered_while_packets_are_followed_up_to_a_limit() {
        let mut history = History::default();
        let add = |history: &mut History| history.add(Arc::default(), Arc::default());
        let first = add(&mut history);
        assert!(history.forget_one(false).is_none(), "it is in force");
        let second = add(&mut history);
        assert!(history.forget_one(true).is_none());
        assert!(history.of(first).is_some() && history.of(second).is_some());
        let forgotten = history.forget_one(false).unwrap();
        assert_eq!(forgotten.number, first);
        assert!(history.of(first).is_none() && history.current().unwrap().number == second);
        (0..MAX_PUBLISHED).for_each(|_| {
            add(&mut history);
        });
        assert_eq!(history.forget_one(true).unwrap().number, second);
        assert!(history.forget_one(true).is_none());
    }
}
