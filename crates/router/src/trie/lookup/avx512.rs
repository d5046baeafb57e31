// SPDX-License-Identifier: Apache-2.0
//! Lookup with AVX-512: sixteen addresses per vector.

#![allow(unsafe_code, reason = "gathers read memory by address")]

use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_and_si512, _mm512_castsi512_si256, _mm512_cmpge_epu32_mask,
    _mm512_cmplt_epi32_mask, _mm512_i32gather_epi32, _mm512_inserti64x4, _mm512_loadu_si512,
    _mm512_mask_and_epi32, _mm512_mask_i32gather_epi32, _mm512_mask_srli_epi32, _mm512_mask_test_epi32_mask,
    _mm512_min_epu32, _mm512_or_si512, _mm512_permutex2var_epi32, _mm512_set_epi64, _mm512_set1_epi32,
    _mm512_setr_epi32, _mm512_setzero_si512, _mm512_shuffle_epi8, _mm512_slli_epi32, _mm512_srli_epi32,
    _mm512_srlv_epi32, _mm512_storeu_si512,
};

use super::{SHIFTS, Start, View};
use crate::next_hop::NextHopId;
use crate::trie::bits::WINDOWS;
use crate::trie::node::{Entry, Line, SLOTS, WORDS};
use crate::trie::{Address, ROOT};

/// Addresses per vector.
const LANES: usize = 16;

/// Like [`View::lookup`].
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn lookup(view: View<'_>, addresses: &[Address], found: &mut [NextHopId]) {
    const LARGE_BURST: usize = 4 * LANES;
    const SMALL_BURST: usize = 2 * LANES;
    let (large, rest) = addresses.split_at(addresses.len() / LARGE_BURST * LARGE_BURST);
    let (of_large, of_rest) = found.split_at_mut(large.len().min(found.len()));
    view.in_bursts(large, of_large, |burst: &[Address; LARGE_BURST], _, start| {
        descend::<4, LARGE_BURST>(view, burst, start)
    });
    view.in_bursts(rest, of_rest, |burst: &[Address; SMALL_BURST], count, start| match count {
        ..=LANES => descend::<1, SMALL_BURST>(view, burst, start),
        _ => descend::<2, SMALL_BURST>(view, burst, start),
    });
}

/// Descends from the root until every address has reached a leaf or a test. The vectors descend together, so that the
/// loads of one do not wait for another's.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn descend<const V: usize, const N: usize>(
    view: View<'_>,
    addresses: &[Address; N],
    start: Start,
) -> [Entry; N] {
    let mut all = [Entry::NONE; N];
    let Some(addresses) = addresses.as_chunks().0.first_chunk::<V>() else { return all };
    let (first, mut skipped) = start.window();
    let mut words: [__m512i; V] = std::array::from_fn(|v| word(&addresses[v], first));
    let mut entries: [__m512i; V] = if !start.is_root {
        [_mm512_set1_epi32(start.entry.bits() as i32); V]
    } else {
        std::array::from_fn(|v| gather_root(view.root, _mm512_srli_epi32::<16>(words[v])))
    };
    'levels: for window in first..WINDOWS {
        let mut windows = words;
        for v in 0..V {
            let next = word(&addresses[v], window + 1);
            windows[v] = _mm512_or_si512(_mm512_slli_epi32::<16>(words[v]), _mm512_srli_epi32::<16>(next));
            words[v] = next;
        }
        for shift in &SHIFTS[std::mem::take(&mut skipped)..] {
            let open: [u16; V] =
                std::array::from_fn(|v| _mm512_cmplt_epi32_mask(entries[v], _mm512_setzero_si512()));
            if open.iter().all(|open| *open == 0) {
                break 'levels;
            }
            for v in 0..V {
                let leaves = _mm512_cmpge_epu32_mask(entries[v], _mm512_set1_epi32(Entry::LEAVES as i32));
                let slot = _mm512_srlv_epi32(windows[v], _mm512_set1_epi32((*shift).into()));
                let slot = _mm512_and_si512(slot, _mm512_set1_epi32(SLOTS as i32 - 1));
                // The line number times the words per line, which shifts out the kind. Leaves take half a word.
                let first = _mm512_slli_epi32::<4>(entries[v]);
                let word = _mm512_add_epi32(first, _mm512_mask_srli_epi32::<1>(slot, leaves, slot));
                let found = gather_words(view.lines, word, open[v], entries[v]);
                let odd = _mm512_mask_test_epi32_mask(leaves, slot, _mm512_set1_epi32(1));
                let found = _mm512_mask_srli_epi32::<16>(found, odd, found);
                entries[v] = _mm512_mask_and_epi32(found, leaves, found, _mm512_set1_epi32(0xffff));
            }
        }
    }
    for (all, entries) in all.as_chunks_mut().0.iter_mut().zip(entries) {
        *all = store(entries);
    }
    all
}

/// 32-bit word `number` of each address, from the most significant one; zero past the end.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn word(addresses: &[Address; LANES], number: u8) -> __m512i {
    let start = addresses.as_ptr().cast::<__m512i>();
    if number > 3 {
        return _mm512_setzero_si512();
    }
    // SAFETY: the array has four times 64 bytes, and the loads need no alignment.
    let [a, b, c, d] = [0, 1, 2, 3].map(|n| unsafe { _mm512_loadu_si512(start.add(n)) });
    // Picks one word of each of eight addresses, from two vectors of four addresses.
    let picked = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 0, 0, 0, 0, 0, 0, 0);
    let picked = _mm512_add_epi32(picked, _mm512_set1_epi32(number.into()));
    let (low, high) = (_mm512_permutex2var_epi32(a, picked, b), _mm512_permutex2var_epi32(c, picked, d));
    let words = _mm512_inserti64x4::<1>(low, _mm512_castsi512_si256(high));
    // The bytes are in the order of the wire.
    let [low, high] = [0x0405_0607_0001_0203, 0x0c0d_0e0f_0809_0a0b];
    _mm512_shuffle_epi8(words, _mm512_set_epi64(high, low, high, low, high, low, high, low))
}

/// The entries of these slots of the root.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn gather_root(root: &[Entry; ROOT], slots: __m512i) -> __m512i {
    let slots = _mm512_and_si512(slots, _mm512_set1_epi32(ROOT as i32 - 1));
    // SAFETY: the mask above keeps each slot below the length of the array, whose items are 32-bit words.
    unsafe { _mm512_i32gather_epi32::<4>(slots, root.as_ptr().cast()) }
}

/// Loads the words with these numbers where `open` is set; elsewhere keeps `others`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn gather_words(lines: &[Line], words: __m512i, open: u16, others: __m512i) -> __m512i {
    let Some(last) = (lines.len() * WORDS).checked_sub(1) else { return others };
    let words = _mm512_min_epu32(words, _mm512_set1_epi32(last.min(i32::MAX as usize) as i32));
    // SAFETY: lines are arrays of 32-bit words, and the minimum above keeps each number at most that of the last word.
    unsafe { _mm512_mask_i32gather_epi32::<4>(others, open, words, lines.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn store(vector: __m512i) -> [Entry; LANES] {
    let mut words = [0; LANES];
    // SAFETY: the array has 64 bytes, and the store needs no alignment.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), vector) };
    words.map(Entry::from_bits)
}
