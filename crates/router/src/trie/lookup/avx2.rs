// SPDX-License-Identifier: Apache-2.0
//! Lookup with AVX2: eight addresses per vector.

#![allow(unsafe_code, reason = "gathers read memory by address")]

use std::arch::x86_64::{
    __m128i, __m256i, _mm_loadu_si128, _mm256_add_epi8, _mm256_add_epi32, _mm256_and_si256,
    _mm256_andnot_si256, _mm256_castsi128_si256, _mm256_castsi256_ps, _mm256_i32gather_epi32,
    _mm256_inserti128_si256, _mm256_mask_i32gather_epi32, _mm256_min_epu32, _mm256_movemask_ps,
    _mm256_or_si256, _mm256_set_epi64x, _mm256_set1_epi32, _mm256_set1_epi64x, _mm256_setzero_si256,
    _mm256_shuffle_epi8, _mm256_slli_epi32, _mm256_srai_epi32, _mm256_srli_epi32, _mm256_srlv_epi32,
    _mm256_storeu_si256, _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32,
    _mm256_unpacklo_epi64,
};

use super::{SHIFTS, Start, View};
use crate::next_hop::NextHopId;
use crate::trie::bits::WINDOWS;
use crate::trie::node::{Entry, Line, SLOTS, WORDS};
use crate::trie::{Address, ROOT};

/// Addresses per vector.
const LANES: usize = 8;
const BURST_VECTORS: usize = 4;
const BURST_ADDRESSES: usize = BURST_VECTORS * LANES;
/// Eight in each byte.
const OCTET: i64 = 0x0808_0808_0808_0808;

/// Like [`View::lookup`].
#[target_feature(enable = "avx2,bmi1,bmi2")]
pub(super) fn lookup(view: View<'_>, addresses: &[Address], found: &mut [NextHopId]) {
    view.in_bursts(addresses, found, |burst: &[Address; BURST_ADDRESSES], count, start| match count {
        ..=LANES => descend::<1, BURST_ADDRESSES>(view, burst, start),
        _ => descend::<BURST_VECTORS, BURST_ADDRESSES>(view, burst, start),
    });
}

/// Descends from the root until every address has reached a leaf or a test. The vectors descend together, so that the
/// loads of one do not wait for another's.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn descend<const V: usize, const N: usize>(
    view: View<'_>,
    addresses: &[Address; N],
    start: Start,
) -> [Entry; N] {
    let mut all = [Entry::NONE.bits(); N];
    let Some(addresses) = addresses.as_chunks().0.first_chunk::<V>() else {
        return all.map(Entry::from_bits);
    };
    let mut words = [[_mm256_setzero_si256(); 5]; V];
    let mut entries = [_mm256_setzero_si256(); V];
    for v in 0..V {
        words[v] = columns(&addresses[v]);
        entries[v] = if start.is_root {
            gather_root(view.root, _mm256_srli_epi32::<16>(words[v][0]))
        } else {
            _mm256_set1_epi32(start.entry.bits() as i32)
        };
    }
    let (first, mut skipped) = start.window();
    'levels: for window in usize::from(first)..usize::from(WINDOWS) {
        let mut windows = entries;
        for v in 0..V {
            let [high, low] = [words[v][window], words[v][window + 1]];
            windows[v] = _mm256_or_si256(_mm256_slli_epi32::<16>(high), _mm256_srli_epi32::<16>(low));
        }
        for shift in &SHIFTS[std::mem::take(&mut skipped)..] {
            let mut any = entries[0];
            for entries in &entries[1..] {
                any = _mm256_or_si256(any, *entries);
            }
            if have_slots(any) == 0 {
                break 'levels;
            }
            for v in 0..V {
                let slots = _mm256_srlv_epi32(windows[v], _mm256_set1_epi32((*shift).into()));
                let slots = _mm256_and_si256(slots, _mm256_set1_epi32(SLOTS as i32 - 1));
                let (numbers, leaves) = number_of(entries[v], slots);
                entries[v] = select(leaves, slots, gather_words(view.lines, numbers, entries[v]));
            }
        }
    }
    for (all, entries) in all.as_chunks_mut().0.iter_mut().zip(entries) {
        store(all, entries);
    }
    all.map(Entry::from_bits)
}

/// A bit for each entry that has slots: its sign bit.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn have_slots(entries: __m256i) -> u8 {
    _mm256_movemask_ps(_mm256_castsi256_ps(entries)) as u8
}

/// The numbers of these slots' words among those of all lines, and all ones for entries that are nodes of leaves.
/// Numbers of entries without slots are arbitrary.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn number_of(entries: __m256i, slots: __m256i) -> (__m256i, __m256i) {
    // Nodes of leaves have both of the upper bits set.
    let twice = _mm256_and_si256(entries, _mm256_slli_epi32::<1>(entries));
    let leaves = _mm256_srai_epi32::<31>(twice);
    // The line number times the words per line, which shifts out the kind. Leaves take half a word.
    let first = _mm256_slli_epi32::<4>(entries);
    let halves = _mm256_srlv_epi32(slots, _mm256_and_si256(leaves, _mm256_set1_epi32(1)));
    (_mm256_add_epi32(first, halves), leaves)
}

/// The entries of these slots, which have these words.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn select(leaves: __m256i, slots: __m256i, words: __m256i) -> __m256i {
    let odd = _mm256_and_si256(_mm256_slli_epi32::<4>(slots), _mm256_set1_epi32(16));
    let found = _mm256_srlv_epi32(words, _mm256_and_si256(odd, leaves));
    _mm256_andnot_si256(_mm256_slli_epi32::<16>(leaves), found)
}

/// The 32-bit words of each address, the most significant first; zero past the end.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn columns(addresses: &[Address; LANES]) -> [__m256i; 5] {
    let start = addresses.as_ptr().cast::<__m128i>();
    // Turns the bytes of each word around.
    let big_endian = _mm256_set1_epi64x(0x0405_0607_0001_0203);
    let big_endian = _mm256_add_epi8(big_endian, _mm256_set_epi64x(OCTET, 0, OCTET, 0));
    let pair = |n: usize| {
        // SAFETY: the array has eight times 16 bytes, and the loads need no alignment.
        let [low, high] = [n, n + 4].map(|n| unsafe { _mm_loadu_si128(start.add(n % LANES)) });
        let pair = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high);
        _mm256_shuffle_epi8(pair, big_endian)
    };
    // Addresses 0 to 3 in the lower half, 4 to 7 in the upper: a transposition of four by four words in each.
    let [a, b, c, d] = [pair(0), pair(1), pair(2), pair(3)];
    let [ab, cd] = [_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d)];
    let (first, second) = (_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
    let [ab, cd] = [_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d)];
    [first, second, _mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd), _mm256_setzero_si256()]
}

/// The entries of these slots of the root.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn gather_root(root: &[Entry; ROOT], slots: __m256i) -> __m256i {
    let slots = _mm256_and_si256(slots, _mm256_set1_epi32(ROOT as i32 - 1));
    // SAFETY: the mask above keeps each slot below the length of the array, whose items are 32-bit words.
    unsafe { _mm256_i32gather_epi32::<4>(root.as_ptr().cast(), slots) }
}

/// Loads the words with these numbers for the entries that have slots; keeps the others.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn gather_words(lines: &[Line], numbers: __m256i, entries: __m256i) -> __m256i {
    let Some(last) = last_word(lines) else { return _mm256_setzero_si256() };
    let numbers = _mm256_min_epu32(numbers, last);
    // SAFETY: lines are arrays of 32-bit words, and the minimum above keeps each number at most that of the last word.
    unsafe { _mm256_mask_i32gather_epi32::<4>(entries, lines.as_ptr().cast(), numbers, entries) }
}

/// The number of the last word of all lines, in each lane.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn last_word(lines: &[Line]) -> Option<__m256i> {
    let last = (lines.len() * WORDS).checked_sub(1)?;
    Some(_mm256_set1_epi32(last.min(i32::MAX as usize) as i32))
}

#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn store(words: &mut [u32; LANES], vector: __m256i) {
    // SAFETY: the array has 32 bytes, and the store needs no alignment.
    unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), vector) };
}
