// SPDX-License-Identifier: Apache-2.0
//! The routes of one family in prefix order, from which the tables that lookups read are built.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::next_hop::NextHopId;
use crate::prefix::{Bits, Prefix};

/// Routes and their next hops. The default route is kept apart, because the tables do not contain it: changing it is
/// one write.
pub(crate) struct Routes<A> {
    routes: BTreeMap<Prefix<A>, NextHopId>,
    /// Number of routes of each length.
    lengths: [u32; 129],
    /// Next hop of the default route.
    default: NextHopId,
}

impl<A: Bits> Default for Routes<A> {
    fn default() -> Self {
        Self { routes: BTreeMap::new(), lengths: [0; 129], default: NextHopId::PUNT }
    }
}

impl<A: Bits> Routes<A> {
    /// Adds or replaces routes, and removes those without a next hop. Returns the prefixes within which lookups change,
    /// except the default route: sorted, none within another.
    pub fn apply(&mut self, changes: impl Iterator<Item = (Prefix<A>, Option<NextHopId>)>) -> Vec<Prefix<A>> {
        let mut changed: Vec<Prefix<A>> =
            changes.filter_map(|(prefix, id)| self.set(prefix, id).then_some(prefix)).collect();
        if let Some(default) = changed.iter().find(|prefix| prefix.length == 0) {
            self.default = self.routes.get(default).copied().unwrap_or(NextHopId::PUNT);
            changed.retain(|prefix| prefix.length > 0);
        }
        changed.sort_unstable();
        // Rebuilding the outer prefix rebuilds the inner one too.
        changed.dedup_by(|inner, outer| outer.contains(*inner));
        changed
    }

    /// Sets or removes a route and returns whether anything changed.
    fn set(&mut self, prefix: Prefix<A>, id: Option<NextHopId>) -> bool {
        let before = match id {
            Some(id) => self.routes.insert(prefix, id),
            None => self.routes.remove(&prefix),
        };
        let count = &mut self.lengths[usize::from(prefix.length)];
        match (before, id) {
            (None, Some(_)) => *count += 1,
            (Some(_), None) => *count -= 1,
            _ => {}
        }
        before != id
    }

    /// Next hop of the default route; [`NextHopId::PUNT`] without one.
    #[inline(always)]
    pub const fn default_route(&self) -> NextHopId {
        self.default
    }

    /// The next hop of the longest route that covers a prefix, except the default route.
    pub fn covering(&self, prefix: Prefix<A>) -> Option<NextHopId> {
        let lengths = self.lengths.iter().enumerate().take(usize::from(prefix.length) + 1).skip(1).rev();
        let present = lengths.filter(|(_, count)| **count > 0);
        let mut found =
            present.filter_map(|(length, _)| self.routes.get(&Prefix::new(prefix.bits, length as u8)));
        found.next().copied()
    }

    /// The routes within a prefix that are longer than it, in prefix order.
    pub fn inside(&self, prefix: Prefix<A>) -> Vec<(Prefix<A>, NextHopId)> {
        let range = self.routes.range((Bound::Excluded(prefix), Bound::Included(prefix.last())));
        range.map(|(prefix, id)| (*prefix, *id)).collect()
    }

    /// Whether nothing is left of any route.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty() && self.lengths == [0; 129] && self.default == NextHopId::PUNT
    }

    /// Number of routes.
    pub fn len(&self) -> usize {
        self.routes.len()
    }

    /// Bytes used, assuming that the nodes of the map are two thirds full.
    pub fn memory(&self) -> usize {
        let route = size_of::<Prefix<A>>() + size_of::<NextHopId>() + 2;
        self.routes.len() * route * 3 / 2
    }
}
