// SPDX-License-Identifier: Apache-2.0
//! A hash index of fixed size: from hashes to numbers, in buckets of a cache line.
//!
//! ```text
//!  hash ──┬─ as a fraction of 2^32 ──▶ home bucket: 12 tags of 8 bits │ passed │ 12 numbers
//!         └─ lowest 8 bits ──────────▶ tag: never 0, which is a free place
//! ```
//!
//! A number is in its home bucket, or if that is full, in the next one with room. Each bucket counts the numbers that
//! have passed it so (as in Folly's F14), so a search ends at the first bucket that none has passed, and nothing moves
//! when a number is removed. Four fifths of the places are in use at most: then 1 of 20 numbers is not in its home.

use netvm_flow_table::{Array, NoMemory};

/// Places of a bucket.
const WAYS: usize = 12;
/// Of so many places, at most
const OF_PLACES: u64 = 5;
/// so many are in use.
const IN_USE: u64 = 4;

/// Numbers by hash.
pub(crate) struct Index {
    buckets: Array<Bucket>,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Bucket {
    tags: [u8; WAYS],
    /// Numbers whose search goes on from here. At its maximum it stays, and searches go on for ever.
    passed: u32,
    numbers: [u32; WAYS],
}

const _: () = assert!(size_of::<Bucket>() == 64);

const EMPTY: Bucket = Bucket { tags: [0; WAYS], passed: 0, numbers: [0; WAYS] };

const fn tag_of(hash: u32) -> u8 {
    match hash as u8 {
        0 => 1,
        tag => tag,
    }
}

impl Bucket {
    /// The ways with this tag, the lowest ones first: a bit mask with eight bits for a way. Above a way that has the
    /// tag there may be ways that do not.
    #[inline(always)]
    fn with_tag(&self, tag: u8) -> u128 {
        const ONES: u128 = u128::MAX / 255;
        const HIGH: u128 = ONES << 7;
        const ALL: u128 = (1 << (8 * WAYS)) - 1;
        let mut bytes = [0; 16];
        bytes[..WAYS].copy_from_slice(&self.tags);
        let differing = u128::from_le_bytes(bytes) ^ (ONES * u128::from(tag));
        differing.wrapping_sub(ONES) & !differing & HIGH & ALL
    }

    /// The first way whose tag is this one, and whose number is accepted.
    #[inline(always)]
    fn find(&self, tag: u8, is_it: impl Fn(u32) -> bool) -> Option<usize> {
        let mut ways = self.with_tag(tag);
        while ways != 0 {
            let way = ways.trailing_zeros() as usize / 8;
            if self.tags[way] == tag && is_it(self.numbers[way]) {
                return Some(way);
            }
            ways &= ways - 1;
        }
        None
    }
}

impl Index {
    /// For at most `most` numbers.
    pub(crate) fn new(most: u32) -> Result<Self, NoMemory> {
        let places = (u64::from(most) * OF_PLACES).div_ceil(IN_USE);
        // A bucket more than needed, so that a small index has a free place, too.
        let buckets = places.div_ceil(WAYS as u64) as usize + 1;
        Ok(Self { buckets: Array::try_new(EMPTY, buckets)? })
    }

    /// The bucket in which a search begins.
    #[inline(always)]
    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.buckets.len() as u64) >> 32) as usize
    }

    #[inline(always)]
    fn next(&self, bucket: usize) -> usize {
        if bucket + 1 < self.buckets.len() { bucket + 1 } else { 0 }
    }

    /// Prefetches the home of a hash.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u32) {
        self.buckets.prefetch(self.home(hash), 0);
    }

    /// The first number in the home of a hash that may have it.
    #[inline(always)]
    pub(crate) fn likely(&self, hash: u32) -> Option<u32> {
        let bucket = self.buckets.at(self.home(hash));
        bucket.find(tag_of(hash), |_| true).map(|way| bucket.numbers[way])
    }

    /// A number that may have this hash, and that `is_it` accepts.
    #[inline(always)]
    pub(crate) fn find(&self, hash: u32, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let (tag, mut at) = (tag_of(hash), self.home(hash));
        for _ in 0..self.buckets.len() {
            let bucket = self.buckets.at(at);
            if let Some(way) = bucket.find(tag, &is_it) {
                return Some(bucket.numbers[way]);
            }
            if bucket.passed == 0 {
                break;
            }
            at = self.next(at);
        }
        None
    }

    /// Adds a number. There must be room.
    pub(crate) fn insert(&mut self, hash: u32, number: u32) {
        let mut at = self.home(hash);
        for _ in 0..self.buckets.len() {
            let bucket = self.buckets.at_mut(at);
            if let Some(way) = bucket.find(0, |_| true) {
                (bucket.tags[way], bucket.numbers[way]) = (tag_of(hash), number);
                return;
            }
            bucket.passed = bucket.passed.saturating_add(1);
            at = self.next(at);
        }
    }

    /// Removes a number that was added with this hash.
    pub(crate) fn remove(&mut self, hash: u32, number: u32) {
        let (tag, home) = (tag_of(hash), self.home(hash));
        let mut at = home;
        for _ in 0..self.buckets.len() {
            let bucket = self.buckets.at_mut(at);
            if let Some(way) = bucket.find(tag, |it| it == number) {
                bucket.tags[way] = 0;
                return self.forget_passing(home, at);
            }
            if bucket.passed == 0 {
                return;
            }
            at = self.next(at);
        }
    }

    /// A number that had passed the buckets from its home on is gone from this one.
    fn forget_passing(&mut self, home: usize, from: usize) {
        let mut at = home;
        while at != from {
            let passed = &mut self.buckets.at_mut(at).passed;
            *passed -= u32::from(*passed != u32::MAX);
            at = self.next(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_has_what_a_set_has(steps in prop::collection::vec((any::<bool>(), 0u32..40, 0u32..6), 0..600)) {
            let (mut index, mut set) = (Index::new(64).unwrap(), BTreeSet::new());
            for (adds, number, spread) in steps {
                // Few hashes, so that buckets are full, and the last one passes numbers to the first one.
                let hash = (u32::MAX - 2).wrapping_add(spread);
                if adds && set.len() < 64 && set.insert((hash, number)) {
                    index.insert(hash, number);
                } else if !adds && set.remove(&(hash, number)) {
                    index.remove(hash, number);
                }
                for spread in 0..6 {
                    let hash = (u32::MAX - 2).wrapping_add(spread);
                    for number in 0..40 {
                        let found = index.find(hash, |it| it == number);
                        // Another hash with the same tag may have led there.
                        let same_tag = |it: &&(u32, u32)| it.1 == number && tag_of(it.0) == tag_of(hash);
                        prop_assert!(found.is_some() || !set.contains(&(hash, number)));
                        prop_assert!(found.is_none() || set.iter().find(same_tag).is_some());
                    }
                }
            }
            set.iter().for_each(|(hash, number)| index.remove(*hash, *number));
            prop_assert!(index.buckets.iter().all(|it| it.passed == 0 && it.tags == [0; WAYS]));
        }
    }

    #[test]
    fn a_full_index_has_all_numbers_and_few_are_far_from_home() {
        for most in [1, 2, 11, 12, 13, 1000, 100_000] {
            let mut index = Index::new(most).unwrap();
            // Multiplied by an odd number, so that hashes differ in all bits.
            let hash =
                |number: u32| number.wrapping_mul(0x9e37_79b1).rotate_left(7).wrapping_mul(0x85eb_ca6b);
            (0..most).for_each(|number| index.insert(hash(number), number));
            assert!((0..most).all(|number| index.find(hash(number), |it| it == number) == Some(number)));
            let at_home = |number: &u32| {
                let bucket = index.buckets.at(index.home(hash(*number)));
                bucket.find(tag_of(hash(*number)), |it| it == *number).is_some()
            };
            let home = (0..most).filter(at_home).count() as u32;
            assert!(home >= most - most / 10, "{home} of {most}");
            (0..most).for_each(|number| index.remove(hash(number), number));
            assert!((0..most).all(|number| index.find(hash(number), |it| it == number).is_none()));
        }
    }
}
