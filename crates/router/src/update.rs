//! What the control plane says of a table.

use std::collections::HashSet;
use std::hash::Hash;

use netvm_wire::IpNet;

use crate::next_hop::{NextHop, NextHopId};

/// Changes of one router's tables.
///
/// What is said later of a next hop or a route replaces what was said before; between different ones the order makes no
/// difference, and all of an update holds at once. Saying what holds already does nothing.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Update {
    /// What the next hops are from now on. [`NextHopId::PUNT`] and ids that are not valid cannot be changed and are passed
    /// over.
    pub next_hops: Vec<(NextHopId, NextHop)>,
    /// Where the routes lead from now on; `None`: the route goes. An id that is not valid is [`NextHopId::PUNT`].
    pub routes: Vec<(IpNet, Option<NextHopId>)>,
}

impl Update {
    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.next_hops.is_empty() && self.routes.is_empty()
    }

    /// Adds what was said later. What it replaces is forgotten now and then, so that the memory is bounded by how much there
    /// is to be said at all, however often it is said.
    pub fn merge(&mut self, later: Self) {
        if self.is_empty() {
            *self = later;
            return;
        }
        append(&mut self.next_hops, later.next_hops);
        append(&mut self.routes, later.routes);
    }
}

/// Below this many, nothing is forgotten.
const FEW: usize = 1024;

fn append<K: Eq + Hash + Copy, V>(list: &mut Vec<(K, V)>, later: Vec<(K, V)>) {
    // Where it would not fit, half of it or more is new, or goes: the work is a constant for each that is added.
    if list.len() + later.len() > list.capacity().max(FEW) {
        keep_last(list);
        list.reserve(list.len().max(later.len()).max(FEW));
    }
    list.extend(later);
}

/// Keeps what was said last of each.
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
    fn what_is_said_over_and_over_takes_no_more_memory() {
        let mut all = Update::default();
        let net = |n: u32| format!("10.0.{}.0/24", n % 100).parse().unwrap();
        for n in 0..100_000u32 {
            let id = NextHopId((n % 30_000) as u16);
            all.merge(Update {
                next_hops: vec![(NextHopId(3), NextHop::Blackhole)],
                routes: vec![(net(n), Some(id))],
            });
        }
        assert!(all.routes.capacity() <= 4 * FEW && all.next_hops.capacity() <= 4 * FEW);
        keep_last(&mut all.routes);
        keep_last(&mut all.next_hops);
        assert_eq!((all.routes.len(), all.next_hops.len()), (100, 1));
        for n in 99_900..100_000u32 {
            let id = NextHopId((n % 30_000) as u16);
            assert!(all.routes.contains(&(net(n), Some(id))), "{n}");
        }
    }
}
