// SPDX-License-Identifier: Apache-2.0
//! Updates of the trie.
//!
//! A change invalidates the slots within the changed prefix. The builder rebuilds those from the ordered map of routes:
//! first the next hop of the longest covering prefix, then the routes inside, shorter before longer. So a removed route
//! gives way to the one that covers it, and nodes hold nothing but what lookups read.

use super::arena::Arena;
use super::bits::Stride;
use super::node::{Entry, Line, SLOTS};
use crate::next_hop::NextHopId;
use crate::prefix::Prefix;
use crate::routes::Routes;

/// Builds nodes from routes.
pub(super) struct Builder<'a> {
    pub arena: &'a mut Arena,
    pub routes: &'a Routes<u128>,
}

impl Builder<'_> {
    /// Rebuilds the slots within changed prefixes. The prefixes are sorted, disjoint, and longer than the depth of the
    /// node.
    pub fn refresh(&mut self, slots: &mut [Entry], stride: Stride, changed: &[Prefix<u128>]) {
        let end = stride.end();
        let mut rest = changed;
        while let Some((first, others)) = rest.split_first() {
            let slot = stride.slot(*first);
            if first.length <= end {
                let covering = self.covering(*first);
                for place in &mut slots[slot..slot + (1 << (end - first.length))] {
                    self.arena.release_tree(*place);
                    *place = covering;
                }
                self.overlay(slots, stride, &self.routes.inside(*first));
                rest = others;
            } else {
                // No other prefix in this slot can be shorter, as it would contain this one.
                let count = rest.iter().take_while(|prefix| stride.slot(**prefix) == slot).count();
                let (group, others) = rest.split_at(count);
                slots[slot] = self.rebuild(slots[slot], Prefix::new(first.bits, end), group);
                rest = others;
            }
        }
    }

    /// The entry for a span with changes inside.
    fn rebuild(&mut self, entry: Entry, span: Prefix<u128>, changed: &[Prefix<u128>]) -> Entry {
        if let Some(line) = self.arena.test(entry) {
            let (inside, outside) = line.results();
            let prefix = Prefix::new(line.tested_prefix().0, line.tested_bits());
            let is_inside = |change: &Prefix<u128>| prefix.contains(*change) && change.length > prefix.length;
            if inside.has_slots() && changed.iter().all(is_inside) {
                self.arena.release(entry);
                let inside = self.rebuild(inside, prefix, changed);
                return self.test(prefix, inside, outside);
            }
        }
        let Some(mut slots) = self.arena.slots(entry) else {
            self.arena.release_tree(entry);
            return self.build(span.length, &self.routes.inside(span), self.covering(span));
        };
        self.arena.release(entry);
        self.refresh(&mut slots, Stride::At(span.length), changed);
        self.node(&slots)
    }

    /// Builds the entry for the addresses below `depth` bits from all longer routes.
    fn build(&mut self, depth: u8, routes: &[(Prefix<u128>, NextHopId)], covering: Entry) -> Entry {
        match routes {
            [] => covering,
            // A node would have a single node as its only child.
            [(prefix, id)] if prefix.length > depth + 8 => self.test(*prefix, Entry::leaf(*id), covering),
            _ => match Self::shared(depth, routes) {
                Some(prefix) => {
                    let inside = self.build(prefix.length, routes, covering);
                    self.test(prefix, inside, covering)
                }
                None => {
                    let mut slots = [covering; SLOTS];
                    self.overlay(&mut slots, Stride::At(depth), routes);
                    self.node(&slots)
                }
            },
        }
    }

    /// The prefix around all routes, if a test of it saves two nodes or more.
    fn shared(depth: u8, routes: &[(Prefix<u128>, NextHopId)]) -> Option<Prefix<u128>> {
        let ((first, _), (last, _)) = (routes.first()?, routes.last()?);
        // In prefix order, all others lie between these two.
        let shared = ((first.bits ^ last.bits).leading_zeros() as u8).min(first.length);
        if shared < depth + 16 {
            return None;
        }
        // A node has routes that are longer than its depth.
        let shortest = routes.iter().map(|(prefix, _)| prefix.length).min()?;
        let length = shared.min(shortest - 1) / 8 * 8;
        (length >= depth + 16).then(|| Prefix::new(first.bits, length))
    }

    /// Writes routes into slots, which are leaves where there are routes.
    fn overlay(&mut self, slots: &mut [Entry], stride: Stride, routes: &[(Prefix<u128>, NextHopId)]) {
        let end = stride.end();
        let mut rest = routes;
        while let Some(((prefix, id), others)) = rest.split_first() {
            let slot = stride.slot(*prefix);
            if prefix.length <= end {
                slots[slot..slot + (1 << (end - prefix.length))].fill(Entry::leaf(*id));
                rest = others;
            } else {
                // In prefix order, routes that end in this node come before those that continue below the same slot.
                let count = rest.iter().take_while(|(prefix, _)| stride.slot(*prefix) == slot).count();
                let (below, others) = rest.split_at(count);
                slots[slot] = self.build(end, below, slots[slot]);
                rest = others;
            }
        }
    }

    /// An entry for a node with these slots.
    fn node(&mut self, slots: &[Entry; SLOTS]) -> Entry {
        if slots[0].is_leaf() && slots.iter().all(|entry| *entry == slots[0]) {
            return slots[0];
        }
        match self.arena.put_node(slots) {
            Some(entry) => entry,
            None => {
                // The arena is full: the kernel forwards these packets.
                slots.iter().for_each(|entry| self.arena.release_tree(*entry));
                Entry::leaf(NextHopId::PUNT)
            }
        }
    }

    fn test(&mut self, prefix: Prefix<u128>, inside: Entry, outside: Entry) -> Entry {
        if inside == outside {
            return outside;
        }
        match self.arena.put_test(Line::test(prefix, inside, outside)) {
            Some(entry) => entry,
            None => {
                self.arena.release_tree(inside);
                Entry::leaf(NextHopId::PUNT)
            }
        }
    }

    /// The leaf of the longest route that covers a prefix, except the default route.
    fn covering(&self, prefix: Prefix<u128>) -> Entry {
        self.routes.covering(prefix).map_or(Entry::NONE, Entry::leaf)
    }
}
