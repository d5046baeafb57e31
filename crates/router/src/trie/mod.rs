//! Longest-prefix match: a root that the first 16 bits index, then nodes of 8 bits each.
//!
//! Prefixes are pushed down to the leaves, so that a look-up ends at the first leaf that it meets and never looks back. A
//! burst goes down level by level: the loads of one level do not wait for each other.

mod arena;
mod bits;
mod build;
mod node;
#[cfg(test)]
mod tests;

use std::hint::select_unpredictable;

use arena::Arena;
use bits::{Bits, Stride};
use build::{Builder, Routes};
use node::{Entry, Kind, entry_of_slot};

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
        let (bursts, rest) = addresses.as_chunks();
        let mut places = found.chunks_mut(BURST);
        for (burst, places) in bursts.iter().zip(&mut places) {
            places.copy_from_slice(&self.look_up_some(burst, BURST)[..places.len()]);
        }
        if let Some(places) = places.next().filter(|_| !rest.is_empty()) {
            let mut burst = [A::ZERO; BURST];
            burst[..rest.len()].copy_from_slice(rest);
            let count = places.len().min(rest.len());
            places[..count].copy_from_slice(&self.look_up_some(&burst, count)[..count]);
        }
    }

    /// For the first so many addresses.
    ///
    /// What limits this are lines that are not in the cache, so all of a level are asked for before any of them is needed:
    /// which addresses go on, and how, is in bits, and no branch between two loads depends on what they bring.
    #[inline(always)]
    fn look_up_some(&self, addresses: &[A; BURST], count: usize) -> [NextHopId; BURST] {
        let lines = self.arena.lines();
        let bytes = addresses.map(A::in_bytes);
        let mut entries = [Entry::default(); BURST];
        let mut open = 0;
        for (n, (address, entry)) in addresses.iter().zip(&mut entries).take(count).enumerate() {
            *entry = self.root[address.top()];
            open |= u32::from(!entry.is_leaf()) << n;
        }
        let mut depth = Stride::Root.end();
        while open != 0 {
            let (mut others, mut next) = (0, 0);
            for n in bits_of(open) {
                let (entry, slot) = (entries[n], A::byte_of(&bytes[n], depth));
                let is_full = entry.kind() == Kind::Full;
                // Of runs and tests too, which are looked at below: here their line is asked for.
                let found = entry_of_slot(lines, entry.line_of_slot(slot), slot);
                others |= u32::from(!is_full) << n;
                entries[n] = select_unpredictable(is_full, found, entry);
                next |= u32::from(is_full & !found.is_leaf()) << n;
            }
            for n in bits_of(others) {
                let (entry, line) = (entries[n], &lines[entries[n].line()]);
                entries[n] = match entry.kind() {
                    Kind::Runs => line.entry_of_run(A::byte_of(&bytes[n], depth)),
                    _ => line.tested(addresses[n]),
                };
                next |= u32::from(!entries[n].is_leaf()) << n;
            }
            open = next;
            depth += 8;
        }
        entries.map(Entry::id)
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

/// Which bits are one, the lowest first: below [`BURST`].
#[inline(always)]
fn bits_of(mut word: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (word != 0).then(|| {
            let bit = word.trailing_zeros() as usize % BURST;
            word &= word - 1;
            bit
        })
    })
}
