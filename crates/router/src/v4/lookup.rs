// SPDX-License-Identifier: Apache-2.0
//! Lookup of bursts of addresses.
//!
//! Cache misses limit the speed in a large table, so a burst is looked up in loops that are as short as possible: a
//! processor starts the loads of many addresses before it needs the first, and those of the next burst before the last.
//! Blocks, which are rare, are left to a loop of their own. Gathers were slower, on AMD's processors and on Intel's
//! since Downfall.

use netvm_cpu::Level;

#[cfg(target_arch = "x86_64")]
use super::avx512;
use super::group::{BLOCK, Group, Leaf};
use super::root::GROUPS;
use super::store::block_number;
use super::{V4, group_of};
use crate::memory::prefetch;
use crate::next_hop::NextHopId;

/// Addresses that are looked up together.
const BURST: usize = 64;

/// What lookups read.
#[derive(Clone, Copy)]
struct View<'a> {
    root: &'a [Group; GROUPS],
    leaves: &'a [u16],
    blocks: &'a [[Group; BLOCK]],
    default: NextHopId,
    /// Every group has one leaf for all slots.
    is_simple: bool,
}

impl V4 {
    /// Looks up the next hop of each address.
    #[inline]
    pub fn lookup_burst(&self, addresses: &[u32], found: &mut [NextHopId]) {
        self.lookup(Level::current(), addresses, found);
    }

    /// Looks up with the instructions of `level`, which the processor must have.
    #[inline]
    pub(super) fn lookup(&self, level: Level, addresses: &[u32], found: &mut [NextHopId]) {
        let Some(view) = self.view() else { return };
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 if view.is_simple => {
                // SAFETY: as below.
                #[allow(unsafe_code, reason = "calls a function with a target feature")]
                unsafe {
                    with_avx512(view, addresses, found);
                }
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 | Level::Avx512 => {
                // SAFETY: the caller vouches for the level, which includes the features of the function.
                #[allow(unsafe_code, reason = "calls a function with a target feature")]
                unsafe {
                    with_bmi2(view, addresses, found);
                }
            }
            #[cfg(target_arch = "x86_64")]
            Level::Baseline if std::arch::is_x86_feature_detected!("popcnt") => {
                // SAFETY: the processor has the feature.
                #[allow(unsafe_code, reason = "calls a function with a target feature")]
                unsafe {
                    with_popcnt(view, addresses, found);
                }
            }
            _ => portable(view, addresses, found),
        }
    }

    /// What lookups read; there always is a root.
    #[inline(always)]
    fn view(&self) -> Option<View<'_>> {
        Some(View {
            root: self.root.groups()?,
            leaves: self.store.leaves(),
            blocks: self.store.blocks(),
            default: self.routes.default_route(),
            is_simple: self.store.is_simple(),
        })
    }

    /// Looks up without any instruction that a processor may lack.
    #[cfg(test)]
    pub(super) fn lookup_portably(&self, addresses: &[u32], found: &mut [NextHopId]) {
        portable(self.view().unwrap(), addresses, found);
    }
}

/// Looks up in groups of one leaf each.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq")]
fn with_avx512(view: View<'_>, addresses: &[u32], found: &mut [NextHopId]) {
    let count = addresses.len().min(found.len());
    let (vectors, rest) = addresses[..count].as_chunks();
    let (of_vectors, of_rest) = found[..count].as_chunks_mut();
    for (addresses, found) in vectors.iter().zip(of_vectors) {
        avx512::lookup(view.root, addresses, found, view.default);
    }
    portable(view, rest, of_rest);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "popcnt,bmi1,bmi2,avx2")]
fn with_bmi2(view: View<'_>, addresses: &[u32], found: &mut [NextHopId]) {
    portable(view, addresses, found);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "popcnt")]
fn with_popcnt(view: View<'_>, addresses: &[u32], found: &mut [NextHopId]) {
    portable(view, addresses, found);
}

#[inline(always)]
fn portable(view: View<'_>, addresses: &[u32], found: &mut [NextHopId]) {
    let count = addresses.len().min(found.len());
    let (bursts, rest) = addresses[..count].as_chunks::<BURST>();
    let (of_bursts, of_rest) = found[..count].as_chunks_mut::<BURST>();
    for (burst, found) in bursts.iter().zip(of_bursts) {
        view.lookup(burst, found);
    }
    if !rest.is_empty() {
        view.lookup(rest, of_rest);
    }
}

impl View<'_> {
    /// Looks up at most [`BURST`] addresses.
    #[inline(always)]
    fn lookup(self, addresses: &[u32], found: &mut [NextHopId]) {
        let mut leaves = [Leaf::NONE; BURST];
        if self.is_simple {
            for (leaf, address) in leaves.iter_mut().zip(addresses) {
                *leaf = self.root[group_of(*address)].uniform_leaf();
            }
        } else {
            self.load(addresses, &mut leaves);
        }
        for (id, leaf) in found.iter_mut().zip(&leaves) {
            *id = leaf.id(self.default);
        }
    }

    #[inline(always)]
    fn load(self, addresses: &[u32], leaves: &mut [Leaf; BURST]) {
        let mut groups = [Group::default(); BURST];
        for (group, address) in groups.iter_mut().zip(addresses) {
            *group = self.root[group_of(*address)];
        }
        let mut places = [0; BURST];
        for ((place, group), address) in places.iter_mut().zip(&groups).zip(addresses) {
            *place = group.place(address >> 8) as u32;
            prefetch(self.leaves.as_ptr().wrapping_add(*place as usize));
        }
        for ((leaf, place), _) in leaves.iter_mut().zip(&places).zip(addresses) {
            *leaf = self.leaf(*place as usize);
        }
        if leaves.iter().fold(false, |any, leaf| any | (*leaf == Leaf::BLOCK)) {
            for ((leaf, group), address) in leaves.iter_mut().zip(&groups).zip(addresses) {
                if *leaf == Leaf::BLOCK {
                    *leaf = self.in_block(*group, *address);
                }
            }
        }
    }

    #[inline(always)]
    fn leaf(self, place: usize) -> Leaf {
        debug_assert!(place < self.leaves.len());
        // SAFETY: the place is that of a slot of a group. `Store::put` makes all groups that are not empty, within the
        // leaves, which never become fewer; the place of an empty group's slots is 0, which always exists.
        #[allow(unsafe_code, reason = "a check takes a tenth of the time of a lookup")]
        Leaf(unsafe { *self.leaves.get_unchecked(place) })
    }

    /// The leaf of an address in a block.
    #[inline(always)]
    fn in_block(self, group: Group, address: u32) -> Leaf {
        let block = &self.blocks[block_number(self.leaves, group, address >> 8) as usize];
        self.leaf(block[address as usize / 32 % BLOCK].place(address))
    }
}
