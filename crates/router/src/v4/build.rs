// SPDX-License-Identifier: Apache-2.0
//! Updates: a change invalidates the slots within the changed prefix, which are built again from the routes: first the
//! next hop of the longest covering prefix, then the routes inside, shorter before longer. So a removed route gives way
//! to the one that covers it.

use std::ops::RangeInclusive;

use super::group::{BLOCK, Group, Leaf, SLOTS, Slot};
use super::{GROUP_BITS, V4, group_of};
use crate::next_hop::NextHopId;
use crate::prefix::Prefix;

/// Bits of the prefixes that slots stand for.
const SLOT_BITS: u8 = 24;

type Route = (Prefix<u32>, NextHopId);

impl V4 {
    /// Builds everything within changed prefixes again. They are sorted, and none lies within another.
    pub(super) fn refresh(&mut self, changed: &[Prefix<u32>]) {
        let mut rest = changed;
        while let Some((first, others)) = rest.split_first() {
            if first.length <= GROUP_BITS {
                self.rebuild(*first);
                rest = others;
                continue;
            }
            let group = group_of(first.bits);
            let count = rest.iter().take_while(|prefix| group_of(prefix.bits) == group).count();
            let (changed, others) = rest.split_at(count);
            if self.store.was_full() {
                // Routes may have been left to the kernel, for which there is room again.
                self.rebuild(Prefix::new(first.bits, GROUP_BITS));
            } else {
                let mut slots = self.store.slots(self.root[group]);
                self.store.release(self.root[group]);
                self.refresh_slots(&mut slots, changed);
                self.set_slots(group, &slots);
            }
            rest = others;
        }
    }

    /// Builds all groups of a prefix.
    fn rebuild(&mut self, prefix: Prefix<u32>) {
        for group in groups_of(prefix) {
            self.store.release_tree(self.root[group]);
        }
        self.fill(prefix, self.covering(prefix));
        self.overlay(&self.routes.inside(prefix));
    }

    /// Writes routes into groups without blocks, all slots of which are the same.
    fn overlay(&mut self, routes: &[Route]) {
        let mut rest = routes;
        while let Some(((prefix, id), others)) = rest.split_first() {
            if prefix.length <= GROUP_BITS {
                self.fill(*prefix, Leaf::of(Some(*id)));
                rest = others;
            } else {
                // In prefix order, the routes that cover the group come before those inside it.
                let group = group_of(prefix.bits);
                let count = rest.iter().take_while(|(prefix, _)| group_of(prefix.bits) == group).count();
                let (inside, others) = rest.split_at(count);
                let mut slots = self.store.slots(self.root[group]);
                self.overlay_slots(&mut slots, inside);
                self.set_slots(group, &slots);
                rest = others;
            }
        }
    }

    /// Gives all groups of a prefix one leaf.
    fn fill(&mut self, prefix: Prefix<u32>, leaf: Leaf) {
        self.root.fill(groups_of(prefix), Group::uniform(leaf));
    }

    /// Builds the slots of a group again within changed prefixes, all longer than a group's.
    fn refresh_slots(&mut self, slots: &mut [Slot; SLOTS], changed: &[Prefix<u32>]) {
        let mut last = None;
        for change in changed {
            let prefix = Prefix::new(change.bits, change.length.min(SLOT_BITS));
            // Several changes of longer prefixes may be in one slot.
            if last.replace(prefix) == Some(prefix) {
                continue;
            }
            let covering = Slot::Leaf(self.covering(prefix));
            for slot in &mut slots[slots_of(prefix)] {
                self.store.release_block(*slot);
                *slot = covering;
            }
            self.overlay_slots(slots, &self.routes.inside(prefix));
        }
    }

    /// Writes routes into slots that are leaves where there are routes.
    fn overlay_slots(&mut self, slots: &mut [Slot; SLOTS], routes: &[Route]) {
        let mut rest = routes;
        while let Some(((prefix, id), others)) = rest.split_first() {
            if prefix.length <= SLOT_BITS {
                slots[slots_of(*prefix)].fill(Slot::Leaf(Leaf::of(Some(*id))));
                rest = others;
            } else {
                let outer = Prefix::new(prefix.bits, SLOT_BITS);
                let count = rest.iter().take_while(|(prefix, _)| outer.contains(*prefix)).count();
                let (inside, others) = rest.split_at(count);
                let slot = &mut slots[slot_of(outer.bits)];
                *slot = self.block(slot.leaf(), inside);
                rest = others;
            }
        }
    }

    /// The slot for a prefix of 24 bits with longer routes, and this leaf for its other addresses.
    fn block(&mut self, covering: Leaf, routes: &[Route]) -> Slot {
        let mut leaves = [covering; BLOCK * SLOTS];
        for (prefix, id) in routes {
            let first = prefix.bits as usize % leaves.len();
            leaves[first..first + (1 << (32 - prefix.length))].fill(Leaf::of(Some(*id)));
        }
        if leaves.iter().all(|leaf| *leaf == leaves[0]) {
            return Slot::Leaf(leaves[0]);
        }
        // Without room, the kernel forwards these packets.
        self.store.put_block(&leaves).unwrap_or(Slot::Leaf(Leaf::of(Some(NextHopId::PUNT))))
    }

    /// Gives a group these slots.
    fn set_slots(&mut self, group: usize, slots: &[Slot; SLOTS]) {
        let stored = self.store.put(slots).unwrap_or_else(|| {
            // There is no room: the kernel forwards these packets.
            slots.iter().for_each(|slot| self.store.release_block(*slot));
            Group::uniform(Leaf::of(Some(NextHopId::PUNT)))
        });
        self.root.set(group, stored);
    }

    fn covering(&self, prefix: Prefix<u32>) -> Leaf {
        Leaf::of(self.routes.covering(prefix))
    }
}

/// The groups of a prefix that is not longer than a group's.
fn groups_of(prefix: Prefix<u32>) -> RangeInclusive<usize> {
    group_of(prefix.bits)..=group_of(prefix.last().bits)
}

/// The slots of a prefix within its group.
fn slots_of(prefix: Prefix<u32>) -> RangeInclusive<usize> {
    slot_of(prefix.bits)..=slot_of(prefix.last().bits)
}

/// The slot of an address within its group.
const fn slot_of(address: u32) -> usize {
    (address >> (32 - SLOT_BITS)) as usize % SLOTS
}
