// SPDX-License-Identifier: Apache-2.0
//! Memory of the tables: buffers that are zero at first. Large ones may use transparent huge pages if the kernel
//! provides them, so that a lookup in a large table misses the cache only, not the TLB as well.

#![allow(unsafe_code, reason = "maps memory, and prefetches from it")]

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Buffers of at least this many bytes are mapped directly.
pub(crate) const MAP_THRESHOLD: usize = 1 << 20;
/// Size of a huge page.
const HUGE_PAGE: usize = 2 << 20;

/// Items of a buffer.
///
/// # Safety
/// Any bits are a valid value, and zeroes are the default one.
pub(crate) unsafe trait Plain: Copy + Default {}

// SAFETY: any bits are a number, and zero is the default.
unsafe impl Plain for u16 {}

/// The pages of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pages {
    /// Of the usual size, each taken when it is first written.
    Small,
    /// Huge ones if there are any.
    Huge,
}

/// A buffer of initialised items.
pub(crate) enum Buffer<T> {
    Small(Box<[T]>),
    Large(Mapping<T>),
}

impl<T: Plain> Buffer<T> {
    /// At least `count` items, all zero.
    pub fn new(count: usize, pages: Pages) -> Self {
        let small = || Self::Small(vec![T::default(); count].into_boxed_slice());
        if count * size_of::<T>() < MAP_THRESHOLD {
            small()
        } else {
            Mapping::new(count, pages).map_or_else(|_| small(), Self::Large)
        }
    }

    /// Makes room for `count` items, of which the first `used` are kept. Grows by half, so that copying costs a
    /// constant per item, but to no more than `most`.
    pub fn reserve(&mut self, count: usize, used: usize, most: usize) {
        if count > self.len() {
            self.grow((count + used / 2).min(most), used);
        }
    }

    /// Replaces the buffer by one of at least `count` items in huge pages, the first of which are copies of `kept` ones
    /// of now.
    pub fn grow(&mut self, count: usize, kept: usize) {
        let mut larger = Self::new(count, Pages::Huge);
        larger[..kept].copy_from_slice(&self[..kept]);
        *self = larger;
    }
}

impl<T: Plain> Deref for Buffer<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        match self {
            Self::Small(items) => items,
            Self::Large(mapping) => mapping.items(),
        }
    }
}

impl<T: Plain> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Small(items) => items,
            Self::Large(mapping) => mapping.items_mut(),
        }
    }
}

/// A private anonymous mapping of whole huge pages.
pub(crate) struct Mapping<T> {
    start: NonNull<T>,
    bytes: usize,
}

// SAFETY: the mapping owns its memory exclusively, as a box does.
unsafe impl<T: Plain + Send> Send for Mapping<T> {}
// SAFETY: as above; shared references only read it.
unsafe impl<T: Plain + Sync> Sync for Mapping<T> {}

impl<T: Plain> Mapping<T> {
    fn new(count: usize, pages: Pages) -> io::Result<Self> {
        let bytes = (count * size_of::<T>()).next_multiple_of(HUGE_PAGE);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so the call replaces no existing mapping.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE)? };
        let advice = match pages {
            Pages::Small => Advice::LinuxNoHugepage,
            Pages::Huge => Advice::LinuxHugepage,
        };
        // The size of pages changes speed and memory only, so a failure is ignored.
        // SAFETY: the range was mapped just above, and the advice does not change its contents.
        let _ = unsafe { madvise(start, bytes, advice) };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    #[inline(always)]
    fn items(&self) -> &[T] {
        // SAFETY: the range stays mapped while `self` is borrowed. Any bits are a valid item, and new memory is zero.
        // The mapping starts at a page, so it is aligned.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes / size_of::<T>()) }
    }

    fn items_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; the exclusive borrow of `self` excludes other references.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes / size_of::<T>()) }
    }
}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: the range was mapped with these bounds, and no borrow outlives `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Starts to load a cache line. Nothing need be there.
#[inline(always)]
pub(crate) fn prefetch<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect that a program can see, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_any_size_start_as_zero_and_keep_writes() {
        for pages in [Pages::Small, Pages::Huge] {
            for count in [0, 1, MAP_THRESHOLD / 2 - 1, MAP_THRESHOLD / 2, HUGE_PAGE / 2 + 1] {
                let mut buffer = Buffer::<u16>::new(count, pages);
                assert!(buffer.len() >= count && buffer.iter().all(|item| *item == 0));
                assert_eq!(matches!(buffer, Buffer::Large(_)), count * 2 >= MAP_THRESHOLD);
                buffer.fill(7);
                buffer.grow(2 * count + 1, count);
                assert!(buffer[..count].iter().all(|item| *item == 7));
                assert!(buffer.len() > 2 * count && buffer[count..].iter().all(|item| *item == 0));
            }
        }
    }

    #[test]
    fn room_grows_by_half_up_to_a_limit() {
        let mut buffer = Buffer::<u16>::new(4, Pages::Huge);
        buffer.fill(7);
        let mut sizes = Vec::new();
        for (count, used) in [(4, 4), (6, 4), (9, 8), (14, 13)] {
            buffer.reserve(count, used, 15);
            sizes.push(buffer.len());
        }
        assert_eq!(sizes, [4, 8, 13, 15]);
        assert_eq!(buffer[..5], [7, 7, 7, 7, 0]);
    }
}
