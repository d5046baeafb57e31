// SPDX-License-Identifier: Apache-2.0
//! Storage of leaves and blocks. What is freed is used again for the same size.

use super::group::{BLOCK, Group, Leaf, SLOTS, Slot};
use crate::memory::{Buffer, Pages};

/// The sizes of allocations, in places.
const SIZES: [usize; 12] = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96];

/// Most places and blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub places: usize,
    pub blocks: usize,
}

impl Limits {
    /// 1 GiB each.
    pub const DEFAULT: Self = Self { places: 1 << 29, blocks: 1 << 24 };
}

/// Leaves and blocks.
pub(super) struct Store {
    leaves: Buffer<u16>,
    used_leaves: usize,
    /// Number of groups with leaves of their own.
    groups: usize,
    /// First places of what is free, by size.
    free_leaves: [Vec<u32>; SIZES.len()],
    blocks: Buffer<[Group; BLOCK]>,
    used_blocks: usize,
    free_blocks: Vec<u32>,
    limits: Limits,
    was_full: bool,
}

impl Store {
    pub fn new(limits: Limits) -> Self {
        let mut leaves = Buffer::new(Group::SHARED, Pages::Huge);
        for (place, leaf) in leaves[..Group::SHARED].iter_mut().enumerate() {
            *leaf = Group::new(0, place as u32).uniform_leaf().0;
        }
        Self {
            leaves,
            used_leaves: Group::SHARED,
            groups: 0,
            free_leaves: Default::default(),
            blocks: Buffer::new(0, Pages::Huge),
            used_blocks: 0,
            free_blocks: Vec::new(),
            limits,
            was_full: false,
        }
    }

    /// All leaves, for reading.
    #[inline(always)]
    pub fn leaves(&self) -> &[u16] {
        &self.leaves
    }

    /// All blocks, for reading.
    #[inline(always)]
    pub fn blocks(&self) -> &[[Group; BLOCK]] {
        &self.blocks
    }

    /// Whether every group has one leaf for all slots.
    #[inline(always)]
    pub const fn is_simple(&self) -> bool {
        self.groups == 0
    }

    /// Stores the slots of a group; `None` if there is no room.
    pub fn put(&mut self, slots: &[Slot; SLOTS]) -> Option<Group> {
        let mut changes = 0;
        for (n, pair) in (1..).zip(slots.windows(2)) {
            changes |= u32::from(pair[0] != pair[1]) << n;
        }
        if changes == 0 {
            return Some(Group::uniform(slots[0].leaf()));
        }
        let has_blocks = slots.iter().any(|slot| matches!(slot, Slot::Block(_)));
        let first = self.allocate(places(Group::new(changes, 0), has_blocks))?;
        let group = Group::new(changes, first);
        for (slot, content) in (0..).zip(slots) {
            self.leaves[group.place(slot)] = content.leaf().0;
            if let Slot::Block(number) = content {
                let place = group.block_place(slot);
                self.leaves[place..place + 2].copy_from_slice(&[*number as u16, (number >> 16) as u16]);
            }
        }
        self.groups += 1;
        Some(group)
    }

    /// The slots of a group.
    pub fn slots(&self, group: Group) -> [Slot; SLOTS] {
        std::array::from_fn(|slot| match Leaf(self.leaves[group.place(slot as u32)]) {
            Leaf::BLOCK => Slot::Block(block_number(&self.leaves, group, slot as u32)),
            leaf => Slot::Leaf(leaf),
        })
    }

    /// Stores the leaves of a prefix of 24 bits, one for each address; `None` if there is no room.
    pub fn put_block(&mut self, leaves: &[Leaf; BLOCK * SLOTS]) -> Option<Slot> {
        let number = self.allocate_block()?;
        // Empty groups need not be freed.
        self.blocks[number as usize] = [Group::default(); BLOCK];
        for (n, leaves) in leaves.as_chunks().0.iter().enumerate() {
            let Some(group) = self.put(&leaves.map(Slot::Leaf)) else {
                self.release_block(Slot::Block(number));
                return None;
            };
            self.blocks[number as usize][n] = group;
        }
        Some(Slot::Block(number))
    }

    /// Frees the leaves of a group, but not its blocks.
    pub fn release(&mut self, group: Group) {
        if !group.is_shared() {
            let first = group.first() as usize;
            let has_blocks = self.leaves[first..first + group.leaves()].contains(&Leaf::BLOCK.0);
            self.free_leaves[size_class(places(group, has_blocks))].push(group.first());
            self.groups -= 1;
        }
    }

    /// Frees the block of a slot, if it has one.
    pub fn release_block(&mut self, slot: Slot) {
        if let Slot::Block(number) = slot {
            self.blocks[number as usize].into_iter().for_each(|group| self.release(group));
            self.free_blocks.push(number);
        }
    }

    /// Frees a group with its blocks.
    pub fn release_tree(&mut self, group: Group) {
        if !group.is_shared() {
            // A block belongs to one slot.
            self.slots(group).into_iter().for_each(|slot| self.release_block(slot));
            self.release(group);
        }
    }

    fn allocate(&mut self, places: usize) -> Option<u32> {
        let class = size_class(places);
        if let Some(free) = self.free_leaves[class].pop() {
            return Some(free);
        }
        let end = self.used_leaves + SIZES[class];
        if end - Group::SHARED > self.limits.places {
            self.was_full = true;
            return None;
        }
        self.leaves.reserve(end, self.used_leaves, Group::SHARED + self.limits.places);
        let first = std::mem::replace(&mut self.used_leaves, end);
        Some(first as u32)
    }

    fn allocate_block(&mut self) -> Option<u32> {
        if let Some(free) = self.free_blocks.pop() {
            return Some(free);
        }
        if self.used_blocks >= self.limits.blocks {
            self.was_full = true;
            return None;
        }
        self.blocks.reserve(self.used_blocks + 1, self.used_blocks, self.limits.blocks);
        self.used_blocks += 1;
        Some(self.used_blocks as u32 - 1)
    }

    /// Whether it refused something since it was made.
    pub const fn was_full(&self) -> bool {
        self.was_full
    }

    pub fn memory(&self) -> usize {
        let free: usize = self.free_leaves.iter().map(Vec::capacity).sum();
        size_of_val(self.leaves())
            + size_of_val(self.blocks())
            + (free + self.free_blocks.capacity()) * size_of::<u32>()
    }

    /// Whether everything is free.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        let free: usize = self.free_leaves.iter().zip(SIZES).map(|(free, size)| free.len() * size).sum();
        self.used_leaves - Group::SHARED == free
            && self.groups == 0
            && self.used_blocks == self.free_blocks.len()
    }
}

/// The number of the block of a slot.
#[inline(always)]
pub(super) fn block_number(leaves: &[u16], group: Group, slot: u32) -> u32 {
    let place = group.block_place(slot);
    u32::from(leaves[place]) | u32::from(leaves[place + 1]) << 16
}

/// How many places a group takes.
const fn places(group: Group, has_blocks: bool) -> usize {
    if has_blocks { 3 * group.leaves() } else { group.leaves() }
}

/// The smallest size that holds this many places.
fn size_class(places: usize) -> usize {
    SIZES.partition_point(|size| *size < places).min(SIZES.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::next_hop::{MAX_NEXT_HOPS, NextHopId};

    #[test]
    fn every_group_of_one_leaf_is_shared() {
        let store = Store::new(Limits::DEFAULT);
        for leaf in (0..MAX_NEXT_HOPS as u16).map(|id| Leaf::of(Some(NextHopId(id)))).chain([Leaf::NONE]) {
            assert_eq!(store.slots(Group::uniform(leaf)), [Slot::Leaf(leaf); SLOTS]);
        }
    }

    #[test]
    fn groups_of_any_size_are_kept_and_freed() {
        let mut store = Store::new(Limits::DEFAULT);
        let mut kept = Vec::new();
        for runs in 1..=SLOTS {
            let narrow = std::array::from_fn(|slot| Slot::Leaf(Leaf((slot.min(runs - 1)) as u16)));
            let block = store.put_block(&std::array::from_fn(|n| Leaf((n % runs) as u16))).unwrap();
            let mut wide = narrow;
            wide[31] = block;
            for slots in [narrow, wide] {
                let group = store.put(&slots).unwrap();
                assert_eq!(store.slots(group), slots);
                kept.push((group, slots));
            }
        }
        for (group, slots) in kept {
            assert_eq!(store.slots(group), slots);
            store.release_tree(group);
        }
        assert!(store.is_empty() && store.is_simple() && !store.was_full());
    }
}
