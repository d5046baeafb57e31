//! The four rings that a socket shares with the kernel.
//!
//! ```text
//!             producer   consumer   entries
//! fill        we         kernel     u64 address of a free buffer
//! rx          kernel     we         xdp_desc: address, length
//! tx          we         kernel     xdp_desc: address, length
//! completion  kernel     we         u64 address of a buffer that was sent
//! ```
//!
//! A ring is a power-of-two array of entries and two free-running 32-bit indexes, on cache lines of their own. Orderings,
//! which pair with those of `net/xdp/xsk_queue.h`: the producer writes entries, then *releases* its index; the
//! consumer *acquires* that index, reads entries, then *releases* its own; the producer *acquires* it before it writes
//! over what was read. Each side keeps a private copy of its own index and of the last one that it saw of the other, so
//! that a burst touches the other's cache line once, and only when the copy does not cover the burst.
//!
//! The wake-up flag is read relaxed and may be seen late by one burst; it stays set until the kernel is woken, so a
//! thread that polls sees it in its next round, and one that sleeps does so in `poll`, which asks the kernel anew.
//!
//! Memory safety rests on nothing that the kernel writes: entries are found by masking our own index, and an index of
//! the kernel's that is further away than the ring is long is ignored.

use std::io;
use std::marker::PhantomData;
use std::mem::{align_of, size_of};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys::{Mapping, Plain};

/// Places of a ring's parts in its mapping.
pub(crate) type Offsets = libc::xdp_ring_offset;

/// One mapped ring, seen from either end.
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

// SAFETY: the pointers lead into the mapping that moves along; nothing is bound to a thread.
unsafe impl<T: Plain> Send for View<T> {}

impl<T: Plain> View<T> {
    /// Takes a mapping for a ring of `size` entries. Refuses offsets that do not lie in it.
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
            // SAFETY: just checked to lie within the mapping.
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
        // SAFETY: `new` checked place and alignment; the mapping lives as long as self; both sides access it
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

    /// Address of the entry that a free-running index stands for.
    #[inline(always)]
    fn entry(&self, index: u32) -> *mut T {
        // SAFETY: the mask keeps the index below `size` (a power of two), and `new` checked that so many entries lie
        // in the mapping.
        unsafe { self.entries.as_ptr().add((index & (self.size - 1)) as usize) }
    }
}

/// Our end of the fill or tx ring.
#[derive(Debug)]
pub(crate) struct Producer<T> {
    view: View<T>,
    /// Index of the next entry to write.
    next: u32,
    /// Index that `next` may not pass: the last seen consumer index plus the size.
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

    /// How many of `wanted` entries there is room for.
    #[inline]
    pub(crate) fn room(&mut self, wanted: usize) -> usize {
        if (self.limit.wrapping_sub(self.next) as usize) < wanted {
            self.refresh();
        }
        (self.limit.wrapping_sub(self.next) as usize).min(wanted)
    }

    /// Writes the entry `ahead` of the next one. It is published by [`Producer::publish`], and must be one of those
    /// that [`Producer::room`] granted.
    #[inline(always)]
    pub(crate) fn write(&mut self, ahead: usize, entry: T) {
        debug_assert!(ahead < self.limit.wrapping_sub(self.next) as usize);
        // SAFETY: `entry` gives a place in the ring for any index. The kernel reads it only after it is published;
        // were it to read it now, it would see a mixture of two plain entries and check it like any other.
        unsafe { self.view.entry(self.next.wrapping_add(ahead as u32)).write(entry) };
    }

    /// Hands the first `count` entries written to the kernel.
    #[inline]
    pub(crate) fn publish(&mut self, count: usize) {
        self.next = self.next.wrapping_add(count as u32);
        self.view.producer().store(self.next, Ordering::Release);
    }

    /// Whether the kernel has not yet taken all that was published.
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

/// Our end of the rx or completion ring.
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

    /// Reads the entry `ahead` of the next one; it must be one of those that [`Consumer::available`] granted.
    #[inline(always)]
    pub(crate) fn read(&self, ahead: usize) -> T {
        debug_assert!(ahead < self.limit.wrapping_sub(self.next) as usize);
        // SAFETY: `entry` gives a place in the ring for any index, and any bytes there are a value of a Plain type.
        unsafe { self.view.entry(self.next.wrapping_add(ahead as u32)).read() }
    }

    /// Gives the first `count` entries back to the kernel.
    #[inline]
    pub(crate) fn release(&mut self, count: usize) {
        self.next = self.next.wrapping_add(count as u32);
        self.view.consumer().store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
