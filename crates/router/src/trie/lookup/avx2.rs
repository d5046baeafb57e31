//! Lookup with AVX2: eight addresses of IPv6 per vector. Those of IPv4 are looked up one at a time, with its other instructions.

#![allow(unsafe_code, reason = "gathers read memory by address")]

use std::arch::x86_64::{
    __m128i, __m256i, _mm_loadu_si128, _mm256_add_epi8, _mm256_add_epi32, _mm256_and_si256,
    _mm256_andnot_si256, _mm256_castsi128_si256, _mm256_i32gather_epi32, _mm256_inserti128_si256,
    _mm256_loadu_si256, _mm256_mask_i32gather_epi32, _mm256_min_epu32, _mm256_movemask_epi8, _mm256_or_si256,
    _mm256_set_epi64x, _mm256_set1_epi32, _mm256_set1_epi64x, _mm256_setzero_si256, _mm256_shuffle_epi8,
    _mm256_slli_epi32, _mm256_srai_epi32, _mm256_srli_epi32, _mm256_srlv_epi32, _mm256_storeu_si256,
    _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64,
};

use super::{SHIFTS, Start, View, plain};
use crate::next_hop::NextHopId;
use crate::trie::ROOT;
use crate::trie::bits::Key;
use crate::trie::node::{Entry, Line, SLOTS, WORDS};

/// Addresses per vector.
const LANES: usize = 8;
const MANY_VECTORS: usize = 4;
const MANY: usize = MANY_VECTORS * LANES;
/// Eight in each byte.
const OCTET: i64 = 0x0808_0808_0808_0808;

/// Like [`View::lookup`].
#[target_feature(enable = "avx2,bmi1,bmi2")]
pub(super) fn lookup<K: Key>(view: View<'_>, addresses: &[K], found: &mut [NextHopId]) {
    // Two levels are too few for gathers to pay: they are slow on AMD's processors, and on Intel's since Downfall.
    if K::WINDOWS == 1 {
        return plain::lookup(view, addresses, found);
    }
    view.in_bursts(addresses, found, |burst: &[K; MANY], count, start| match count {
        ..=LANES => descend::<K, 1, MANY>(view, burst, start),
        _ => descend::<K, MANY_VECTORS, MANY>(view, burst, start),
    });
}

/// Descends from the root until every address has reached a leaf or a test. The vectors descend together, so that the
/// loads of one do not wait for another's.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn descend<K: Key, const V: usize, const N: usize>(
    view: View<'_>,
    addresses: &[K; N],
    start: Start,
) -> [Entry; N] {
    let mut all = [Entry::NONE; N];
    let Some(addresses) = addresses.as_chunks().0.first_chunk::<V>() else { return all };
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
    let one = _mm256_set1_epi32(1);
    let (first, mut skipped) = start.window::<K>();
    'levels: for window in usize::from(first)..usize::from(K::WINDOWS) {
        let mut windows = entries;
        for v in 0..V {
            let [high, low] = [words[v][window], words[v][window + 1]];
            windows[v] = _mm256_or_si256(_mm256_slli_epi32::<16>(high), _mm256_srli_epi32::<16>(low));
        }
        for shift in &SHIFTS[std::mem::take(&mut skipped)..] {
            // The sign bit of an entry says whether it has slots.
            let mut open = entries[0];
            for entries in &entries[1..] {
                open = _mm256_or_si256(open, *entries);
            }
            if _mm256_movemask_epi8(open) as u32 & 0x8888_8888 == 0 {
                break 'levels;
            }
            for v in 0..V {
                // All ones for nodes of leaves, whose entries have both of the upper bits set.
                let twice = _mm256_and_si256(entries[v], _mm256_slli_epi32::<1>(entries[v]));
                let leaves = _mm256_srai_epi32::<31>(twice);
                let slot = _mm256_srlv_epi32(windows[v], _mm256_set1_epi32((*shift).into()));
                let slot = _mm256_and_si256(slot, _mm256_set1_epi32(SLOTS as i32 - 1));
                // The line number times the words per line, which shifts out the kind. Leaves take half a word.
                let first = _mm256_slli_epi32::<4>(entries[v]);
                let number = _mm256_add_epi32(first, _mm256_srlv_epi32(slot, _mm256_and_si256(leaves, one)));
                let found = gather_words(view.lines, number, entries[v]);
                let odd = _mm256_and_si256(_mm256_slli_epi32::<4>(slot), _mm256_set1_epi32(16));
                let found = _mm256_srlv_epi32(found, _mm256_and_si256(odd, leaves));
                entries[v] = _mm256_andnot_si256(_mm256_slli_epi32::<16>(leaves), found);
            }
        }
    }
    for (all, entries) in all.as_chunks_mut().0.iter_mut().zip(entries) {
        *all = store(entries);
    }
    all
}

/// The 32-bit words of each address, the most significant first; zero past the end.
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn columns<K: Key>(addresses: &[K; LANES]) -> [__m256i; 5] {
    const { assert!(size_of::<K>() == 4 || size_of::<K>() == 16) };
    let none = _mm256_setzero_si256();
    if size_of::<K>() == 4 {
        // SAFETY: the array has 32 bytes, and the load needs no alignment.
        let first = unsafe { _mm256_loadu_si256(addresses.as_ptr().cast()) };
        return [first, none, none, none, none];
    }
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
    [first, second, _mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd), none]
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
    let Some(last) = (lines.len() * WORDS).checked_sub(1) else { return _mm256_setzero_si256() };
    let numbers = _mm256_min_epu32(numbers, _mm256_set1_epi32(last.min(i32::MAX as usize) as i32));
    // SAFETY: lines are arrays of 32-bit words, and the minimum above keeps each number at most that of the last word.
    unsafe { _mm256_mask_i32gather_epi32::<4>(entries, lines.as_ptr().cast(), numbers, entries) }
}

#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn store(vector: __m256i) -> [Entry; LANES] {
    let mut words = [0; LANES];
    // SAFETY: the array has 32 bytes, and the store needs no alignment.
    unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), vector) };
    words.map(Entry::from_bits)
}
