// SPDX-License-Identifier: Apache-2.0
//! A range of guest memory: what the client passes, checked, and its mapping in this process.

use std::fs::File;
use std::sync::Arc;

use netvm_guest_memory::{Access, FileError, Mapping};

/// Words that describe a range in a card's state.
pub(crate) const WORDS_OF_RANGE: usize = 8;

/// A range that the client passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapRequest {
    /// First guest address.
    pub(crate) first: u64,
    pub(crate) bytes: u64,
    /// Start of the range in the file.
    pub(crate) offset: u64,
    pub(crate) writable: bool,
}

impl MapRequest {
    /// From words of a card's state, which also have the number of the file.
    pub(crate) fn from_words([flags, file, words @ ..]: [u32; WORDS_OF_RANGE]) -> (Self, u32) {
        let long = |n: usize| u64::from(words[n]) | u64::from(words[n + 1]) << 32;
        (Self { first: long(0), bytes: long(2), offset: long(4), writable: flags & 1 != 0 }, file)
    }

    pub(super) fn words(&self, file: u32) -> [u32; WORDS_OF_RANGE] {
        let halves = |long: u64| [long as u32, (long >> 32) as u32];
        let ([a, b], [c, d], [e, f]) = (halves(self.first), halves(self.bytes), halves(self.offset));
        [self.writable.into(), file, a, b, c, d, e, f]
    }
}

/// A range cannot be mapped or unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MapError {
    #[error("a range that is empty, not of whole pages, or beyond the address space")]
    Range,
    #[error("a range that overlaps another one")]
    Overlap,
    #[error("too many ranges")]
    TooMany,
    #[error(transparent)]
    File(#[from] FileError),
    #[error("a file that is shorter than the range")]
    Short,
    #[error("no memory to map it")]
    Map,
}

/// A mapped range.
#[derive(Debug)]
pub(super) struct Range {
    pub(super) first: u64,
    pub(super) bytes: u64,
    pub(super) mapping: Mapping,
    pub(super) writable: bool,
    /// Start in the file, and the file's number.
    offset: u64,
    pub(super) file: u32,
}

impl Range {
    /// Maps a range that lies within a file, which has this number.
    pub(super) fn map(request: &MapRequest, file: &Arc<File>, number: u32) -> Result<Self, MapError> {
        let MapRequest { first, bytes, offset, writable } = *request;
        let access = Access { writable, populate: false };
        let mapping = Mapping::new(file, offset, bytes, access).ok_or(MapError::Map)?;
        Ok(Self { first, bytes, mapping, writable, offset, file: number })
    }

    pub(super) const fn end(&self) -> u64 {
        self.first + self.bytes
    }

    pub(super) const fn request(&self) -> MapRequest {
        MapRequest { first: self.first, bytes: self.bytes, offset: self.offset, writable: self.writable }
    }
}
