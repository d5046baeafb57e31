// SPDX-License-Identifier: Apache-2.0
//! Memory of a table: allocated and initialised once, never moved.

use std::alloc::{Layout, alloc, dealloc};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use thiserror::Error;

/// Bytes of a huge page of x86-64 and, with pages of 4 KiB, of Arm.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// Memory is insufficient for a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no memory for a table of {bytes} bytes")]
pub struct NoMemory {
    /// Size in bytes.
    pub bytes: usize,
}

/// A boxed slice of at least one value, on huge pages if the kernel has them and the values fill at least one.
pub(crate) struct Memory<T> {
    first: NonNull<T>,
    /// The highest index.
    last: usize,
    owns: PhantomData<T>,
}

impl<T: Copy> Memory<T> {
    /// This many copies of `value`; one, if it is none. Touches all pages here, so that the first packets need not.
    pub(crate) fn try_new(value: T, len: usize) -> Result<Self, NoMemory> {
        const { assert!(size_of::<T>() > 0) };
        let len = len.max(1);
        let layout = Self::layout(len).ok_or(NoMemory { bytes: usize::MAX })?;
        // SAFETY: the layout is not empty: at least one value, and values are not zero-sized.
        let first = NonNull::new(unsafe { alloc(layout) }.cast::<T>());
        let first = first.ok_or(NoMemory { bytes: layout.size() })?;
        if layout.align() == HUGE_PAGE {
            advise_huge(first.cast(), layout.size());
        }
        for place in 0..len {
            // SAFETY: `layout` has room for `len` values with sufficient alignment.
            unsafe { first.add(place).write(value) };
        }
        Ok(Self { first, last: len - 1, owns: PhantomData })
    }
}

impl<T> Memory<T> {
    /// The layout of `len` values; `None` on overflow.
    fn layout(len: usize) -> Option<Layout> {
        let layout = Layout::array::<T>(len).ok()?;
        let huge = layout.size() >= HUGE_PAGE;
        layout.align_to(if huge { HUGE_PAGE } else { 64 }).ok()
    }

    /// The highest index.
    #[inline(always)]
    pub(crate) const fn last(&self) -> usize {
        self.last
    }

    /// The value at an index; at another one than [`Memory::last`] and those below, the last value.
    #[inline(always)]
    pub(crate) fn at(&self, index: usize) -> &T {
        // SAFETY: `try_new` wrote `last + 1` values.
        unsafe { self.first.add(index.min(self.last)).as_ref() }
    }

    /// [`Memory::at`], mutable.
    #[inline(always)]
    pub(crate) fn at_mut(&mut self, index: usize) -> &mut T {
        // SAFETY: as in `at`; `self` is borrowed mutably.
        unsafe { self.first.add(index.min(self.last)).as_mut() }
    }

    /// The value at an index that wraps. The length must be a power of two for it to be the right one.
    #[inline(always)]
    pub(crate) fn at_wrapped(&self, index: usize) -> &T {
        // SAFETY: `try_new` wrote `last + 1` values, and the masked index is at most `last`.
        unsafe { self.first.add(index & self.last).as_ref() }
    }

    /// [`Memory::at_wrapped`], mutable.
    #[inline(always)]
    pub(crate) fn at_wrapped_mut(&mut self, index: usize) -> &mut T {
        // SAFETY: as in `at_wrapped`; `self` is borrowed mutably.
        unsafe { self.first.add(index & self.last).as_mut() }
    }

    /// Prefetches cache line `line` of the value at an index.
    #[inline(always)]
    pub(crate) fn prefetch(&self, index: usize, line: usize) {
        prefetch(self.first.as_ptr().wrapping_add(index).wrapping_byte_add(line * 64));
    }
}

/// Advice only: without free huge pages the kernel uses small ones.
fn advise_huge(first: NonNull<u8>, bytes: usize) {
    #[cfg(all(target_os = "linux", not(miri)))]
    // SAFETY: the range was just allocated and is not shared, and the advice changes no content.
    unsafe {
        use rustix::mm::{Advice, madvise};
        let _ = madvise(first.as_ptr().cast(), bytes, Advice::LinuxHugepage);
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = (first, bytes);
}

impl<T> Drop for Memory<T> {
    fn drop(&mut self) {
        if let Some(layout) = Self::layout(self.len()) {
            // SAFETY: allocated in `try_new` with this layout; T is Copy there, so values need no drop.
            unsafe { dealloc(self.first.as_ptr().cast(), layout) };
        }
    }
}

impl<T> Deref for Memory<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `try_new` wrote `last + 1` values there, which live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.last + 1) }
    }
}

impl<T> DerefMut for Memory<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.last + 1) }
    }
}

impl<T> fmt::Debug for Memory<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("values", &self.len()).finish_non_exhaustive()
    }
}

// SAFETY: a Memory owns its values, as a Box of a slice does.
unsafe impl<T: Send> Send for Memory<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Memory<T> {}

/// Prefetches the line at `place` for reading and writing. Any address is permitted; the processor ignores invalid
/// ones.
#[inline(always)]
fn prefetch<T>(place: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch accesses nothing and cannot fault; SSE is in every x86-64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = place;
}
