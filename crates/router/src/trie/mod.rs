//! Longest-prefix match: a root that the first 16 bits index, then nodes of 8 bits each that keep runs of equal entries.
//!
//! Prefixes are pushed down to the leaves, so that a look-up ends at the first leaf that it meets and never looks back. A
//! burst goes down level by level: the loads of one level do not wait for each other.

mod arena;
mod bits;
mod build;
mod node;
#[cfg(test)]
mod tests;

use arena::Arena;
use bits::{Bits, Stride};
use build::{Builder, Routes};
use node::{Entry, entry_of, tested};

use crate::next_hop::NextHopId;

pub(crate) use bits::Prefix;

/// Slots of the root.
const ROOT: usize = 1 << 16;
/// Most lines of one family: 1 GiB. Routes beyond are left to the kernel.
const LIMIT: u32 = 1 << 24;
/// Addresses that go down together.
const BURST: usize = 32;

/// The routes of one family.
pub(crate) struct Trie<A> {
    root: Box<[Entry]>,
    arena: Arena,
    routes: Routes<A>,
    /// How many routes there are of each length.
    lengths: [u32; 129],
}

impl<A: Bits> Default for Trie<A> {
    fn default() -> Self {
        Self::with_limit(LIMIT)
    }
}

impl<A: Bits> Trie<A> {
    fn with_limit(lines: u32) -> Self {
        Self {
            root: vec![Entry::leaf(NextHopId::PUNT); ROOT].into_boxed_slice(),
            arena: Arena::new(lines),
            routes: Routes::new(),
            lengths: [0; 129],
        }
    }

    /// Sets routes, and takes away those without a next hop.
    pub fn apply(&mut self, changes: impl Iterator<Item = (Prefix<A>, Option<NextHopId>)>) {
        let mut changed: Vec<Prefix<A>> =
            changes.filter_map(|(prefix, id)| self.set(prefix, id).then_some(prefix)).collect();
        changed.sort_unstable();
        // What lies in another that has changed is laid out with it.
        changed.dedup_by(|inner, outer| outer.contains(*inner));
        let mut builder = Builder { arena: &mut self.arena, routes: &self.routes, lengths: &self.lengths };
        builder.refresh(&mut self.root, Stride::Root, &changed);
    }

    /// Whether that is something new.
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

    /// The next hop for each address.
    #[inline]
    pub fn look_up_burst(&self, addresses: &[A], found: &mut [NextHopId]) {
        for (addresses, found) in addresses.chunks(BURST).zip(found.chunks_mut(BURST)) {
            self.look_up_some(addresses, found);
        }
    }

    /// For at most [`BURST`].
    #[inline(always)]
    fn look_up_some(&self, addresses: &[A], found: &mut [NextHopId]) {
        let mut entries = [Entry::default(); BURST];
        // Which addresses are not at a leaf yet, and how many.
        let mut open = [0u8; BURST];
        let mut count = 0;
        for (n, (address, entry)) in addresses.iter().zip(&mut entries).enumerate() {
            *entry = self.root[address.top()];
            open[count] = n as u8;
            count += usize::from(!entry.is_leaf());
        }
        let mut depth = Stride::Root.end();
        while count > 0 {
            let mut left = 0;
            for n in 0..count {
                let which = usize::from(open[n]) % BURST;
                let entry = self.below(entries[which], addresses[which], depth);
                entries[which] = entry;
                open[left] = which as u8;
                left += usize::from(!entry.is_leaf());
            }
            count = left;
            depth += 8;
        }
        for (found, entry) in found.iter_mut().zip(entries) {
            *found = entry.id();
        }
    }

    /// Where a node or a test leads.
    #[inline(always)]
    fn below(&self, entry: Entry, address: A, depth: u8) -> Entry {
        let lines = self.arena.lines();
        if entry.is_node() {
            entry_of(lines, entry.line(), address.byte(depth))
        } else {
            tested(&lines[entry.line()], address)
        }
    }

    /// How many routes there are.
    pub fn routes(&self) -> usize {
        self.routes.len()
    }

    /// Bytes; those of the map of routes by its nodes being two thirds full.
    pub fn memory(&self) -> usize {
        let route = size_of::<Prefix<A>>() + size_of::<NextHopId>() + 2;
        size_of_val(&*self.root) + self.arena.memory() + self.routes.len() * route * 3 / 2
    }
}
