// SPDX-License-Identifier: Apache-2.0
//! Sets of eight tags: 16 bytes that tell in which ways of a set a key may be.

use netvm_flow_table::{Tags, WAYS};

/// Bits of a tag: the entry's usage count, 0 to 3. A hit sets it to 3; ageing lowers it by one step.
const USAGE: u16 = 3 << 14;
/// A usage count of 1.
const USAGE_STEP: u16 = 1 << 14;

/// The way where the search for a victim starts (bits 0 to 2), and the way to age next (bits 3 to 5).
pub(crate) type Hand = u8;

/// A tag per way: 0 if free, else 13 bits of the hash, a 1, and [`USAGE`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Set(Tags);

impl Set {
    pub(crate) const EMPTY: Self = Self(Tags::ZERO);

    /// The tag of a hash: never 0.
    #[inline(always)]
    pub(crate) const fn tag(hash: u64) -> u16 {
        ((hash >> 48) as u16 | 1) & !USAGE
    }

    /// Bit mask of the ways with this tag.
    #[inline(always)]
    pub(crate) fn matching(&self, tag: u16) -> u32 {
        self.0.matching(tag, !USAGE)
    }

    /// Bit mask of the ways whose usage count is 0.
    #[inline(always)]
    fn unused(&self) -> u32 {
        self.0.below(USAGE_STEP)
    }

    /// Sets the usage count of a way to the highest.
    #[inline(always)]
    pub(crate) fn mark_used(&mut self, way: usize) {
        let tag = self.0.at_mut(way);
        // Writes only on a change, so that a busy flow's line stays clean.
        if *tag < USAGE {
            *tag |= USAGE;
        }
    }

    /// Sets a tag with a usage count of 0, or no tag.
    #[inline(always)]
    pub(crate) fn put(&mut self, way: usize, tag: u16) {
        *self.0.at_mut(way) = tag;
    }

    /// The first free way.
    #[inline(always)]
    pub(crate) fn free(&self) -> Option<usize> {
        match self.matching(0) {
            0 => None,
            ways => Some(ways.trailing_zeros() as usize),
        }
    }

    /// Whether a way is in use.
    #[inline(always)]
    pub(crate) const fn is_used(&self, way: usize) -> bool {
        self.0.at(way) != 0
    }

    /// The first way from the hand on whose usage count is 0, else the way at the hand.
    #[inline(always)]
    pub(crate) fn evictable(&self, hand: Hand) -> usize {
        let hand = u32::from(hand) % WAYS as u32;
        let steps = (self.unused() as u8).rotate_right(hand).trailing_zeros();
        (hand + steps) as usize % WAYS
    }

    /// Selects the way to evict and advances the hand. Each insertion ages one way, in turn; all ways while
    /// no usage count is 0.
    #[inline]
    pub(crate) fn evict(&mut self, hand: &mut Hand) -> usize {
        const WAY_BITS: u32 = WAYS.trailing_zeros();
        let aged = usize::from(*hand >> WAY_BITS) % WAYS;
        age(self.0.at_mut(aged));
        while self.unused() == 0 {
            self.0.iter_mut().for_each(age);
        }
        let way = self.evictable(*hand);
        *hand = ((((aged + 1) % WAYS) << WAY_BITS) | ((way + 1) % WAYS)) as u8;
        way
    }
}

#[inline(always)]
const fn age(tag: &mut u16) {
    if *tag >= USAGE_STEP {
        *tag -= USAGE_STEP;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Set {
        Set(Tags::new([1, 3, 5, 7, 9, 11, 13, 0x3fff]))
    }

    #[test]
    fn ways_are_found_by_tag_at_any_usage_count() {
        let mut set = full();
        set.put(6, 5);
        set.mark_used(2);
        assert_eq!(set.matching(5), 1 << 2 | 1 << 6);
        assert_eq!((set.matching(0x3001), set.matching(0x3fff)), (0, 1 << 7));
        assert_eq!((set.free(), Set::EMPTY.free(), Set::EMPTY.matching(1)), (None, Some(0), 0));
        set.put(5, 0);
        assert_eq!((set.free(), set.is_used(5), set.is_used(4)), (Some(5), false, true));
        for hash in [0, u64::MAX, 1 << 63, 0x1234 << 48] {
            assert!((1..USAGE_STEP).contains(&Set::tag(hash)));
        }
    }

    #[test]
    fn a_used_way_is_evicted_only_after_ageing() {
        let (mut set, mut hand) = (full(), 0);
        set.mark_used(5);
        assert_eq!(set.unused(), 0xff & !(1 << 5));
        let victims: Vec<usize> = (0..24).map(|_| set.evict(&mut hand)).collect();
        assert_eq!(victims[..8], [0, 1, 2, 3, 4, 6, 7, 0]);
        // Aged by the 6th, 14th and 22nd insertion, and evicted when the hand reaches it.
        assert_eq!(victims.iter().position(|way| *way == 5), None);
        assert_eq!((0..7).map(|_| set.evict(&mut hand)).find(|way| *way == 5), Some(5));
    }

    #[test]
    fn if_all_are_warm_the_way_at_the_hand_is_evicted() {
        let (mut set, mut hand) = (full(), 7 << 3 | 3);
        (0..WAYS).for_each(|way| set.mark_used(way));
        assert_eq!((set.evictable(hand), set.evict(&mut hand)), (3, 7), "way 7 was aged once more");
        assert_eq!(hand, 0);
        set.mark_used(0);
        assert_eq!(set.evict(&mut hand), 7);
    }
}
