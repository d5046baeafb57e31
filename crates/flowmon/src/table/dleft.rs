// SPDX-License-Identifier: Apache-2.0
//! The paper's `flow` monitor: a d-left hash table (Vöcking, How asymmetry helps load balancing, JACM 50(4), 2003;
//! Schultz and Crowley, section III-E). Each flow has one bucket in each of four subtables; a new flow goes into the
//! emptiest of them, the leftmost if several are. A look-up compares the keys in all four.

use super::{FlowTable, SlotLookup, Slots};
use crate::entry::Sample;

/// Subtables.
const SUBTABLES: usize = 4;
/// Entries of a bucket.
const WIDTH: usize = 4;

/// A d-left table of keys and counters without tags.
#[derive(Debug)]
pub struct DLeft {
    /// Subtable by subtable, bucket by bucket.
    slots: Slots,
    /// Buckets of a subtable, a power of two.
    buckets: usize,
}

impl DLeft {
    /// A table for at least `capacity` flows: a third more slots, so that random flows find room.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let buckets = (capacity.max(12) * 4 / 3).div_ceil(SUBTABLES * WIDTH).next_power_of_two();
        Self { slots: Slots::new((SUBTABLES * WIDTH * buckets).ilog2()), buckets }
    }

    /// First slot of the bucket in a subtable: each takes 16 bits of its own of the hash, mixed with the rest.
    #[inline(always)]
    fn bucket(&self, hash: u64, subtable: usize) -> usize {
        let own = hash.rotate_right(16 * subtable as u32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        WIDTH * (subtable * self.buckets + (own as usize & (self.buckets - 1)))
    }
}

impl FlowTable for DLeft {
    fn look_up(&self, sample: &Sample) -> SlotLookup {
        let (mut free, mut most, mut oldest, mut age) = (None, 0, 0, u64::MAX);
        for subtable in 0..SUBTABLES {
            let first = self.bucket(sample.hash, subtable);
            let mut empty = 0;
            for slot in first..first + WIDTH {
                let entry = self.slots.at(slot);
                if !entry.used {
                    empty += 1;
                    if empty > most {
                        // The bucket is emptier than all before: its last empty slot.
                        (free, most) = (Some(slot), empty);
                    }
                } else if entry.key == sample.key {
                    return SlotLookup::Found(slot);
                } else if entry.last < age {
                    (oldest, age) = (slot, entry.last);
                }
            }
        }
        free.map_or(SlotLookup::Occupied(oldest), SlotLookup::Free)
    }

    fn begin(&mut self, slot: usize, sample: &Sample) {
        self.slots.begin(slot, sample);
    }

    fn remove(&mut self, slot: usize) {
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
