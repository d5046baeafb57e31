// SPDX-License-Identifier: Apache-2.0
//! Updates that the control plane sends to a router's tables.

use std::collections::HashSet;
use std::hash::Hash;

use netvm_wire::IpNet;

use crate::next_hop::{NextHop, NextHopId};

/// Changes to one router's tables.
///
/// A later change of a next hop or route replaces an earlier one; changes of different ones commute. An update takes
/// effect as a whole, and applying it twice does nothing.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Update {
    /// New definitions of next hops. [`NextHopId::PUNT`] and ids out of range are ignored.
    pub next_hops: Vec<(NextHopId, NextHop)>,
    /// New next hops of routes; `None` removes the route. An id out of range becomes [`NextHopId::PUNT`].
    pub routes: Vec<(IpNet, Option<NextHopId>)>,
}

impl Update {
    /// Whether the update is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.next_hops.is_empty() && self.routes.is_empty()
    }

    /// Appends a later update. Superseded changes are dropped from time to time, so that memory is bounded by the
    /// number of distinct next hops and routes.
    pub fn merge(&mut self, later: Self) {
        if self.is_empty() {
            *self = later;
            return;
        }
        append(&mut self.next_hops, later.next_hops);
        append(&mut self.routes, later.routes);
    }
}

/// Shorter lists keep superseded changes.
const COMPACT_AT: usize = 1024;

fn append<K: Eq + Hash + Copy, V>(list: &mut Vec<(K, V)>, later: Vec<(K, V)>) {
    // When the list is full, at least half of it is new or superseded, so the work per change is constant.
    if list.len() + later.len() > list.capacity().max(COMPACT_AT) {
        keep_last(list);
        list.reserve(list.len().max(later.len()).max(COMPACT_AT));
    }
    list.extend(later);
}

/// Keeps only the last change per key.
fn keep_last<K: Eq + Hash + Copy, V>(list: &mut Vec<(K, V)>) {
    let mut seen = HashSet::with_capacity(list.len());
    list.reverse();
    list.retain(|(key, _)| seen.insert(*key));
    list.reverse();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_changes_take_no_more_memory() {
        let mut all = Update::default();
        let net = |n: u32| format!("10.0.{}.0/24", n % 100).parse().unwrap();
        for n in 0..100_000u32 {
            let id = NextHopId((n % 30_000) as u16);
            all.merge(Update {
                next_hops: vec![(NextHopId(3), NextHop::Blackhole)],
                routes: vec![(net(n), Some(id))],
            });
        }
        assert!(all.routes.capacity() <= 4 * COMPACT_AT && all.next_hops.capacity() <= 4 * COMPACT_AT);
        keep_last(&mut all.routes);
        keep_last(&mut all.next_hops);
        assert_eq!((all.routes.len(), all.next_hops.len()), (100, 1));
        for n in 99_900..100_000u32 {
            let id = NextHopId((n % 30_000) as u16);
            assert!(all.routes.contains(&(net(n), Some(id))), "{n}");
        }
    }
}
