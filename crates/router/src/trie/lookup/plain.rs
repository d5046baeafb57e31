// SPDX-License-Identifier: Apache-2.0
//! Lookup without vector instructions: a burst descends level by level.
//!
//! Cache misses limit the speed in a large table, so each level has two passes. The first computes where each address
//! reads next and prefetches it, without waiting for anything; the second reads. A burst has at most [`BURST`]
//! addresses, more than a processor has outstanding misses. Only addresses that have not reached their leaf go on to
//! the next level, by a list that is made without a branch.

#![allow(unsafe_code, reason = "reads words by checked numbers")]

use std::mem;

use super::{BURST, SHIFTS, Start, View};
use crate::memory::prefetch;
use crate::next_hop::NextHopId;
use crate::trie::Address;
use crate::trie::bits::{WINDOWS, top, window as window_of};
use crate::trie::node::{Entry, Line, WORDS, leaf_of_slot, leaves_of};

/// Like [`View::lookup`].
#[inline(always)]
pub(super) fn lookup(view: View<'_>, addresses: &[Address], found: &mut [NextHopId]) {
    view.in_bursts(addresses, found, |burst, count, start| descend(view, burst, count, start));
}

/// The words of the lines.
#[derive(Clone, Copy)]
struct Words<'a> {
    lines: &'a [Line],
    /// Number of the last word.
    last: u32,
}

impl<'a> Words<'a> {
    fn of(lines: &'a [Line]) -> Option<Self> {
        let last = (lines.len() * WORDS).checked_sub(1)?;
        Some(Self { lines, last: last.min(u32::MAX as usize) as u32 })
    }

    #[inline(always)]
    fn address(self, number: u32) -> *const u32 {
        let number = number.min(self.last) as usize;
        // SAFETY: lines are arrays of 32-bit words, and the minimum keeps the number at most that of the last.
        unsafe { self.lines.as_ptr().cast::<u32>().add(number) }
    }

    #[inline(always)]
    fn prefetch(self, number: u32) {
        prefetch(self.address(number));
    }

    #[inline(always)]
    fn get(self, number: u32) -> u32 {
        // SAFETY: the address lies within the lines, and is that of a 32-bit word.
        unsafe { *self.address(number) }
    }
}

/// Descends from the root until every address has reached a leaf or a test.
#[inline(always)]
pub(super) fn descend(
    view: View<'_>,
    addresses: &[Address; BURST],
    count: usize,
    start: Start,
) -> [Entry; BURST] {
    const LAST: usize = BURST - 1;
    let count = count.min(BURST);
    let mut entries = [Entry::NONE; BURST];
    let Some(words) = Words::of(view.lines) else {
        for n in 0..count {
            entries[n] = view.root[top(&addresses[n])];
        }
        return entries;
    };
    // Those of the addresses that are not at a leaf or test.
    let mut list = [0u8; BURST];
    let mut open = 0;
    let mut numbers = [0u32; BURST];
    let mut windows = [0u32; BURST];
    let (first, mut skipped) = start.window();
    let shift = SHIFTS.get(skipped).copied().unwrap_or(0);
    if let Some(node) = leaves_of(view.lines, start.entry) {
        for n in 0..count {
            entries[n] = leaf_of_slot(node, (window_of(&addresses[n], first) >> shift) as u8);
        }
        return entries;
    }
    if start.is_root {
        for n in 0..count {
            let entry = view.root[top(&addresses[n])];
            windows[n] = window_of(&addresses[n], 0);
            entries[n] = entry;
            numbers[n] = entry.word(windows[n] >> 24);
            words.prefetch(numbers[n]);
            list[open & LAST] = n as u8;
            open += usize::from(entry.has_slots());
        }
    } else {
        for n in 0..count {
            windows[n] = window_of(&addresses[n], first);
            entries[n] = start.entry;
            numbers[n] = start.entry.word((windows[n] >> shift) & 0xff);
            words.prefetch(numbers[n]);
            list[n] = n as u8;
        }
        open = count;
    }
    let mut is_prefetched = true;
    for window in first..WINDOWS {
        if window > first {
            for n in &list[..open.min(BURST)] {
                let n = usize::from(*n) & LAST;
                windows[n] = window_of(&addresses[n], window);
            }
        }
        for shift in &SHIFTS[mem::take(&mut skipped)..] {
            if open == 0 {
                return entries;
            }
            if !mem::take(&mut is_prefetched) {
                for n in &list[..open.min(BURST)] {
                    let n = usize::from(*n) & LAST;
                    numbers[n] = entries[n].word((windows[n] >> shift) & 0xff);
                    words.prefetch(numbers[n]);
                }
            }
            let before = open.min(BURST);
            open = 0;
            for place in 0..before {
                let n = usize::from(list[place]) & LAST;
                let entry = entries[n].select(words.get(numbers[n]), (windows[n] >> shift) & 0xff);
                entries[n] = entry;
                list[open & LAST] = n as u8;
                open += usize::from(entry.has_slots());
            }
        }
    }
    entries
}
