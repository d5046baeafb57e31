// SPDX-License-Identifier: Apache-2.0
//! Longest-prefix match of IPv6: a root indexed by the first 16 bits, then nodes of 8 bits each.
//!
//! Prefixes are pushed down to the leaves, so a lookup ends at the first leaf and never backtracks. A burst descends
//! level by level, so that the loads of a level overlap: sixteen addresses per vector with AVX-512, eight with AVX2,
//! otherwise one at a time, prefetched. A node whose slots are all leaves takes half the memory. A test of a prefix
//! replaces a chain of nodes. The default route is not in the trie, so that changing it is one write.
//!
//! In a full table, an address takes four levels, of which two miss the caches.

mod arena;
mod bits;
mod build;
mod lookup;
mod node;
#[cfg(test)]
mod tests;

use netvm_cpu::Level;

use crate::next_hop::NextHopId;
use crate::prefix::Prefix;
use crate::routes::Routes;
use arena::Arena;
use bits::Stride;
use build::Builder;
use lookup::View;
use node::Entry;

/// An address as on the wire.
type Address = [u8; 16];

/// Slots of the root.
const ROOT: usize = 1 << 16;
/// Most lines: 1 GiB. Routes beyond that are left to the kernel.
const LIMIT: u32 = 1 << 24;

/// The routes of IPv6.
pub(crate) struct Trie {
    root: Box<[Entry; ROOT]>,
    arena: Arena,
    routes: Routes<u128>,
}

impl Default for Trie {
    fn default() -> Self {
        Self::with_limit(LIMIT)
    }
}

impl Trie {
    fn with_limit(lines: u32) -> Self {
        Self { root: Box::new([Entry::NONE; ROOT]), arena: Arena::new(lines), routes: Routes::default() }
    }

    /// Adds or replaces routes, and removes those without a next hop.
    pub fn apply(&mut self, changes: impl Iterator<Item = (Prefix<u128>, Option<NextHopId>)>) {
        let changed = self.routes.apply(changes);
        let mut builder = Builder { arena: &mut self.arena, routes: &self.routes };
        builder.refresh(&mut self.root[..], Stride::Root, &changed);
    }

    /// Looks up the next hop of each address.
    #[inline]
    pub fn lookup_burst(&self, addresses: &[Address], found: &mut [NextHopId]) {
        self.view().lookup(Level::current(), addresses, found);
    }

    #[inline(always)]
    fn view(&self) -> View<'_> {
        View { root: &self.root, lines: self.arena.lines(), default: self.routes.default_route() }
    }

    /// Whether routes were left to the kernel for want of room; it punts their packets until they change.
    pub const fn was_full(&self) -> bool {
        self.arena.was_full()
    }

    /// Number of routes.
    pub fn routes(&self) -> usize {
        self.routes.len()
    }

    /// Bytes used; the share of the routes is an estimate.
    pub fn memory(&self) -> usize {
        size_of_val(&*self.root) + self.arena.memory() + self.routes.memory()
    }
}
