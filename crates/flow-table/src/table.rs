// SPDX-License-Identifier: Apache-2.0
//! [`Table`] and [`Array`]: values by index.

use std::alloc::{Layout, handle_alloc_error};
use std::ops::{Deref, DerefMut};

use crate::memory::{Memory, NoMemory};

/// A boxed slice of 2^n values, on huge pages if the kernel has them and the table fills at least one. Indexes wrap, so
/// a lookup needs no bounds check.
#[derive(Debug)]
pub struct Table<T>(Memory<T>);

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
        let len = 1usize.checked_shl(order).ok_or(NoMemory { bytes: usize::MAX })?;
        Memory::try_new(value, len).map(Self)
    }
}

impl<T> Table<T> {
    /// The value at a wrapped index.
    #[inline(always)]
    #[must_use]
    pub fn at(&self, place: usize) -> &T {
        self.0.at_wrapped(place)
    }

    /// The value at a wrapped index, mutable.
    #[inline(always)]
    pub fn at_mut(&mut self, place: usize) -> &mut T {
        self.0.at_wrapped_mut(place)
    }

    /// Prefetches cache line `line` of the value at a wrapped index.
    #[inline(always)]
    pub fn prefetch(&self, place: usize, line: usize) {
        self.0.prefetch(place & self.0.last(), line);
    }
}

impl<T> Deref for Table<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for Table<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

/// A boxed slice of any length, for tables too large for a power of two; otherwise like [`Table`]. An index beyond it
/// is that of the last value.
#[derive(Debug)]
pub struct Array<T>(Memory<T>);

impl<T: Copy> Array<T> {
    /// This many copies of `value`, and at least one. Touches all pages here, so that the first packets need not.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn try_new(value: T, len: usize) -> Result<Self, NoMemory> {
        Memory::try_new(value, len).map(Self)
    }
}

impl<T> Array<T> {
    /// The value at an index.
    #[inline(always)]
    #[must_use]
    pub fn at(&self, index: usize) -> &T {
        self.0.at(index)
    }

    /// The value at an index, mutable.
    #[inline(always)]
    pub fn at_mut(&mut self, index: usize) -> &mut T {
        self.0.at_mut(index)
    }

    /// Prefetches cache line `line` of the value at an index.
    #[inline(always)]
    pub fn prefetch(&self, index: usize, line: usize) {
        self.0.prefetch(index, line);
    }
}

impl<T> Deref for Array<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::HUGE_PAGE;

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

    #[test]
    fn an_array_has_its_own_length_and_ends_at_its_last_value() {
        for len in [0, 1, 3, 1000, 300_001] {
            let mut array = Array::try_new(7u64, len).unwrap();
            let last = len.max(1) - 1;
            assert!(array.iter().all(|value| *value == 7) && array.len() == last + 1);
            *array.at_mut(last) = 8;
            assert_eq!(
                (*array.at(last), *array.at(usize::MAX), *array.at(last / 2)),
                (8, 8, array[last / 2])
            );
            array.prefetch(last, 0);
        }
        assert!(Array::try_new(0u64, usize::MAX / 4).is_err());
    }
}
