//! Memory of a table: taken and written once, then never moved.

use std::alloc::{Layout, alloc, dealloc};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::options::CacheError;

/// Bytes of a huge page of x86-64 and, with pages of 4 KiB, of Arm.
const HUGE_PAGE: usize = 2 << 20;

/// A boxed slice whose memory lies on huge pages where the kernel gives them and the table fills at least one.
#[derive(Debug)]
pub(crate) struct Table<T> {
    first: NonNull<T>,
    len: usize,
    owns: PhantomData<T>,
}

impl<T: Copy> Table<T> {
    /// `len` times `value`. All pages are touched here, not by the first packets.
    pub(crate) fn new(value: T, len: usize) -> Result<Self, CacheError> {
        const { assert!(size_of::<T>() > 0) };
        let layout = Self::layout(len).ok_or(CacheError::Memory { bytes: usize::MAX })?;
        if layout.size() == 0 {
            return Ok(Self { first: NonNull::dangling(), len: 0, owns: PhantomData });
        }
        // SAFETY: the size is not 0.
        let first = NonNull::new(unsafe { alloc(layout) }.cast::<T>());
        let first = first.ok_or(CacheError::Memory { bytes: layout.size() })?;
        if layout.align() == HUGE_PAGE {
            advise_huge(first.cast(), layout.size());
        }
        for place in 0..len {
            // SAFETY: `layout` has room for `len` values, aligned as theirs at least.
            unsafe { first.add(place).write(value) };
        }
        Ok(Self { first, len, owns: PhantomData })
    }
}

impl<T> Table<T> {
    /// What `len` values take; `None` when that is more than an address space.
    fn layout(len: usize) -> Option<Layout> {
        let layout = Layout::array::<T>(len).ok()?;
        let huge = layout.size() >= HUGE_PAGE;
        layout.align_to(if huge { HUGE_PAGE } else { 64 }).ok()
    }
}

/// Advice only: a kernel that has no huge page to give goes on with small ones.
fn advise_huge(first: NonNull<u8>, bytes: usize) {
    #[cfg(all(target_os = "linux", not(miri)))]
    // SAFETY: the range was just allocated, nobody knows it yet, and the advice changes no content.
    unsafe {
        use rustix::mm::{Advice, madvise};
        let _ = madvise(first.as_ptr().cast(), bytes, Advice::LinuxHugepage);
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = (first, bytes);
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        if let Some(layout) = Self::layout(self.len)
            && layout.size() > 0
        {
            // SAFETY: allocated in `new` with the layout of the same length; T is Copy there, so nothing is to be dropped.
            unsafe { dealloc(self.first.as_ptr().cast(), layout) };
        }
    }
}

impl<T> Deref for Table<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `new` wrote `len` values there, which live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Table<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `self` is borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

// SAFETY: a Table owns its values, as a Box of a slice does.
unsafe impl<T: Send> Send for Table<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Table<T> {}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_there_and_keeps_what_is_written() {
        for len in [0, 1, 7, HUGE_PAGE / 8 - 1, HUGE_PAGE / 8, HUGE_PAGE / 4 + 3] {
            let mut table = Table::new(7u64, len).unwrap();
            assert!(table.iter().all(|value| *value == 7) && table.len() == len);
            if let Some(last) = table.last_mut() {
                *last = 8;
            }
            assert_eq!(table.iter().filter(|value| **value == 8).count(), len.min(1));
            assert_eq!(table.as_ptr().addr() % if len * 8 >= HUGE_PAGE { HUGE_PAGE } else { 64 }, 0);
        }
    }

    #[test]
    fn more_than_there_is_is_an_error() {
        assert!(Table::new(0u64, usize::MAX / 8).is_err());
        assert!(Table::new(0u64, usize::MAX / 2).is_err());
    }
}
