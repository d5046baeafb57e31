//! Lookup without vector instructions: a burst descends level by level.
//!
//! Cache misses limit the speed in a large table, so each level has two passes. The first computes where each address
//! reads next and prefetches it, without waiting for anything; the second reads. A burst has at most [`BURST`]
//! addresses, more than a processor has outstanding misses. Only addresses that have not reached their leaf go on to
//! the next level, by a list that is made without a branch.

#![allow(unsafe_code, reason = "reads words by checked numbers")]

use std::hint::select_unpredictable;
use std::mem;

use super::{BURST, SHIFTS, Start, View};
use crate::next_hop::NextHopId;
use crate::trie::bits::Key;
use crate::trie::node::{Entry, Line, WORDS, leaf_of_slot, leaves_of};

/// Like [`View::lookup`].
#[inline(always)]
pub(super) fn lookup<K: Key>(view: View<'_>, addresses: &[K], found: &mut [NextHopId]) {
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
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch has no effect that a program can see.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.address(number).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = number;
    }

    #[inline(always)]
    fn get(self, number: u32) -> u32 {
        // SAFETY: the address lies within the lines, and is that of a 32-bit word.
        unsafe { *self.address(number) }
    }
}

/// Descends from the root until every address has reached a leaf or a test.
#[inline(always)]
pub(super) fn descend<K: Key>(
    view: View<'_>,
    addresses: &[K; BURST],
    count: usize,
    start: Start,
) -> [Entry; BURST] {
    const LAST: usize = BURST - 1;
    let count = count.min(BURST);
    let mut entries = [Entry::NONE; BURST];
    let Some(words) = Words::of(view.lines) else {
        for n in 0..count {
            entries[n] = view.root[addresses[n].top()];
        }
        return entries;
    };
    // Those of the addresses that are not at a leaf or test.
    let mut list = [0u8; BURST];
    let mut open = 0;
    let mut numbers = [0u32; BURST];
    let mut windows = [0u32; BURST];
    let (first, mut skipped) = start.window::<K>();
    let shift = SHIFTS.get(skipped).copied().unwrap_or(0);
    if let Some(node) = leaves_of(view.lines, start.entry) {
        for n in 0..count {
            entries[n] = leaf_of_slot(node, (addresses[n].window(first) >> shift) as u8);
        }
        return entries;
    }
    if start.is_root && K::WINDOWS == 1 {
        return descend_two_levels(view, words, &addresses[..count]);
    }
    if start.is_root {
        for n in 0..count {
            let entry = view.root[addresses[n].top()];
            windows[n] = addresses[n].window(0);
            entries[n] = entry;
            numbers[n] = entry.word(windows[n] >> 24);
            words.prefetch(numbers[n]);
            list[open & LAST] = n as u8;
            open += usize::from(entry.has_slots());
        }
    } else {
        for n in 0..count {
            windows[n] = addresses[n].window(first);
            entries[n] = start.entry;
            numbers[n] = start.entry.word((windows[n] >> shift) & 0xff);
            words.prefetch(numbers[n]);
            list[n] = n as u8;
        }
        open = count;
    }
    let mut is_prefetched = true;
    for window in first..K::WINDOWS {
        if window > first {
            for n in &list[..open.min(BURST)] {
                let n = usize::from(*n) & LAST;
                windows[n] = addresses[n].window(window);
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

/// Descends from the root with addresses of 32 bits, which have two levels. Nearly all of a large table's are at a leaf after the
/// first, so all addresses read there, without a list. Loops that only load are so short that a processor starts the loads of a
/// whole burst before it needs the first.
#[inline(always)]
fn descend_two_levels<K: Key>(view: View<'_>, words: Words<'_>, addresses: &[K]) -> [Entry; BURST] {
    const LAST: usize = BURST - 1;
    let mut entries = [Entry::NONE; BURST];
    let mut numbers = [0u32; BURST];
    for (entry, address) in entries.iter_mut().zip(addresses) {
        *entry = view.root[address.top()];
    }
    for ((address, entry), number) in addresses.iter().zip(&entries).zip(&mut numbers) {
        *number = entry.word(address.window(0) >> 24).min(words.last);
        words.prefetch(*number);
    }
    let mut read = [0u32; BURST];
    for (word, number) in read.iter_mut().zip(&numbers[..addresses.len().min(BURST)]) {
        *word = words.get(*number);
    }
    let mut any = false;
    for ((address, entry), word) in addresses.iter().zip(&mut entries).zip(&read) {
        let child = entry.select(*word, address.window(0) >> 24);
        *entry = select_unpredictable(entry.has_slots(), child, *entry);
        any |= entry.has_slots();
    }
    if !any {
        return entries;
    }
    let (mut list, mut open) = ([0u8; BURST], 0);
    for (n, entry) in entries.iter().enumerate() {
        list[open & LAST] = n as u8;
        open += usize::from(entry.has_slots());
    }
    let list = &list[..open.min(BURST)];
    let at = |n: u8| (usize::from(n) & LAST).min(addresses.len() - 1);
    for n in list {
        let n = at(*n);
        numbers[n] = entries[n].word((addresses[n].window(0) >> 16) & 0xff);
        words.prefetch(numbers[n]);
    }
    for n in list {
        let n = at(*n);
        entries[n] = entries[n].select(words.get(numbers[n]), (addresses[n].window(0) >> 16) & 0xff);
    }
    entries
}
