// SPDX-License-Identifier: Apache-2.0
//! A ring in a region: atomic words, which the peer may change at any time.

#![allow(unsafe_code, reason = "memory that the peer writes, as atomic words")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::region::Region;
use crate::MAX_LOG2_RING_SIZE;

/// What a ring begins with (`MEMIF_COOKIE`).
const COOKIE: u32 = 0x03e3_1f20;
/// Places of the fields.
const FLAGS: usize = 4;
const HEAD: usize = 6;
const TAIL: usize = 64;
const DESCRIPTORS: usize = 128;
/// Bytes of a descriptor.
const DESCRIPTOR: usize = 16;
/// The receiver polls (`MEMIF_RING_FLAG_MASK_INT`).
const MASK_INTERRUPT: u16 = 1;
/// The packet goes on in the next descriptor (`MEMIF_DESC_FLAG_NEXT`).
const NEXT: u16 = 1;

/// A copy of a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// The packet goes on in the next one.
    pub(crate) goes_on: bool,
    pub(crate) region: u16,
    pub(crate) length: u32,
    pub(crate) offset: u32,
}

impl Descriptor {
    #[inline]
    fn of_words([first, second]: [u64; 2]) -> Self {
        let ([a, b, c, d, e, f, g, h], [i, j, k, l, ..]) = (first.to_ne_bytes(), second.to_ne_bytes());
        Self {
            goes_on: u16::from_ne_bytes([a, b]) & NEXT != 0,
            region: u16::from_ne_bytes([c, d]),
            length: u32::from_ne_bytes([e, f, g, h]),
            offset: u32::from_ne_bytes([i, j, k, l]),
        }
    }

    #[inline]
    fn words(self) -> [u64; 2] {
        let flags = if self.goes_on { NEXT } else { 0 };
        let ([a, b], [c, d]) = (flags.to_ne_bytes(), self.region.to_ne_bytes());
        let ([e, f, g, h], [i, j, k, l]) = (self.length.to_ne_bytes(), self.offset.to_ne_bytes());
        [u64::from_ne_bytes([a, b, c, d, e, f, g, h]), u64::from_ne_bytes([i, j, k, l, 0, 0, 0, 0])]
    }
}

/// A ring.
#[derive(Debug)]
pub(crate) struct Ring {
    /// Where it begins, aligned to 16 bytes.
    base: *mut u8,
    log2_size: u8,
    // Keeps the ring mapped.
    _region: Arc<Region>,
}

// SAFETY: the memory stays mapped as long as the region, which the ring has a part of, and every access is atomic.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// Bytes of a ring with 2^`log2_size` descriptors.
    pub(crate) const fn bytes(log2_size: u8) -> u32 {
        (DESCRIPTORS + (DESCRIPTOR << log2_size)) as u32
    }

    /// The ring at an offset; `None` if it is too large, not aligned, or not in the region.
    pub(crate) fn at(region: &Arc<Region>, offset: u32, log2_size: u8) -> Option<Self> {
        if log2_size > MAX_LOG2_RING_SIZE || !offset.is_multiple_of(DESCRIPTOR as u32) {
            return None;
        }
        // Mappings begin at a page.
        let base = region.part(offset, Self::bytes(log2_size))?;
        Some(Self { base, log2_size, _region: Arc::clone(region) })
    }

    #[inline]
    fn short(&self, at: usize) -> &AtomicU16 {
        // SAFETY: `at` has checked that the ring with its head of 128 bytes is mapped, and that it is aligned to 16;
        // the places of the fields are below 128 and even.
        unsafe { AtomicU16::from_ptr(self.base.wrapping_add(at).cast()) }
    }

    fn cookie(&self) -> &AtomicU32 {
        // SAFETY: as in `short`; the cookie is at 0.
        unsafe { AtomicU32::from_ptr(self.base.cast()) }
    }

    /// Whether its client has made a ring of it.
    pub(crate) fn has_cookie(&self) -> bool {
        self.cookie().load(Ordering::Relaxed) == COOKIE
    }

    /// Makes a ring of memory that is all zeros.
    pub(crate) fn write_cookie(&self) {
        self.cookie().store(COOKIE, Ordering::Relaxed);
    }

    /// How many descriptors it has.
    #[inline]
    pub(crate) const fn size(&self) -> u16 {
        1 << self.log2_size
    }

    /// What the client has written, as a count of descriptors.
    #[inline]
    pub(crate) fn head(&self) -> u16 {
        self.short(HEAD).load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn set_head(&self, count: u16) {
        self.short(HEAD).store(count, Ordering::Release);
    }

    /// What the server has done, as a count of descriptors.
    #[inline]
    pub(crate) fn tail(&self) -> u16 {
        self.short(TAIL).load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn set_tail(&self, count: u16) {
        self.short(TAIL).store(count, Ordering::Release);
    }

    /// Whether the receiver wants an interrupt.
    #[inline]
    pub(crate) fn wants_interrupt(&self) -> bool {
        self.short(FLAGS).load(Ordering::Relaxed) & MASK_INTERRUPT == 0
    }

    /// Says, as the receiver, whether it wants interrupts.
    pub(crate) fn want_interrupt(&self, wants: bool) {
        self.short(FLAGS).store(if wants { 0 } else { MASK_INTERRUPT }, Ordering::Relaxed);
    }

    /// A word of the descriptor for a count.
    #[inline]
    fn word(&self, count: u16, half: usize) -> &AtomicU64 {
        let slot = usize::from(count & (self.size() - 1));
        let place = self.base.wrapping_add(DESCRIPTORS + slot * DESCRIPTOR + 8 * half);
        // SAFETY: the slot is below the ring's size, with which `at` has checked that the ring is mapped; it is aligned
        // to 16, and so each half to 8.
        unsafe { AtomicU64::from_ptr(place.cast()) }
    }

    /// Copies the descriptor for a count.
    #[inline]
    pub(crate) fn descriptor(&self, count: u16) -> Descriptor {
        Descriptor::of_words([0, 1].map(|half| self.word(count, half).load(Ordering::Relaxed)))
    }

    /// Writes the descriptor for a count.
    #[inline]
    pub(crate) fn set_descriptor(&self, count: u16, descriptor: Descriptor) {
        for (half, word) in (0..).zip(descriptor.words()) {
            self.word(count, half).store(word, Ordering::Relaxed);
        }
    }

    /// Writes the first half of the descriptor for a count: all but its offset.
    #[inline]
    pub(crate) fn set_length(&self, count: u16, descriptor: Descriptor) {
        self.word(count, 0).store(descriptor.words()[0], Ordering::Relaxed);
    }
}
