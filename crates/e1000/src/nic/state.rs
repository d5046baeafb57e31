// SPDX-License-Identifier: Apache-2.0
//! The state of a card in a file of this process, so that another process can go on if this one is killed at any time.
//!
//! ```text
//!  word 0 ─ IDENTITY: version of this layout, model, MAC address
//!       4 ─ CURRENT: which copy and which table are valid; a request that may not have been answered
//!       5 ─ SENDING: first transmit descriptor that is being marked as done, plus 1
//!       6 ─ POSTED: 1 if the client has not been given the pages, so that all doorbells come as requests
//!       8 ─ CONTEXT: offloads of the last context descriptor
//!      16 ─ two copies of what requests change, except for registers
//!       … ─ two tables of the ranges of guest memory
//!       … ─ registers without side effects, and statistics
//! ```
//!
//! The port's thread writes the copy that is not valid after each request, and then CURRENT, with one store. The worker
//! writes its registers and words at once. The rings' own state is in [`super::pages`].

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use super::Model;
use super::registers::END;
use crate::memory::{MAX_RANGES, WORDS_OF_RANGE};
use crate::words::Words;

const VERSION: u32 = 0x6e76_0001;
const CURRENT: usize = 4;
const SENDING: usize = 5;
const POSTED: usize = 6;
const CONTEXT: usize = 8;
/// Words of a transmit context.
pub(super) const CONTEXT_WORDS: usize = 5;
const COPIES: usize = 16;
/// Words of a copy.
const COPY: usize = 128;
const TABLES: usize = COPIES + 2 * COPY;
/// Words of a table.
const TABLE: usize = MAX_RANGES * WORDS_OF_RANGE;
const REGISTERS: usize = TABLES + 2 * TABLE;
const PAGE: usize = 4096;
const BYTES: u32 = ((REGISTERS * 4 + END as usize).div_ceil(PAGE) * PAGE) as u32;

/// Bits of CURRENT: the copy, the table, and the number of a request plus 1.
const CURRENT_COPY: u32 = 1;
const CURRENT_TABLE: u32 = 1 << 1;
const REQUEST_SHIFT: u32 = 8;

/// The file.
#[derive(Debug)]
pub(crate) struct State(Words);

impl State {
    pub(crate) fn new(model: Model, mac: [u8; 6]) -> Result<Self, Errno> {
        let state = Self(Words::new("netvm-e1000-state", 0, BYTES)?);
        identity(model, mac).into_iter().enumerate().for_each(|(n, word)| state.store(n, word));
        Ok(state)
    }

    /// That of another process. `None` if it is not of this card.
    pub(crate) fn reopen(file: OwnedFd, model: Model, mac: [u8; 6]) -> Option<Self> {
        let state = Self(Words::reopen(file, 0, BYTES).ok()?);
        let is_ours = identity(model, mac).into_iter().enumerate().all(|(n, word)| state.load(n) == word);
        is_ours.then_some(state)
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.0.file()
    }

    #[inline]
    fn load(&self, word: usize) -> u32 {
        self.0.get(word).map_or(0, |word| word.load(Ordering::Acquire))
    }

    #[inline]
    fn store(&self, word: usize, value: u32) {
        if let Some(word) = self.0.get(word) {
            word.store(value, Ordering::Release);
        }
    }

    /// A register; 0 outside.
    #[inline]
    pub(super) fn register(&self, offset: u32) -> u32 {
        self.word_of(offset).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn set_register(&self, offset: u32, value: u32) {
        if let Some(word) = self.word_of(offset) {
            word.store(value, Ordering::Relaxed);
        }
    }

    #[inline]
    fn word_of(&self, offset: u32) -> Option<&AtomicU32> {
        if offset < END { self.0.get(REGISTERS + offset as usize / 4) } else { None }
    }

    pub(super) fn clear_registers(&self) {
        (0..END).step_by(4).for_each(|offset| self.set_register(offset, 0));
    }

    /// The first transmit descriptor that is being marked as done.
    pub(crate) fn sending(&self) -> Option<u32> {
        self.load(SENDING).checked_sub(1)
    }

    #[inline]
    pub(crate) fn set_sending(&self, first: Option<u32>) {
        self.store(SENDING, first.map_or(0, |first| first + 1));
    }

    /// Whether all writes of TDT and RDT come as requests.
    #[inline]
    pub(crate) fn posts_doorbells(&self) -> bool {
        self.load(POSTED) != 0
    }

    pub(crate) fn set_posts_doorbells(&self, posts: bool) {
        self.store(POSTED, posts.into());
    }

    pub(super) fn context(&self) -> [u32; CONTEXT_WORDS] {
        std::array::from_fn(|n| self.load(CONTEXT + n))
    }

    pub(super) fn set_context(&self, words: [u32; CONTEXT_WORDS]) {
        words.into_iter().enumerate().for_each(|(n, word)| self.store(CONTEXT + n, word));
    }

    /// The request that may not have been answered.
    pub(crate) fn unanswered(&self) -> Option<u16> {
        (self.load(CURRENT) >> REQUEST_SHIFT).checked_sub(1).map(|id| id as u16)
    }

    /// The last request was answered, and the client's socket no longer holds it.
    pub(crate) fn note_answered(&self) {
        self.store(CURRENT, self.load(CURRENT) & (CURRENT_COPY | CURRENT_TABLE));
    }

    /// Begins a copy.
    pub(crate) fn save(&self) -> Saver<'_> {
        let current = self.load(CURRENT);
        Saver { state: self, at: 0, current: (current ^ CURRENT_COPY) & (CURRENT_COPY | CURRENT_TABLE) }
    }

    /// Reads the valid copy.
    pub(crate) fn saved(&self) -> Loader<'_> {
        Loader { state: self, at: 0, current: self.load(CURRENT) }
    }
}

const fn identity(model: Model, [a, b, c, d, e, f]: [u8; 6]) -> [u32; CURRENT] {
    [VERSION, model as u32, u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, 0, 0])]
}

const fn place_of_copy(current: u32) -> usize {
    COPIES + COPY * (current & CURRENT_COPY) as usize
}

const fn place_of_table(current: u32) -> usize {
    TABLES + if current & CURRENT_TABLE == 0 { 0 } else { TABLE }
}

/// Writes a copy, which is valid once it is finished.
#[derive(Debug)]
pub(crate) struct Saver<'a> {
    state: &'a State,
    at: usize,
    current: u32,
}

impl Saver<'_> {
    pub(crate) fn put(&mut self, word: u32) {
        debug_assert!(self.at < COPY, "a copy has room for all");
        self.state.store(place_of_copy(self.current) + self.at.min(COPY - 1), word);
        self.at += 1;
    }

    /// Writes the other table, from words of ranges.
    pub(crate) fn put_table(&mut self, words: impl Iterator<Item = u32>) {
        self.current ^= CURRENT_TABLE;
        let place = place_of_table(self.current);
        words.take(TABLE).enumerate().for_each(|(n, word)| self.state.store(place + n, word));
    }

    /// `request`: that which brought the state about.
    pub(crate) fn finish(self, request: Option<u16>) {
        let request = request.map_or(0, |id| u32::from(id) + 1);
        self.state.store(CURRENT, self.current | request << REQUEST_SHIFT);
    }
}

/// Reads a copy.
#[derive(Debug)]
pub(crate) struct Loader<'a> {
    state: &'a State,
    at: usize,
    current: u32,
}

impl Loader<'_> {
    pub(crate) fn next(&mut self) -> u32 {
        self.at += 1;
        self.state.load(place_of_copy(self.current) + (self.at - 1).min(COPY - 1))
    }

    /// The words of a range.
    pub(crate) fn range(&self, number: usize) -> [u32; WORDS_OF_RANGE] {
        let place = place_of_table(self.current) + number.min(MAX_RANGES - 1) * WORDS_OF_RANGE;
        std::array::from_fn(|n| self.state.load(place + n))
    }
}
