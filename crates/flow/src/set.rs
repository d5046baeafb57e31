//! Sets of eight entries: the 16 bytes that say where in a set a key may be.

/// Entries of a set.
pub(crate) const WAYS: usize = 8;

/// Bit of a tag: the entry has been hit since the hand passed.
const REFERENCED: u16 = 1 << 15;

/// A tag per way: 0 where nothing is, or 14 bits of the hash and a 1, and [`REFERENCED`].
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub(crate) struct Set([u16; WAYS]);

impl Set {
    pub(crate) const EMPTY: Self = Self([0; WAYS]);

    /// The tag of a hash: never 0.
    #[inline(always)]
    pub(crate) const fn tag(hash: u64) -> u16 {
        ((hash >> 48) as u16 | 1) & !REFERENCED
    }

    /// The ways that have that tag, a bit each.
    #[inline(always)]
    pub(crate) fn matching(&self, tag: u16) -> u32 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE2 is in every x86-64.
        unsafe {
            use std::arch::x86_64::{_mm_and_si128, _mm_cmpeq_epi16, _mm_set1_epi16};
            let tags = _mm_and_si128(self.load(), _mm_set1_epi16(!REFERENCED as i16));
            sign_bits(_mm_cmpeq_epi16(tags, _mm_set1_epi16(tag as i16)))
        }
        #[cfg(not(target_arch = "x86_64"))]
        self.ways(|found| found & !REFERENCED == tag)
    }

    /// The ways that were hit, a bit each.
    #[inline(always)]
    fn referenced(&self) -> u32 {
        #[cfg(target_arch = "x86_64")]
        return sign_bits(self.load());
        #[cfg(not(target_arch = "x86_64"))]
        self.ways(|found| found & REFERENCED != 0)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn load(&self) -> std::arch::x86_64::__m128i {
        // SAFETY: SSE2 is in every x86-64; the load is of the 16 bytes of `self`, which are aligned to 16.
        unsafe { std::arch::x86_64::_mm_load_si128(self.0.as_ptr().cast()) }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn ways(&self, which: impl Fn(u16) -> bool) -> u32 {
        self.0.iter().rev().fold(0, |ways, tag| ways << 1 | u32::from(which(*tag)))
    }

    /// Marks a way as hit.
    #[inline(always)]
    pub(crate) fn reference(&mut self, way: usize) {
        let tag = &mut self.0[way % WAYS];
        // A set is written only when this changes something: its line stays clean for a busy flow.
        if *tag & REFERENCED == 0 {
            *tag |= REFERENCED;
        }
    }

    /// Puts a tag, not yet hit, or 0.
    #[inline(always)]
    pub(crate) fn put(&mut self, way: usize, tag: u16) {
        self.0[way % WAYS] = tag;
    }

    /// The first way that is free.
    #[inline(always)]
    pub(crate) fn free(&self) -> Option<usize> {
        match self.matching(0) {
            0 => None,
            ways => Some(ways.trailing_zeros() as usize),
        }
    }

    /// Whether anything is in a way.
    #[inline(always)]
    pub(crate) const fn is_used(&self, way: usize) -> bool {
        self.0[way % WAYS] != 0
    }

    /// CLOCK: the first way from the hand on that was not hit since the hand passed it last; were all hit, the one at
    /// the hand.
    #[inline(always)]
    pub(crate) fn coldest(&self, hand: u8) -> usize {
        let hand = u32::from(hand) % WAYS as u32;
        let cold = !self.referenced() as u8;
        let steps = cold.rotate_right(hand).trailing_zeros();
        (hand + steps) as usize % WAYS
    }

    /// Moves the hand from where it is to behind `way`, and forgets the hits of the ways that it passes.
    #[inline(always)]
    pub(crate) fn sweep(&mut self, hand: &mut u8, way: usize) {
        let mut at = usize::from(*hand) % WAYS;
        let all = self.0[way % WAYS] & REFERENCED != 0;
        if all {
            self.0.iter_mut().for_each(|tag| *tag &= !REFERENCED);
        }
        while at != way % WAYS {
            self.0[at] &= !REFERENCED;
            at = (at + 1) % WAYS;
        }
        *hand = ((at + 1) % WAYS) as u8;
    }
}

/// The upper bit of each of eight numbers.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn sign_bits(numbers: std::arch::x86_64::__m128i) -> u32 {
    // SAFETY: SSE2 is in every x86-64.
    unsafe {
        use std::arch::x86_64::{_mm_movemask_epi8, _mm_packs_epi16, _mm_setzero_si128};
        _mm_movemask_epi8(_mm_packs_epi16(numbers, _mm_setzero_si128())) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Set {
        Set([1, 2, 3, 4, 5, 6, 7, 8])
    }

    #[test]
    fn ways_are_found_by_tag_whether_hit_or_not() {
        let mut set = full();
        set.put(6, 3);
        set.reference(2);
        assert_eq!(set.matching(3), 1 << 2 | 1 << 6);
        assert_eq!(set.matching(0x7000), 0);
        assert_eq!((set.free(), Set::EMPTY.free(), Set::EMPTY.matching(1)), (None, Some(0), 0));
        set.put(5, 0);
        assert_eq!((set.free(), set.is_used(5), set.is_used(4)), (Some(5), false, true));
        for hash in [0, u64::MAX, 1 << 63, 0x1234 << 48] {
            assert!((1..1 << 15).contains(&Set::tag(hash)));
        }
    }

    #[test]
    fn the_hand_passes_what_was_hit_and_makes_it_cold() {
        let (mut set, mut hand) = (full(), 6);
        for way in [6, 7, 0] {
            set.reference(way);
        }
        assert_eq!(set.coldest(hand), 1);
        set.sweep(&mut hand, 1);
        assert_eq!((hand, set.coldest(hand)), (2, 2));
        assert_eq!(set.coldest(6), 6, "what was passed is cold");
    }

    #[test]
    fn when_all_were_hit_all_become_cold_but_for_later_hits() {
        let (mut set, mut hand) = (full(), 3);
        (0..WAYS).for_each(|way| set.reference(way));
        let way = set.coldest(hand);
        assert_eq!(way, 3);
        set.sweep(&mut hand, way);
        assert_eq!(hand, 4);
        set.reference(4);
        assert_eq!(set.coldest(hand), 5);
    }
}
