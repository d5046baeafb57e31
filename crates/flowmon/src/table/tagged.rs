//! Our table: two buckets of eight flows per hash, found by 16-bit tags. The tags of a bucket are 16 bytes, compared all
//! at once; an entry is read only where a tag agrees, so a look-up costs at most two cache lines of tags and, but for one
//! in some thousands, only the entry that it wants. Tags of a million flows fit the cache that their entries do not.
//!
//! With the load of two buckets balanced, eight slots a bucket overflow only when nine tenths of all slots are used.

use super::{FlowTable, Place, Slots};
use crate::entry::Sample;

/// Entries of a bucket.
const WIDTH: usize = 8;

/// Tag of a free slot.
const FREE: u16 = 0;

#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(16))]
struct Tags([u16; WIDTH]);

impl Tags {
    /// A bit for each slot with this tag.
    #[inline(always)]
    fn with(&self, tag: u16) -> u32 {
        let mut found = 0;
        for (slot, other) in self.0.iter().enumerate() {
            found |= u32::from(*other == tag) << slot;
        }
        found
    }
}

/// A table of two choices with tags.
#[derive(Debug)]
pub struct Tagged {
    tags: Box<[Tags]>,
    slots: Slots,
}

impl Tagged {
    /// A table for at least `capacity` flows: a quarter more slots, so that random flows find room.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let buckets = (capacity.max(12) * 5 / 4).div_ceil(WIDTH).next_power_of_two();
        Self { tags: vec![Tags::default(); buckets].into_boxed_slice(), slots: Slots::new(WIDTH * buckets) }
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
        if let Some(place) = self.tags.get_mut(slot / WIDTH).and_then(|tags| tags.0.get_mut(slot % WIDTH)) {
            *place = tag;
        }
    }

    /// The flow in these buckets that was silent for longest.
    #[cold]
    fn oldest(&self, buckets: [usize; 2]) -> usize {
        let slots = buckets.into_iter().flat_map(|bucket| bucket * WIDTH..(bucket + 1) * WIDTH);
        let last = |slot: &usize| self.slots.get(*slot).map(|entry| entry.last);
        slots.min_by_key(last).unwrap_or_default()
    }
}

impl FlowTable for Tagged {
    #[inline(always)]
    fn warm(&self, hash: u64) -> u64 {
        let word = |bucket: usize| self.tags.get(bucket).map_or(0, |tags| u64::from(tags.0[0]));
        let [first, second] = self.buckets(hash);
        word(first) ^ word(second)
    }

    #[inline(always)]
    fn warm_entry(&self, hash: u64) -> u64 {
        let tag = Self::tag(hash);
        for bucket in self.buckets(hash) {
            let found = self.tags.get(bucket).map_or(0, |tags| tags.with(tag));
            if found != 0 {
                let slot = bucket * WIDTH + found.trailing_zeros() as usize;
                return self.slots.get(slot).map_or(0, |entry| entry.last ^ entry.first);
            }
        }
        0
    }

    #[inline]
    fn place(&self, sample: &Sample) -> Place {
        let tag = Self::tag(sample.hash);
        let buckets = self.buckets(sample.hash);
        let mut free = [0; 2];
        for (bucket, free) in buckets.into_iter().zip(&mut free) {
            let Some(tags) = self.tags.get(bucket) else { continue };
            let mut found = tags.with(tag);
            while found != 0 {
                let slot = bucket * WIDTH + found.trailing_zeros() as usize;
                if self.slots.get(slot).is_some_and(|entry| entry.key == sample.key) {
                    return Place::Found(slot);
                }
                found &= found - 1;
            }
            *free = tags.with(FREE);
        }
        // The emptier bucket; the first if they are alike.
        let chosen = usize::from(free[1].count_ones() > free[0].count_ones());
        match free[chosen] {
            0 => Place::Taken(self.oldest(buckets)),
            slots => Place::Free(buckets[chosen] * WIDTH + slots.trailing_zeros() as usize),
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
