// SPDX-License-Identifier: Apache-2.0
//! Packets that the peer has put into a ring.

#![allow(unsafe_code, reason = "copies out of memory that the peer writes")]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use arrayvec::ArrayVec;

use super::end::{End, Place};
use crate::MAX_PACKET;
use crate::status::Fault;

/// Descriptors that are copied and checked together; most of one packet.
const WINDOW: usize = 64;
/// An Ethernet header.
const MIN_PACKET: usize = 14;

/// The receiving end of a ring.
#[derive(Debug)]
pub(crate) struct Rx {
    end: End,
    /// The peer was told that this side polls.
    is_polling: bool,
}

/// A part of a packet.
#[derive(Clone, Copy, Debug)]
struct Piece {
    place: Place,
    goes_on: bool,
}

/// A packet in shared memory.
#[derive(Debug)]
pub struct Received<'a> {
    pieces: &'a [Piece],
    /// Bytes; at least 14 and at most [`MAX_PACKET`].
    pub length: usize,
}

impl Received<'_> {
    /// Copies the packet, one piece of memory after the other. Returns whether there was room for it.
    ///
    /// # Safety
    /// Each piece may be written, and is outside the memory that the peer shares.
    #[inline]
    #[must_use]
    pub unsafe fn copy(&self, mut to: impl Iterator<Item = (*mut u8, usize)>) -> bool {
        let (mut place, mut room) = (std::ptr::null_mut::<u8>(), 0);
        for piece in self.pieces {
            let (mut from, mut length) = (piece.place.start.cast_const(), piece.place.bytes as usize);
            while length > 0 {
                if room == 0 {
                    let Some(next) = to.next() else { return false };
                    (place, room) = next;
                    continue;
                }
                let count = length.min(room);
                // SAFETY: `End::place` has checked that the piece lies in a region, which the borrowed `Rx` keeps
                // mapped and which cannot shrink; `place` has `room` bytes outside of it, as the caller promises. If
                // the peer writes meanwhile, the bytes are any mixture, and nothing depends on them.
                unsafe { std::ptr::copy_nonoverlapping(from, place, count) };
                (from, length) = (from.wrapping_add(count), length - count);
                (place, room) = (place.wrapping_add(count), room - count);
            }
        }
        true
    }
}

impl Rx {
    pub(crate) const fn new(end: End) -> Self {
        Self { end, is_polling: false }
    }

    pub(crate) const fn interrupt(&self) -> &Arc<OwnedFd> {
        &self.end.interrupt
    }

    /// The connection is up: a client offers all its buffers.
    pub(crate) fn begin(&self) {
        if self.end.is_client() {
            self.end.refill(self.end.next);
        }
    }

    /// How many descriptors the peer has filled.
    #[inline]
    fn filled(&self) -> Result<u16, Fault> {
        let End { ring, next, .. } = &self.end;
        let to = if self.end.is_client() { ring.tail() } else { ring.head() };
        self.end.between(*next, to)
    }

    /// Asks for interrupts. Returns whether packets are there, for which none will come.
    pub(crate) fn begin_wait(&mut self) -> bool {
        self.end.ring.want_interrupt(true);
        self.is_polling = false;
        // Either the peer sees that interrupts are wanted, or this side sees its packet.
        fence(Ordering::SeqCst);
        self.filled() != Ok(0)
    }

    /// See `Link::receive`.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        most: usize,
        take: &mut impl FnMut(&Received<'_>) -> Option<bool>,
    ) -> Result<u64, Fault> {
        let mut left = usize::from(self.filled()?);
        if left == 0 {
            return Ok(0);
        }
        if !self.is_polling {
            self.end.ring.want_interrupt(false);
            self.is_polling = true;
        }
        let (begin, mut malformed, mut handled, mut is_wide) = (self.end.next, 0, 0, false);
        'burst: while handled < most && left > 0 {
            // Most packets have one descriptor.
            let wanted = if is_wide { WINDOW } else { WINDOW.min(most - handled) };
            let window = self.window(wanted.min(left))?;
            let mut rest = window.as_slice();
            while handled < most && !rest.is_empty() {
                let (used, is_good) = match rest.iter().position(|piece| !piece.goes_on) {
                    Some(last) => {
                        let pieces = &rest[..=last];
                        let length = pieces.iter().map(|piece| piece.place.bytes as usize).sum();
                        let is_good = if (MIN_PACKET..=MAX_PACKET).contains(&length) {
                            take(&Received { pieces, length })
                        } else {
                            Some(false)
                        };
                        let Some(is_good) = is_good else { break 'burst };
                        (last + 1, is_good)
                    }
                    // The packet may go on after the window.
                    None if left > rest.len() && (rest.len() < window.len() || !is_wide) => {
                        is_wide = true;
                        break;
                    }
                    // It has too many pieces, or the peer has not announced all of them.
                    None => (rest.len(), false),
                };
                malformed += u64::from(!is_good);
                handled += 1;
                left -= used;
                if used > 1 {
                    self.end.end_chain(used as u16);
                }
                self.end.next = self.end.next.wrapping_add(used as u16);
                rest = &rest[used..];
            }
        }
        if self.end.next != begin {
            self.give_back(begin);
        }
        Ok(malformed)
    }

    /// Copies and checks the next descriptors, and prefetches what they lead to.
    #[inline]
    fn window(&self, count: usize) -> Result<ArrayVec<Piece, WINDOW>, Fault> {
        let mut window = ArrayVec::new();
        for n in 0..count.min(WINDOW) {
            let at = self.end.next.wrapping_add(n as u16);
            let descriptor = self.end.ring.descriptor(at);
            let place = self.end.place(at, descriptor)?;
            place.prefetch_to_read();
            window.push(Piece { place, goes_on: descriptor.goes_on });
        }
        Ok(window)
    }

    /// The peer may use the descriptors from `begin` on again.
    #[inline]
    fn give_back(&self, begin: u16) {
        if self.end.is_client() {
            self.end.refill(begin);
        } else {
            self.end.ring.set_tail(self.end.next);
        }
    }
}
