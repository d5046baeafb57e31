//! A range of guest memory: what the client passes, checked, and its mapping in this process.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Words that describe a range in a card's state.
pub(crate) const WORDS_OF_RANGE: usize = 8;
/// The file system of memfds without huge pages (`TMPFS_MAGIC`).
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

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
    #[error("a file that is not sealed against shrinking")]
    Unsealed,
    #[error("a file with huge pages")]
    Huge,
    #[error("a file that is shorter than the range")]
    Short,
    #[error("no memory to map it")]
    Map,
}

/// A file with memory: what tells it from others, and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryFile {
    device: u64,
    inode: u64,
    pub(super) bytes: u64,
}

impl MemoryFile {
    /// Checks that no access to a range within its size can fail.
    pub(super) fn check(file: impl AsFd) -> Result<Self, MapError> {
        // The kernel answers this itself, whatever serves the file.
        if !fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
            return Err(MapError::Unsealed);
        }
        if !fstatfs(&file).is_ok_and(|system| system.f_type == TMPFS) {
            return Err(MapError::Huge);
        }
        let found = fstat(file).map_err(|_| MapError::Unsealed)?;
        Ok(Self { device: found.st_dev, inode: found.st_ino, bytes: found.st_size as u64 })
    }
}

/// A mapped range.
#[derive(Debug)]
pub(super) struct Range {
    pub(super) first: u64,
    pub(super) bytes: u64,
    pub(super) base: NonNull<u8>,
    pub(super) writable: bool,
    /// Start in the file, and the file's number.
    offset: u64,
    pub(super) file: u32,
}

// SAFETY: the mapping belongs to the range and to no thread.
unsafe impl Send for Range {}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: `Range::map` made this mapping, and addresses into it live no longer than a borrow of the memory.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes as usize) };
    }
}

impl Range {
    pub(super) fn map(request: &MapRequest, file: impl AsFd, number: u32) -> Result<Self, MapError> {
        let MapRequest { first, bytes, offset, writable } = *request;
        let access = ProtFlags::READ | if writable { ProtFlags::WRITE } else { ProtFlags::empty() };
        // SAFETY: a new mapping at an address that the kernel chooses. The file holds the range and cannot shrink.
        let base =
            unsafe { mmap(std::ptr::null_mut(), bytes as usize, access, MapFlags::SHARED, file, offset) };
        let base = base.ok().and_then(|base| NonNull::new(base.cast())).ok_or(MapError::Map)?;
        Ok(Self { first, bytes, base, writable, offset, file: number })
    }

    pub(super) const fn end(&self) -> u64 {
        self.first + self.bytes
    }

    pub(super) const fn request(&self) -> MapRequest {
        MapRequest { first: self.first, bytes: self.bytes, offset: self.offset, writable: self.writable }
    }
}
