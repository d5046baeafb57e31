// SPDX-License-Identifier: Apache-2.0
//! Packets for the peer.

#![allow(unsafe_code, reason = "copies into memory that the peer writes")]

use std::sync::MutexGuard;
use std::sync::atomic::{Ordering, fence};

use netvm_notify::{RateLimit, Signaller, Wake};

use super::Link;
use super::end::{End, Place};
use crate::memory::Descriptor;
use crate::status::Fault;

/// Buffers that are prefetched at once: as many cache lines as a core can have under way, and some.
const AHEAD: usize = 32;

/// The sending end of a ring.
#[derive(Debug)]
pub(crate) struct Tx(End);

/// A packet was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// Too few buffers are free.
    Full,
    /// All buffers of the ring do not hold it.
    TooLong,
    /// The peer has broken a rule: it will be disconnected.
    Broken,
}

/// Sends interrupts of one queue, within a rate limit.
#[derive(Debug)]
pub(crate) struct Calls {
    signaller: Signaller,
    limit: RateLimit,
    pub(crate) is_pending: bool,
}

impl Default for Calls {
    fn default() -> Self {
        Self { signaller: Signaller::new(), limit: RateLimit::new(), is_pending: false }
    }
}

impl Tx {
    pub(crate) const fn new(end: End) -> Self {
        Self(end)
    }

    /// How many descriptors have free buffers.
    #[inline]
    fn free(&self) -> Result<u16, Fault> {
        let Self(end) = self;
        if end.is_client() {
            end.between(end.ring.tail(), end.next).map(|unread| end.ring.size() - unread)
        } else {
            end.between(end.next, end.ring.head())
        }
    }

    /// Announces what was written.
    #[inline]
    fn publish(&self) {
        let Self(end) = self;
        if end.is_client() { end.ring.set_head(end.next) } else { end.ring.set_tail(end.next) }
    }
}

/// A burst of packets for the peer, which it learns about when this is dropped.
#[derive(Debug)]
pub struct Sending<'a> {
    link: &'a Link,
    tx: MutexGuard<'a, Tx>,
    calls: &'a mut Calls,
    /// What was announced before.
    begin: u16,
    free: u16,
}

impl<'a> Sending<'a> {
    #[inline]
    pub(super) fn new(link: &'a Link, tx: MutexGuard<'a, Tx>, calls: &'a mut Calls) -> Option<Self> {
        let Ok(free) = tx.free() else {
            link.note_broken();
            return None;
        };
        let begin = tx.0.next;
        Some(Self { link, tx, calls, begin, free })
    }

    /// Prepares for this number of packets: their buffers are in the cache of the core that has read them last.
    #[inline]
    pub fn expect(&self, packets: usize) {
        let end = &self.tx.0;
        for n in 0..self.free.min(packets.min(AHEAD) as u16) {
            let count = end.next.wrapping_add(n);
            // A place that is wrong is noticed when it is used.
            if let Ok(place) = end.free_place(count, end.ring.descriptor(count)) {
                place.prefetch_to_write();
            }
        }
    }

    /// Sends a packet, given as pieces of memory.
    ///
    /// # Errors
    /// [`NotTaken`].
    ///
    /// # Safety
    /// The pieces can be read, and are outside the memory that the peer shares.
    #[inline]
    pub unsafe fn put(&mut self, pieces: &[(*const u8, usize)]) -> Result<(), NotTaken> {
        let mut left: usize = pieces.iter().map(|(_, length)| length).sum();
        let mut from = Pieces { rest: pieces.iter(), start: std::ptr::null(), bytes: 0 };
        let end = &self.tx.0;
        let mut used = 0;
        while left > 0 {
            if used == self.free {
                return Err(if used == end.ring.size() { NotTaken::TooLong } else { NotTaken::Full });
            }
            let count = end.next.wrapping_add(used);
            let descriptor = end.ring.descriptor(count);
            let Ok(Place { start, bytes: room }) = end.free_place(count, descriptor) else {
                self.link.note_broken();
                return Err(NotTaken::Broken);
            };
            let length = room.min(u32::try_from(left).unwrap_or(u32::MAX));
            // SAFETY: `free_place` has checked that the buffer has room for `room` bytes in a region, which the ring's
            // end keeps mapped and which cannot shrink; there are `left` bytes in the pieces, as the caller promises.
            unsafe { from.copy(start, length as usize) };
            left -= length as usize;
            // What is not announced in the end may be written again.
            end.fill(count, Descriptor { goes_on: left > 0, length, ..descriptor });
            used += 1;
        }
        self.tx.0.next = self.tx.0.next.wrapping_add(used);
        self.free -= used;
        Ok(())
    }
}

impl Drop for Sending<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.tx.0.next == self.begin && !self.calls.is_pending {
            return;
        }
        self.tx.publish();
        // Either the receiver sees the packets, or this side sees that it wants an interrupt.
        fence(Ordering::SeqCst);
        if self.tx.0.ring.wants_interrupt() {
            self.calls.signal(&self.tx.0);
        } else {
            self.calls.is_pending = false;
        }
    }
}

impl Calls {
    #[cold]
    fn signal(&mut self, end: &End) {
        let wake = self.limit.signal(&self.signaller, &*end.interrupt);
        self.is_pending = matches!(wake, Wake::Later | Wake::Omitted);
    }
}

/// The bytes of a packet that are not sent yet.
struct Pieces<'a> {
    rest: std::slice::Iter<'a, (*const u8, usize)>,
    start: *const u8,
    bytes: usize,
}

impl Pieces<'_> {
    /// Copies the next bytes.
    ///
    /// # Safety
    /// `to` has room for them, outside the pieces, and the pieces have as many.
    #[inline]
    unsafe fn copy(&mut self, mut to: *mut u8, mut length: usize) {
        while length > 0 {
            if self.bytes == 0 {
                let Some(next) = self.rest.next() else { return };
                (self.start, self.bytes) = *next;
                continue;
            }
            let count = length.min(self.bytes);
            // SAFETY: the piece has `bytes` bytes, and `to` room for `length`, as the caller promises.
            unsafe { std::ptr::copy_nonoverlapping(self.start, to, count) };
            (self.start, self.bytes) = (self.start.wrapping_add(count), self.bytes - count);
            (to, length) = (to.wrapping_add(count), length - count);
        }
    }
}
