//! Memory of a table: allocated and initialised once, never moved.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use thiserror::Error;

/// Bytes of a huge page of x86-64 and, with pages of 4 KiB, of Arm.
const HUGE_PAGE: usize = 2 << 20;

/// Memory is insufficient for a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no memory for a table of {bytes} bytes")]
pub struct NoMemory {
    /// Size in bytes.
    pub bytes: usize,
}

/// A boxed slice of 2^n values, on huge pages if the kernel has them and the table fills at least one. Indexes wrap, so
/// a lookup needs no bounds check.
pub struct Table<T> {
    first: NonNull<T>,
    /// Length minus one.
    mask: usize,
    owns: PhantomData<T>,
}

impl<T: Copy> Table<T> {
    /// 2^`order` copies of `value`. Ends the process if there is no memory, as a [`Vec`] does.
    #[must_use]
    pub fn new(value: T, order: u32) -> Self {
        Self::try_new(value, order).unwrap_or_else(|_| {
            let bytes = size_of::<T>().saturating_mul(1usize.checked_shl(order).unwrap_or(0));
            handle_alloc_error(Layout::from_size_align(bytes, 1).unwrap_or(Layout::new::<T>()))
        })
    }

    /// 2^`order` copies of `value`. Touches all pages here, so that the first packets need not.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn try_new(value: T, order: u32) -> Result<Self, NoMemory> {
        const { assert!(size_of::<T>() > 0) };
        let too_large = NoMemory { bytes: usize::MAX };
        let len = 1usize.checked_shl(order).ok_or(too_large)?;
        let layout = Self::layout(len).ok_or(too_large)?;
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
        Ok(Self { first, mask: len - 1, owns: PhantomData })
    }
}

impl<T> Table<T> {
    /// The layout of `len` values; `None` on overflow.
    fn layout(len: usize) -> Option<Layout> {
        let layout = Layout::array::<T>(len).ok()?;
        let huge = layout.size() >= HUGE_PAGE;
        layout.align_to(if huge { HUGE_PAGE } else { 64 }).ok()
    }

    /// The value at a wrapped index.
    #[inline(always)]
    #[must_use]
    pub fn at(&self, place: usize) -> &T {
        // SAFETY: `new` wrote `mask + 1` values, a power of two, so the masked index is in range.
        unsafe { self.first.add(place & self.mask).as_ref() }
    }

    /// The value at a wrapped index, mutable.
    #[inline(always)]
    pub fn at_mut(&mut self, place: usize) -> &mut T {
        // SAFETY: as in `at`; `self` is borrowed mutably.
        unsafe { self.first.add(place & self.mask).as_mut() }
    }

    /// Prefetches cache line `line` of the value at a wrapped index.
    #[inline(always)]
    pub fn prefetch(&self, place: usize, line: usize) {
        prefetch(self.first.as_ptr().wrapping_add(place & self.mask).wrapping_byte_add(line * 64));
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

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        if let Some(layout) = Self::layout(self.len()) {
            // SAFETY: allocated in `new` with this layout; T is Copy there, so values need no drop.
            unsafe { dealloc(self.first.as_ptr().cast(), layout) };
        }
    }
}

impl<T> Deref for Table<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `new` wrote `mask + 1` values there, which live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.mask + 1) }
    }
}

impl<T> DerefMut for Table<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.mask + 1) }
    }
}

impl<T> fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("values", &self.len()).finish_non_exhaustive()
    }
}

// SAFETY: a Table owns its values, as a Box of a slice does.
unsafe impl<T: Send> Send for Table<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Table<T> {}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_initialised_and_writable() {
        for order in [0, 1, 5, 17, 18, 19] {
            let mut table = Table::new(7u64, order);
            let len = 1 << order;
            assert!(table.iter().all(|value| *value == 7) && table.len() == len);
            *table.at_mut(len - 1) = 8;
            assert_eq!((*table.at(usize::MAX), table.iter().filter(|value| **value == 8).count()), (8, 1));
            assert_eq!(table.as_ptr().addr() % if len * 8 >= HUGE_PAGE { HUGE_PAGE } else { 64 }, 0);
            table.prefetch(len, 1000);
        }
    }

    #[test]
    fn too_large_a_table_is_an_error() {
        for order in [60, 63, 64, u32::MAX] {
            assert!(Table::try_new(0u64, order).is_err());
        }
    }
}
