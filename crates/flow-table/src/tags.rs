// SPDX-License-Identifier: Apache-2.0
//! Eight tags of 16 bits: a cache line has those of four sets.

/// Tags of a set.
pub const WAYS: usize = 8;

/// The tags of a set, by way. What a tag of 0 means is up to the table: to both tables of this workspace, the way is
/// free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Tags([u16; WAYS]);

impl Tags {
    /// Tags that are all 0.
    pub const ZERO: Self = Self([0; WAYS]);

    /// These tags.
    #[must_use]
    pub const fn new(tags: [u16; WAYS]) -> Self {
        Self(tags)
    }

    /// Bit mask of the ways whose tag, as far as `mask` shows it, is `tag`.
    #[inline(always)]
    #[must_use]
    pub fn matching(&self, tag: u16, mask: u16) -> u32 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE2 is in every x86-64.
        unsafe {
            use std::arch::x86_64::{_mm_and_si128, _mm_cmpeq_epi16, _mm_set1_epi16};
            let tags = _mm_and_si128(self.load(), _mm_set1_epi16(mask.cast_signed()));
            sign_bits(_mm_cmpeq_epi16(tags, _mm_set1_epi16(tag.cast_signed())))
        }
        #[cfg(not(target_arch = "x86_64"))]
        self.ways(|found| found & mask == tag)
    }

    /// Bit mask of the ways whose tag is less than `limit`, an even number.
    #[inline(always)]
    #[must_use]
    pub fn below(&self, limit: u16) -> u32 {
        debug_assert!(limit.is_multiple_of(2));
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE2 is in every x86-64.
        unsafe {
            use std::arch::x86_64::{_mm_cmplt_epi16, _mm_set1_epi16, _mm_srli_epi16};
            // Halved, so that tags are not negative in the signed comparison.
            let tags = _mm_srli_epi16::<1>(self.load());
            sign_bits(_mm_cmplt_epi16(tags, _mm_set1_epi16((limit / 2).cast_signed())))
        }
        #[cfg(not(target_arch = "x86_64"))]
        self.ways(|found| found < limit)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn load(&self) -> std::arch::x86_64::__m128i {
        // SAFETY: SSE2 is in every x86-64; loads the 16 bytes of `self`, which are aligned to 16.
        unsafe { std::arch::x86_64::_mm_load_si128(self.0.as_ptr().cast()) }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn ways(&self, which: impl Fn(u16) -> bool) -> u32 {
        self.0.iter().rev().fold(0, |ways, tag| ways << 1 | u32::from(which(*tag)))
    }

    /// The tag of a way, which wraps.
    #[inline(always)]
    #[must_use]
    pub const fn at(&self, way: usize) -> u16 {
        self.0[way % WAYS]
    }

    /// The tag of a way, which wraps, to change it.
    #[inline(always)]
    pub const fn at_mut(&mut self, way: usize) -> &mut u16 {
        &mut self.0[way % WAYS]
    }

    /// All tags, to change them.
    #[inline(always)]
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, u16> {
        self.0.iter_mut()
    }
}

/// Bit mask of the upper bits of eight numbers.
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

    const TAGS: [u16; WAYS] = [0, 1, 5, 0x4005, 0x7fff, 0x8000, 0xc005, 0xffff];

    fn ways(which: impl Fn(u16) -> bool) -> u32 {
        (0..WAYS).map(|way| u32::from(which(TAGS[way])) << way).sum()
    }

    #[test]
    fn ways_are_found_by_all_bits_of_a_tag_or_by_some() {
        let tags = Tags::new(TAGS);
        for mask in [0xffff, 0x3fff, 0x00ff, 0] {
            for tag in TAGS {
                assert_eq!(tags.matching(tag, mask), ways(|found| found & mask == tag), "{tag:x} {mask:x}");
            }
        }
    }

    #[test]
    fn tags_are_compared_without_a_sign() {
        let tags = Tags::new(TAGS);
        for limit in [0, 2, 6, 0x4000, 0x4006, 0x7ffe, 0x8000, 0xfffe] {
            assert_eq!(tags.below(limit), ways(|found| found < limit), "{limit:x}");
        }
    }

    #[test]
    fn a_way_that_is_too_large_wraps() {
        let mut tags = Tags::ZERO;
        *tags.at_mut(9) = 7;
        assert_eq!((tags.at(1), tags.at(17), tags.matching(7, u16::MAX)), (7, 7, 2));
    }
}
