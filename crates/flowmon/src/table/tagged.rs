// SPDX-License-Identifier: Apache-2.0
//! Our table: two buckets of eight flows per hash, found by 16-bit tags. The tags of a bucket are 16 bytes, compared
//! all at once; an entry is read only where a tag agrees, so a look-up costs at most two cache lines of tags and, but
//! for one in some thousands, only the entry that it wants. Tags of a million flows fit the cache that their entries do
//! not.
//!
//! With the load of two buckets balanced, eight slots a bucket overflow only when nine tenths of all slots are used.

use netvm_flow_table::{Table, Tags, WAYS};

use super::{FlowTable, SlotLookup, Slots};
use crate::entry::Sample;

/// Tag of a free slot.
const FREE: u16 = 0;

/// A table of two choices with tags.
#[derive(Debug)]
pub struct Tagged {
    tags: Table<Tags>,
    slots: Slots,
}

impl Tagged {
    /// A table for at least `capacity` flows: a quarter more slots, so that random flows find room.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let order = (capacity.max(12) * 5 / 4).div_ceil(WAYS).next_power_of_two().ilog2();
        Self { tags: Table::new(Tags::ZERO, order), slots: Slots::new(order + WAYS.ilog2()) }
    }

    #[inline(always)]
    fn buckets(&self, hash: u64) -> [usize; 2] {
        let mask = self.tags.len() - 1;
        let first = hash as usize & mask;
        let second = (hash >> 32) as usize & mask;
        [first, if second == first { first ^ (mask & 1) } else { second }]
    }

    #[inline(always)]
    const fn tag(hash: u64) -> u16 {
        // The bits that the buckets of tables of up to 16 million flows do not take.
        let tag = (hash >> 48) as u16 ^ (hash >> 24) as u16;
        if tag == FREE { 1 } else { tag }
    }

    /// Takes the slot's tag.
    fn set_tag(&mut self, slot: usize, tag: u16) {
        *self.tags.at_mut(slot / WAYS).at_mut(slot) = tag;
    }

    /// Bit mask of the slots of a bucket with a tag.
    #[inline(always)]
    fn with(&self, bucket: usize, tag: u16) -> u32 {
        self.tags.at(bucket).matching(tag, u16::MAX)
    }

    /// The flow in these buckets that was silent for longest.
    #[cold]
    fn oldest(&self, buckets: [usize; 2]) -> usize {
        let slots = buckets.into_iter().flat_map(|bucket| bucket * WAYS..(bucket + 1) * WAYS);
        let last = |slot: &usize| self.slots.at(*slot).last;
        slots.min_by_key(last).unwrap_or_default()
    }
}

impl FlowTable for Tagged {
    #[inline(always)]
    fn prefetch(&self, hash: u64) {
        for bucket in self.buckets(hash) {
            self.tags.prefetch(bucket, 0);
        }
    }

    #[inline(always)]
    fn prefetch_entry(&self, hash: u64) {
        let tag = Self::tag(hash);
        for bucket in self.buckets(hash) {
            let found = self.with(bucket, tag);
            if found != 0 {
                return self.slots.prefetch(bucket * WAYS + found.trailing_zeros() as usize);
            }
        }
    }

    #[inline]
    fn look_up(&self, sample: &Sample) -> SlotLookup {
        let tag = Self::tag(sample.hash);
        let buckets = self.buckets(sample.hash);
        let mut free = [0; 2];
        for (bucket, free) in buckets.into_iter().zip(&mut free) {
            let mut found = self.with(bucket, tag);
            while found != 0 {
                let slot = bucket * WAYS + found.trailing_zeros() as usize;
                if self.slots.at(slot).key == sample.key {
                    return SlotLookup::Found(slot);
                }
                found &= found - 1;
            }
            *free = self.with(bucket, FREE);
        }
        // The emptier bucket; the first if they are alike.
        let chosen = usize::from(free[1].count_ones() > free[0].count_ones());
        match free[chosen] {
            0 => SlotLookup::Occupied(self.oldest(buckets)),
            slots => SlotLookup::Free(buckets[chosen] * WAYS + slots.trailing_zeros() as usize),
        }
    }

    #[inline]
    fn begin(&mut self, slot: usize, sample: &Sample) {
        self.set_tag(slot, Self::tag(sample.hash));
        self.slots.begin(slot, sample);
    }

    fn remove(&mut self, slot: usize) {
        self.set_tag(slot, FREE);
        self.slots.remove(slot);
    }

    #[inline(always)]
    fn slots(&self) -> Option<&Slots> {
        Some(&self.slots)
    }

    #[inline(always)]
    fn slots_mut(&mut self) -> Option<&mut Slots> {
        Some(&mut self.slots)
    }
}
