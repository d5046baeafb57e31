// SPDX-License-Identifier: Apache-2.0
//! A [`Batch`] owns the packets of a burst. It is a fixed-size array on a worker's stack, created once.
//!
//! Sending moves packets from the batch to a driver; unsent packets stay in the batch. Dropping a batch returns its
//! packets to their pools.

use std::fmt;
use std::mem::MaybeUninit;

use dpdk_sys as sys;

use crate::{Mbuf, MbufPtr};

/// Up to [`Batch::CAPACITY`] packets, in order.
///
/// ```
/// use dpdk::Batch;
///
/// let mut batch = Batch::new();
/// assert!(batch.is_empty());
/// for packet in batch.drain() {
///     println!("{} bytes from port {}", packet.pkt_len(), packet.port());
///     // Dropped here: back to its pool.
/// }
/// ```
pub struct Batch {
    /// At most CAPACITY; the first `len` mbufs are initialised and owned.
    len: usize,
    mbufs: [MaybeUninit<MbufPtr>; Batch::CAPACITY],
}

impl Batch {
    /// Packets that a batch holds at most.
    pub const CAPACITY: usize = 64;

    /// An empty batch.
    #[inline]
    #[must_use]
    pub const fn new() -> Self {
        Self { len: 0, mbufs: [MaybeUninit::uninit(); Self::CAPACITY] }
    }

    /// How many packets it holds.
    #[inline(always)]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    #[inline(always)]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many more it can hold.
    #[inline(always)]
    #[must_use]
    pub const fn room(&self) -> usize {
        Self::CAPACITY - self.len
    }

    /// Adds a packet.
    ///
    /// # Errors
    /// Gives the packet back if the batch is full.
    #[inline(always)]
    pub fn push(&mut self, packet: Mbuf) -> Result<(), Mbuf> {
        match self.mbufs.get_mut(self.len) {
            Some(slot) => {
                slot.write(packet.into_raw());
                self.len += 1;
                Ok(())
            }
            None => Err(packet),
        }
    }

    /// Adds a packet for which the caller has made sure of room, so that none is lost without a count.
    ///
    /// # Panics
    /// If the batch is full, as any index does that is out of range.
    #[inline(always)]
    pub fn add(&mut self, packet: Mbuf) {
        self.mbufs[self.len].write(packet.into_raw());
        self.len += 1;
    }

    /// Takes the last packet.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<Mbuf> {
        let packet = self.raw().last().copied()?;
        self.len -= 1;
        // SAFETY: the batch owned it, and no longer counts it.
        Some(unsafe { packet.own() })
    }

    /// The packets.
    #[inline(always)]
    #[must_use]
    pub fn as_slice(&self) -> &[Mbuf] {
        let raw = self.raw();
        // SAFETY: Mbuf and MbufPtr are the same in memory (repr(transparent)). The batch owns the packets, and the
        // slice borrows it, so none is freed while it lives; a shared slice does not let go of them.
        unsafe { std::slice::from_raw_parts(raw.as_ptr().cast(), raw.len()) }
    }

    /// The packets, to change or reorder.
    #[inline(always)]
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [Mbuf] {
        // SAFETY: as in `as_slice`. A packet that is taken out of the slice has another put in its place, so that
        // every slot still holds one that the batch owns. `len` was initialised up to its value.
        unsafe { std::slice::from_raw_parts_mut(self.mbufs.as_mut_ptr().cast(), self.len) }
    }

    /// Takes all packets out, in order. Dropping the iterator frees the packets that it has not returned.
    #[inline(always)]
    pub fn drain(&mut self) -> Drain<'_> {
        let end = std::mem::take(&mut self.len);
        Drain { batch: self, next: 0, end }
    }

    /// Transfers ownership of all packets to the caller.
    #[inline(always)]
    pub fn release(&mut self) -> &[MbufPtr] {
        let len = std::mem::take(&mut self.len);
        // SAFETY: the first `len` slots are initialised, and stay so until the borrow of the batch ends.
        unsafe { std::slice::from_raw_parts(self.mbufs.as_ptr().cast(), len) }
    }

    /// Takes ownership of packets, as many as there is room for; returns how many.
    ///
    /// # Safety
    /// As for [`MbufPtr::own`], for each packet that it takes.
    #[inline(always)]
    pub unsafe fn adopt(&mut self, mbufs: &[MbufPtr]) -> usize {
        let count = mbufs.len().min(self.room());
        for (slot, mbuf) in self.mbufs[self.len..].iter_mut().zip(mbufs) {
            slot.write(*mbuf);
        }
        self.len += count;
        count
    }

    /// Moves packets from the front of `other` until this batch is full or that one empty; returns how many.
    #[inline]
    pub fn append(&mut self, other: &mut Self) -> usize {
        let count = other.len.min(self.room());
        self.mbufs[self.len..self.len + count].copy_from_slice(&other.mbufs[..count]);
        self.len += count;
        // SAFETY: this batch owns them now.
        unsafe { other.forget_front(count) };
        count
    }

    /// Takes out the packets from the `at`th on.
    #[inline]
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        let mut rest = Self::new();
        let at = at.min(self.len);
        let count = self.len - at;
        rest.mbufs[..count].copy_from_slice(&self.mbufs[at..self.len]);
        rest.len = count;
        self.len = at;
        rest
    }

    /// Keeps the packets that `keeps` accepts, which may change them, and takes out the others. Both stay in order.
    ///
    /// ```
    /// use dpdk::Batch;
    ///
    /// let mut batch = Batch::new();
    /// let long = batch.partition(|packet| packet.pkt_len() <= 1514);
    /// assert!(batch.is_empty() && long.is_empty());
    /// ```
    #[inline]
    #[must_use]
    pub fn partition(&mut self, mut keeps: impl FnMut(&mut Mbuf) -> bool) -> Self {
        let mut others = Self::new();
        let mut kept = 0;
        // If `keeps` panics, packets leak, and none is freed twice.
        for n in 0..std::mem::take(&mut self.len) {
            // SAFETY: `n` is below what `len` was: initialised, and counted by neither batch at the moment.
            let mut packet = unsafe { self.mbufs[n].assume_init().own() };
            let is_kept = keeps(&mut packet);
            let (slots, next) =
                if is_kept { (&mut self.mbufs, &mut kept) } else { (&mut others.mbufs, &mut others.len) };
            slots[*next].write(packet.into_raw());
            *next += 1;
        }
        self.len = kept;
        others
    }

    /// Keeps the packets that `keeps` accepts, which may change them, and frees the others.
    #[inline]
    pub fn retain(&mut self, keeps: impl FnMut(&mut Mbuf) -> bool) {
        drop(self.partition(keeps));
    }

    /// Frees all packets.
    #[inline]
    pub fn clear(&mut self) {
        let count = std::mem::take(&mut self.len);
        if count != 0 {
            // SAFETY: the first `count` slots hold mbufs that the batch owned and no longer counts.
            unsafe { sys::netvm_mbuf_free(self.mbufs.as_mut_ptr().cast(), count as u32) };
        }
    }

    /// The packets' addresses.
    #[inline(always)]
    #[must_use]
    pub fn raw(&self) -> &[MbufPtr] {
        // SAFETY: the first `len` slots are initialised.
        unsafe { std::slice::from_raw_parts(self.mbufs.as_ptr().cast(), self.len) }
    }

    /// For C functions that take packets: an array whose first [`Batch::len`] pointers are packets.
    ///
    /// Follow with [`Batch::forget_front`].
    #[inline(always)]
    pub fn as_mut_ptr(&mut self) -> *mut *mut sys::rte_mbuf {
        self.mbufs.as_mut_ptr().cast()
    }

    /// For C functions that return packets: the free slots and their number.
    ///
    /// Follow with [`Batch::assume_added`].
    #[inline(always)]
    pub fn spare(&mut self) -> (*mut *mut sys::rte_mbuf, usize) {
        // `len` is at most CAPACITY.
        (self.mbufs.as_mut_ptr().wrapping_add(self.len).cast(), self.room())
    }

    /// Removes the first `count` packets, which now have another owner; the others move to the front.
    ///
    /// # Safety
    /// `count` is at most [`Batch::len`], and the packets have another owner (otherwise they leak).
    #[inline(always)]
    pub unsafe fn forget_front(&mut self, count: usize) {
        debug_assert!(count <= self.len);
        let left = self.len - count;
        if left != 0 {
            self.mbufs.copy_within(count..self.len, 0);
        }
        self.len = left;
    }

    /// `count` packets have been written to [`Batch::spare`].
    ///
    /// # Safety
    /// The packets were written, `count` is at most the number of free slots, and nothing else owns the packets.
    #[inline(always)]
    pub unsafe fn assume_added(&mut self, count: usize) {
        debug_assert!(count <= self.room());
        self.len += count;
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl From<Mbuf> for Batch {
    /// A batch of one packet.
    #[inline(always)]
    fn from(packet: Mbuf) -> Self {
        let mut batch = Self::new();
        batch.add(packet);
        batch
    }
}

impl Drop for Batch {
    #[inline]
    fn drop(&mut self) {
        self.clear();
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.raw()).finish()
    }
}

impl<'a> IntoIterator for &'a Batch {
    type Item = &'a Mbuf;
    type IntoIter = std::slice::Iter<'a, Mbuf>;

    #[inline(always)]
    fn into_iter(self) -> Self::IntoIter {
        self.as_slice().iter()
    }
}

impl<'a> IntoIterator for &'a mut Batch {
    type Item = &'a mut Mbuf;
    type IntoIter = std::slice::IterMut<'a, Mbuf>;

    #[inline(always)]
    fn into_iter(self) -> Self::IntoIter {
        self.as_mut_slice().iter_mut()
    }
}

/// Takes the packets out of a [`Batch`]; see [`Batch::drain`].
///
/// The batch is empty as soon as this exists. Leaking it leaks its packets.
#[derive(Debug)]
pub struct Drain<'a> {
    batch: &'a mut Batch,
    /// The slots from `next` to `end` hold mbufs that the iterator owns.
    next: usize,
    end: usize,
}

impl Iterator for Drain<'_> {
    type Item = Mbuf;

    #[inline(always)]
    fn next(&mut self) -> Option<Mbuf> {
        if self.next == self.end {
            return None;
        }
        // SAFETY: `next` is below `end`, which was the batch's `len`: initialised and owned by the iterator.
        let packet = unsafe { self.batch.mbufs.get_unchecked(self.next).assume_init() };
        self.next += 1;
        // SAFETY: as above; it is not counted any more.
        Some(unsafe { packet.own() })
    }

    #[inline(always)]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.end - self.next, Some(self.end - self.next))
    }
}

impl ExactSizeIterator for Drain<'_> {}

impl Drop for Drain<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.next != self.end {
            let rest = self.batch.mbufs[self.next..self.end].as_mut_ptr();
            // SAFETY: these slots hold mbufs that the iterator owns and that are not counted afterwards.
            unsafe { sys::netvm_mbuf_free(rest.cast(), (self.end - self.next) as u32) };
        }
    }
}
