// SPDX-License-Identifier: Apache-2.0
//! The four rings that a socket shares with the kernel.
//!
//! ```text
//!             producer   consumer   entries
//! fill        netvm        kernel     u64 address of a free buffer
//! rx          kernel     netvm       xdp_desc: address, length
//! tx          netvm        kernel     xdp_desc: address, length
//! completion  kernel     netvm       u64 address of a buffer of a sent frame
//! ```
//!
//! A ring is a power-of-two array of entries and two free-running 32-bit indexes on separate cache lines. The memory
//! ordering pairs with `net/xdp/xsk_queue.h`: the producer writes entries, then *releases* its index; the consumer
//! *acquires* that index, reads the entries, then *releases* its own; the producer *acquires* that before it overwrites
//! entries. Each side caches its own index and the last index it saw of the other, so a burst reads the other side's
//! cache line at most once, and only if the cached value does not cover the burst.
//!
//! The wake-up flag is read relaxed, so netvm may see it one burst late. The flag stays set until the kernel is woken:
//! a polling thread sees it in its next round, and a sleeping thread sleeps in `poll`, where the kernel checks again.
//!
//! Memory safety does not depend on what the kernel writes. Entries are addressed by masking our own index, and a
//! kernel index further away than the ring's size is ignored.

use std::io;
use std::marker::PhantomData;
use std::mem::{align_of, size_of};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::kernel::sys::{Mapping, Plain};

/// Offsets of a ring's parts in its mapping.
pub(crate) type Offsets = libc::xdp_ring_offset;

/// A mapped ring, from either end.
#[derive(Debug)]
struct View<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    size: u32,
    _mapping: Mapping,
    _entries: PhantomData<T>,
}

// SAFETY: the pointers point into the mapping that moves along; nothing is bound to a thread.
unsafe impl<T: Plain> Send for View<T> {}

impl<T: Plain> View<T> {
    /// Wraps a mapping of a ring with `size` entries. Refuses offsets outside the mapping.
    fn new(mapping: Mapping, offsets: &Offsets, size: u32) -> io::Result<Self> {
        let place = |offset: u64, bytes: usize, align: usize| -> io::Result<NonNull<u8>> {
            let offset = usize::try_from(offset).unwrap_or(usize::MAX);
            let end = offset.checked_add(bytes);
            if !size.is_power_of_two()
                || !offset.is_multiple_of(align)
                || end.is_none_or(|end| end > mapping.bytes())
            {
                return Err(io::Error::from_raw_os_error(libc::EPROTO));
            }
            // SAFETY: checked above to lie within the mapping.
            Ok(unsafe { mapping.address().add(offset) })
        };
        let index =
            |offset| place(offset, size_of::<AtomicU32>(), align_of::<AtomicU32>()).map(NonNull::cast);
        let (producer, consumer, flags) =
            (index(offsets.producer)?, index(offsets.consumer)?, index(offsets.flags)?);
        let entries = place(offsets.desc, size as usize * size_of::<T>(), align_of::<T>())?.cast();
        Ok(Self { producer, consumer, flags, entries, size, _mapping: mapping, _entries: PhantomData })
    }

    #[inline(always)]
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: `new` checked offset and alignment; the mapping lives as long as `self`; both sides access it
        // atomically.
        unsafe { self.producer.as_ref() }
    }

    #[inline(always)]
    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as for `producer`.
        unsafe { self.consumer.as_ref() }
    }

    #[inline(always)]
    fn flags(&self) -> &AtomicU32 {
        // SAFETY: as for `producer`.
        unsafe { self.flags.as_ref() }
    }

    /// Address of the entry at a free-running index.
    #[inline(always)]
    fn entry(&self, index: u32) -> *mut T {
        // SAFETY: the mask keeps the index below `size`, a power of two, and `new` checked that `size` entries lie in
        // the mapping.
        unsafe { self.entries.as_ptr().add((index & (self.size - 1)) as usize) }
    }
}

/// netvm's end of the fill or tx ring.
#[derive(Debug)]
pub(crate) struct Producer<T> {
    view: View<T>,
    /// Index of the next entry to write.
    next: u32,
    /// `next` may not pass this: the last seen consumer index plus the size.
    limit: u32,
}

impl<T: Plain> Producer<T> {
    pub(crate) fn new(mapping: Mapping, offsets: &Offsets, size: u32) -> io::Result<Self> {
        let view = View::new(mapping, offsets, size)?;
        let next = view.producer().load(Ordering::Relaxed);
        let mut ring = Self { view, next, limit: next };
        ring.refresh();
        Ok(ring)
    }

    #[inline]
    fn refresh(&mut self) {
        let consumed = self.view.consumer().load(Ordering::Acquire);
        if self.next.wrapping_sub(consumed) <= self.view.size {
            self.limit = consumed.wrapping_add(self.view.size);
        }
    }

    /// How many of `wanted` entries fit.
    #[inline]
    pub(crate) fn room(&mut self, wanted: usize) -> usize {
        if (self.limit.wrapping_sub(self.next) as usize) < wanted {
            self.refresh();
        }
        (self.limit.wrapping_sub(self.next) as usize).min(wanted)
    }

    /// Writes entry `ahead` after the next one, within what [`Producer::room`] granted. [`Producer::publish`] makes it
    /// visible.
    #[inline(always)]
    pub(crate) fn write(&mut self, ahead: usize, entry: T) {
        debug_assert!(ahead < self.limit.wrapping_sub(self.next) as usize);
        // SAFETY: `entry` returns an address in the ring for any index. The kernel reads an entry only after it is
        // published. If it read earlier, it would see a mix of two plain entries, which it checks like any other.
        unsafe { self.view.entry(self.next.wrapping_add(ahead as u32)).write(entry) };
    }

    /// Passes the first `count` written entries to the kernel.
    #[inline]
    pub(crate) fn publish(&mut self, count: usize) {
        self.next = self.next.wrapping_add(count as u32);
        self.view.producer().store(self.next, Ordering::Release);
    }

    /// Whether the kernel has yet to take published entries.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.view.consumer().load(Ordering::Relaxed) != self.next
    }

    /// Whether the kernel asks to be woken.
    #[inline]
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.view.flags().load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// Number of entries.
    pub(crate) fn size(&self) -> u32 {
        self.view.size
    }
}

/// netvm's end of the rx or completion ring.
#[derive(Debug)]
pub(crate) struct Consumer<T> {
    view: View<T>,
    /// Index of the next entry to read.
    next: u32,
    /// The last seen producer index.
    limit: u32,
}

impl<T: Plain> Consumer<T> {
    pub(crate) fn new(mapping: Mapping, offsets: &Offsets, size: u32) -> io::Result<Self> {
        let view = View::new(mapping, offsets, size)?;
        let next = view.consumer().load(Ordering::Relaxed);
        Ok(Self { view, next, limit: next })
    }

    /// How many of `wanted` entries can be read.
    #[inline]
    pub(crate) fn available(&mut self, wanted: usize) -> usize {
        if (self.limit.wrapping_sub(self.next) as usize) < wanted {
            let produced = self.view.producer().load(Ordering::Acquire);
            if produced.wrapping_sub(self.next) <= self.view.size {
                self.limit = produced;
            }
        }
        (self.limit.wrapping_sub(self.next) as usize).min(wanted)
    }

    /// Reads entry `ahead` after the next one, within what [`Consumer::available`] granted.
    #[inline(always)]
    pub(crate) fn read(&self, ahead: usize) -> T {
        debug_assert!(ahead < self.limit.wrapping_sub(self.next) as usize);
        // SAFETY: `entry` returns an address in the ring for any index, and any bytes there are a valid `Plain` value.
        unsafe { self.view.entry(self.next.wrapping_add(ahead as u32)).read() }
    }

    /// Returns the first `count` entries to the kernel.
    #[inline]
    pub(crate) fn release(&mut self, count: usize) {
        self.next = self.next.wrapping_add(count as u32);
        self.view.consumer().store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
