//! Lines in memory: large rooms in huge pages where the kernel gives some, as a look-up in a large table then waits for its
//! line only, and not for the page table's as well.

#![allow(unsafe_code, reason = "memory is mapped")]

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::node::Line;

/// From here on a room is mapped on its own.
const LARGE: usize = 1 << 20;
/// A huge page.
const HUGE: usize = 2 << 20;

/// Room for lines, all of which are there.
pub(super) enum Room {
    Small(Box<[Line]>),
    Large(Mapping),
}

impl Room {
    /// Of so many lines at least, all zero.
    pub fn new(lines: usize) -> Self {
        let small = || Self::Small(vec![Line::default(); lines].into_boxed_slice());
        if lines * size_of::<Line>() < LARGE {
            small()
        } else {
            Mapping::new(lines).map_or_else(|_| small(), Self::Large)
        }
    }
}

impl Deref for Room {
    type Target = [Line];

    #[inline(always)]
    fn deref(&self) -> &[Line] {
        match self {
            Self::Small(lines) => lines,
            Self::Large(mapping) => mapping.lines(),
        }
    }
}

impl DerefMut for Room {
    fn deref_mut(&mut self) -> &mut [Line] {
        match self {
            Self::Small(lines) => lines,
            Self::Large(mapping) => mapping.lines_mut(),
        }
    }
}

/// Whole huge pages of memory that nobody else has.
pub(super) struct Mapping {
    start: NonNull<Line>,
    bytes: usize,
}

// SAFETY: the memory is the mapping's own, as a box's is.
unsafe impl Send for Mapping {}
// SAFETY: as above; it changes by exclusive references only.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(lines: usize) -> io::Result<Self> {
        let bytes = (lines * size_of::<Line>()).next_multiple_of(HUGE);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses where, so that nothing that is there is replaced.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE)? };
        // Without huge pages all works, and slower.
        // SAFETY: the range was just mapped, and the advice changes nothing of what is in it.
        let _ = unsafe { madvise(start, bytes, Advice::LinuxHugepage) };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    #[inline(always)]
    fn lines(&self) -> &[Line] {
        // SAFETY: the range is mapped until the mapping is dropped, which is borrowed; lines may have any bits, and those of
        // new memory are zero; what is mapped begins at a page, and so is aligned.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes / size_of::<Line>()) }
    }

    fn lines_mut(&mut self) -> &mut [Line] {
        // SAFETY: as above, and nobody else has it, as the mapping is borrowed for that.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes / size_of::<Line>()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with these bounds, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_of_any_size_are_zero_and_keep_what_is_written() {
        for lines in [0, 1, LARGE / 64 - 1, LARGE / 64, HUGE / 64 + 1] {
            let mut room = Room::new(lines);
            assert!(room.len() >= lines && room.iter().all(|line| *line == Line::default()));
            assert_eq!(matches!(room, Room::Large(_)), lines * 64 >= LARGE);
            let other = Line::leaves(&[super::super::node::Entry::NONE; 256])[0];
            room.fill(other);
            assert!(room.iter().all(|line| *line == other));
        }
    }
}
