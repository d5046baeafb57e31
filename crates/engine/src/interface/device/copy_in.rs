// SPDX-License-Identifier: Apache-2.0
//! Packets out of memory that a guest or a program can write, copied into buffers.

use dpdk::{Batch, MAX_PARTS, Mbuf, Part};

use super::buffers::begin_large;
use crate::memory::Memory;

/// Buffers taken from the pool at once.
const SPARE: usize = 32;

/// A packet in memory that its sender can write.
pub(crate) trait Foreign {
    /// Bytes of it, at most 64 KiB with some headers.
    fn length(&self) -> usize;

    /// Copies it, one piece of memory after the other. Returns whether all of it could be read and there was room.
    ///
    /// # Safety
    /// Each piece may be written, and is outside the sender's memory.
    unsafe fn copy(&self, to: impl Iterator<Item = (*mut u8, usize)>) -> bool;
}

/// Copies packets into buffers of one memory.
#[derive(Default)]
pub(crate) struct CopyIn {
    /// Empty buffers.
    spare: Batch,
}

impl CopyIn {
    /// Copies a packet. A packet of one buffer has room for `more` bytes. `None` while too few buffers are free;
    /// `Some(None)` if the packet cannot be read, or has too many parts.
    #[inline]
    pub(crate) fn take(&mut self, from: &impl Foreign, more: usize, memory: &Memory) -> Option<Option<Mbuf>> {
        let geometry = memory.region().geometry();
        let (headroom, room) = (geometry.headroom as u16, geometry.room() as usize);
        let length = from.length();
        if length + more > room {
            return take_long(from, memory);
        }
        if self.spare.is_empty() {
            memory.pool.alloc_frames_into(&mut self.spare, SPARE, headroom, 0);
        }
        let mut packet = self.spare.pop()?;
        // The pool's buffers have this room.
        packet.set_bounds(headroom, length as u16).ok()?;
        // SAFETY: the buffer is ours and has room for the packet, as just checked.
        let is_whole = unsafe { from.copy(std::iter::once((packet.data(), length))) };
        Some(is_whole.then_some(packet))
    }

    /// Gives its buffers back.
    pub(crate) fn clear(&mut self) {
        self.spare.clear();
    }
}

/// As [`CopyIn::take`], for a packet that needs a large buffer or several buffers.
#[cold]
fn take_long(from: &impl Foreign, memory: &Memory) -> Option<Option<Mbuf>> {
    let geometry = memory.region().geometry();
    let (headroom, room) = (geometry.headroom as u16, geometry.room() as usize);
    let mut place = Batch::new();
    let first = if begin_large(&mut place, memory, headroom) { geometry.large_room() as usize } else { 0 };
    let missing = from.length().saturating_sub(first).div_ceil(room.max(1));
    if missing >= MAX_PARTS {
        // With a large buffer it would fit, but none may ever be there.
        return if memory.large.is_some() { None } else { Some(None) };
    }
    if memory.pool.alloc_frames_into(&mut place, missing, headroom, 0) < missing {
        return None;
    }
    let pieces = place.as_slice().iter().map(|buffer| {
        let Part { bytes, length } = buffer.room();
        (bytes.cast(), length)
    });
    // SAFETY: the buffers are ours.
    let is_whole = unsafe { from.copy(pieces) };
    Some(is_whole.then(|| Mbuf::of_parts(&mut place, from.length() as u32)).flatten())
}
