// SPDX-License-Identifier: Apache-2.0
//! Longest-prefix match of IPv4: an array indexed by the first 19 bits, of groups of the 32 prefixes of 24 bits,
//! compressed as in Poptrie (Asai and Ohara, SIGCOMM 2015).
//!
//! A group is one word: a bitmap of the slots whose leaf differs from the one before, and the place of its first leaf.
//! So most lookups are two loads: of the word, whose set bits up to the slot tell which leaf it is, and of the leaf.
//! Below a prefix of 24 bits with longer routes is a block, of eight groups. Prefixes are pushed down to the leaves, so
//! a lookup never backtracks. The default route is not in the table, so that changing it is one write.
//!
//! A full table takes 6 MB of which a lookup reads two cache lines, where a table of 2^24 leaves takes 32 MB and a
//! lookup reads one.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod build;
mod group;
mod lookup;
mod root;
mod store;
#[cfg(test)]
mod tests;

use crate::memory::MAP_THRESHOLD;
use crate::next_hop::NextHopId;
use crate::prefix::Prefix;
use crate::routes::Routes;
use root::Root;
use store::{Limits, Store};

/// Bits of the prefixes that groups stand for.
const GROUP_BITS: u8 = 19;

/// The routes of IPv4.
pub(crate) struct V4 {
    root: Root,
    store: Store,
    routes: Routes<u32>,
}

impl Default for V4 {
    fn default() -> Self {
        Self::with_limits(Limits::DEFAULT)
    }
}

impl V4 {
    fn with_limits(limits: Limits) -> Self {
        Self { root: Root::default(), store: Store::new(limits), routes: Routes::default() }
    }

    /// Adds or replaces routes, and removes those without a next hop.
    pub fn apply(&mut self, changes: impl Iterator<Item = (Prefix<u32>, Option<NextHopId>)>) {
        let changed = self.routes.apply(changes);
        self.refresh(&changed);
        if size_of_val(self.store.leaves()) >= MAP_THRESHOLD {
            self.root.use_huge_pages();
        }
    }

    /// Whether routes were left to the kernel for want of room; it punts their packets until they change.
    pub const fn was_full(&self) -> bool {
        self.store.was_full()
    }

    /// Number of routes.
    pub fn routes(&self) -> usize {
        self.routes.len()
    }

    /// Bytes used; the share of the routes is an estimate.
    pub fn memory(&self) -> usize {
        self.root.memory() + self.store.memory() + self.routes.memory()
    }
}

/// The group of an address.
#[inline(always)]
const fn group_of(address: u32) -> usize {
    (address >> (32 - GROUP_BITS)) as usize
}
