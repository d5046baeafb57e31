//! How the trie follows the routes.
//!
//! What a change makes wrong are the slots under the prefix that changed, and those are laid out anew from the ordered map
//! of the routes: the next hop of the longest prefix around them first, then the routes inside, shorter before longer. So
//! a route that goes gives way to the one that covers it, and nothing is kept in nodes but what look-ups read.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::arena::Arena;
use super::bits::{Bits, Prefix, Stride};
use super::node::{Entry, Line, SLOTS};
use crate::next_hop::NextHopId;

/// Routes in the order of prefixes.
pub(super) type Routes<A> = BTreeMap<Prefix<A>, NextHopId>;

/// Makes nodes from routes.
pub(super) struct Builder<'a, A> {
    pub arena: &'a mut Arena,
    pub routes: &'a Routes<A>,
    /// How many routes there are of each length.
    pub lengths: &'a [u32],
}

impl<A: Bits> Builder<'_, A> {
    /// Lays out anew what lies under changed prefixes, of which none contains another; all end behind where the node of
    /// the slots begins. In the order of prefixes.
    pub fn refresh(&mut self, slots: &mut [Entry], stride: Stride, changed: &[Prefix<A>]) {
        let end = stride.end();
        let mut rest = changed;
        while let Some((first, others)) = rest.split_first() {
            let slot = first.slot(stride);
            if first.length <= end {
                let covering = self.covering(*first);
                for place in &mut slots[slot..slot + (1 << (end - first.length))] {
                    self.arena.release_tree(*place);
                    *place = covering;
                }
                self.lay(slots, stride, &self.inside(*first));
                rest = others;
            } else {
                // No other that is in this slot can be shorter: it would contain this one.
                let count = rest.iter().take_while(|prefix| prefix.slot(stride) == slot).count();
                let (group, others) = rest.split_at(count);
                slots[slot] = self.renew(slots[slot], Prefix::new(first.bits, end), group);
                rest = others;
            }
        }
    }

    /// The entry for a span, parts of which have changed.
    fn renew(&mut self, entry: Entry, span: Prefix<A>, changed: &[Prefix<A>]) -> Entry {
        let Some(mut slots) = self.arena.slots(entry) else {
            self.arena.release(entry);
            return self.build(span.length, &self.inside(span), self.covering(span));
        };
        self.arena.release(entry);
        self.refresh(&mut slots, Stride::At(span.length), changed);
        self.node(&slots)
    }

    /// The entry for the addresses behind the first `depth` bits, from all routes that are longer.
    fn build(&mut self, depth: u8, routes: &[(Prefix<A>, NextHopId)], covering: Entry) -> Entry {
        match routes {
            [] => covering,
            // A node would lead to further nodes only.
            [(prefix, id)] if prefix.length > depth + 8 => self.test(*prefix, Entry::leaf(*id), covering),
            _ => {
                let mut slots = [covering; SLOTS];
                self.lay(&mut slots, Stride::At(depth), routes);
                self.node(&slots)
            }
        }
    }

    /// Lays routes over slots that are leaves where there are any.
    fn lay(&mut self, slots: &mut [Entry], stride: Stride, routes: &[(Prefix<A>, NextHopId)]) {
        let end = stride.end();
        let mut rest = routes;
        while let Some(((prefix, id), others)) = rest.split_first() {
            let slot = prefix.slot(stride);
            if prefix.length <= end {
                slots[slot..slot + (1 << (end - prefix.length))].fill(Entry::leaf(*id));
                rest = others;
            } else {
                // By the order, what ends in this node comes before all that goes on below the same slot.
                let count = rest.iter().take_while(|(prefix, _)| prefix.slot(stride) == slot).count();
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
                // The kernel has the routes that there is no room for here.
                slots.iter().for_each(|entry| self.arena.release_tree(*entry));
                Entry::leaf(NextHopId::PUNT)
            }
        }
    }

    fn test(&mut self, prefix: Prefix<A>, inside: Entry, outside: Entry) -> Entry {
        if inside == outside {
            return outside;
        }
        self.arena.put_test(Line::test(prefix, inside, outside)).unwrap_or(Entry::leaf(NextHopId::PUNT))
    }

    /// The leaf of the longest route that all of a prefix lies in, the default one aside.
    fn covering(&self, prefix: Prefix<A>) -> Entry {
        let lengths = self.lengths.iter().enumerate().take(usize::from(prefix.length) + 1).skip(1).rev();
        let present = lengths.filter(|(_, count)| **count > 0);
        let mut found =
            present.filter_map(|(length, _)| self.routes.get(&Prefix::new(prefix.bits, length as u8)));
        found.next().map_or(Entry::NONE, |id| Entry::leaf(*id))
    }

    /// The routes that lie in a prefix and are longer.
    fn inside(&self, prefix: Prefix<A>) -> Vec<(Prefix<A>, NextHopId)> {
        let range = self.routes.range((Bound::Excluded(prefix), Bound::Included(prefix.last())));
        range.map(|(prefix, id)| (*prefix, *id)).collect()
    }
}
