//! Memory for lines. Large buffers use transparent huge pages if the kernel provides them, so that a lookup in a large
//! table misses the cache only, not the TLB as well.

#![allow(unsafe_code, reason = "maps memory")]

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::node::Line;

/// Buffers of at least this size are mapped directly.
const MAP_THRESHOLD: usize = 1 << 20;
/// Size of a huge page.
const HUGE_PAGE: usize = 2 << 20;

/// A buffer of initialised lines.
pub(super) enum LineBuffer {
    Small(Box<[Line]>),
    Large(Mapping),
}

impl LineBuffer {
    /// At least `lines` lines, all zero.
    pub fn new(lines: usize) -> Self {
        let small = || Self::Small(vec![Line::default(); lines].into_boxed_slice());
        if lines * size_of::<Line>() < MAP_THRESHOLD {
            small()
        } else {
            Mapping::new(lines).map_or_else(|_| small(), Self::Large)
        }
    }
}

impl Deref for LineBuffer {
    type Target = [Line];

    #[inline(always)]
    fn deref(&self) -> &[Line] {
        match self {
            Self::Small(lines) => lines,
            Self::Large(mapping) => mapping.lines(),
        }
    }
}

impl DerefMut for LineBuffer {
    fn deref_mut(&mut self) -> &mut [Line] {
        match self {
            Self::Small(lines) => lines,
            Self::Large(mapping) => mapping.lines_mut(),
        }
    }
}

/// A private anonymous mapping of whole huge pages.
pub(super) struct Mapping {
    start: NonNull<Line>,
    bytes: usize,
}

// SAFETY: the mapping owns its memory exclusively, as a box does.
unsafe impl Send for Mapping {}
// SAFETY: as above; shared references only read it.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(lines: usize) -> io::Result<Self> {
        let bytes = (lines * size_of::<Line>()).next_multiple_of(HUGE_PAGE);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so the call replaces no existing mapping.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE)? };
        // Huge pages are an optimisation, so a failure is ignored.
        // SAFETY: the range was mapped just above, and the advice does not change its contents.
        let _ = unsafe { madvise(start, bytes, Advice::LinuxHugepage) };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    #[inline(always)]
    fn lines(&self) -> &[Line] {
        // SAFETY: the range stays mapped while `self` is borrowed. Any bits are a valid line, and new memory is zero.
        // The mapping starts at a page, so it is aligned.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes / size_of::<Line>()) }
    }

    fn lines_mut(&mut self) -> &mut [Line] {
        // SAFETY: as above; the exclusive borrow of `self` excludes other references.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes / size_of::<Line>()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped with these bounds, and no borrow outlives `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_any_size_start_as_zero_and_keep_writes() {
        for lines in [0, 1, MAP_THRESHOLD / 64 - 1, MAP_THRESHOLD / 64, HUGE_PAGE / 64 + 1] {
            let mut buffer = LineBuffer::new(lines);
            assert!(buffer.len() >= lines && buffer.iter().all(|line| *line == Line::default()));
            assert_eq!(matches!(buffer, LineBuffer::Large(_)), lines * 64 >= MAP_THRESHOLD);
            let other = Line::leaves(&[super::super::node::Entry::NONE; 256])[0];
            buffer.fill(other);
            assert!(buffer.iter().all(|line| *line == other));
        }
    }
}
