// SPDX-License-Identifier: Apache-2.0
//! A ring of records in shared memory: a worker writes, a reader in another process reads.
//!
//! ```text
//!  byte 0            64           128     192               4096 + …           data               end
//!       ┌────────────┬────────────┬───────┬─────────────────┬──────────────────┬───────────────────┐
//!       │ head       │ tail       │ data  │                 │ counts of each   │ records           │
//!       │ (worker)   │ (reader)   │ bytes │                 │ interface        │                   │
//!       └────────────┴────────────┴───────┴─────────────────┴──────────────────┴───────────────────┘
//! ```
//!
//! `head` and `tail` count bytes since the beginning. A record does not wrap: where it does not fit before the end, one
//! without a packet fills the rest. The worker reads nothing but `tail`, and only subtracts it: whatever a reader
//! writes, the worker stays within the memory, and the reader loses its own packets. The memory is sealed against
//! shrinking.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use netvm_region::{MapError, Mapping};

use crate::record::{HEADER, Record};

/// Interfaces that a capture can have.
pub const MAX_INTERFACES: usize = 1024;

const HEAD: u64 = 0;
const TAIL: u64 = 64;
const DATA_BYTES: u64 = 128;
const COUNTS: u64 = 4096;
/// Where records begin.
const DATA: u64 = COUNTS + (MAX_INTERFACES * size_of::<SharedCounts>()) as u64;
/// Bytes of records that a ring can have.
const SIZES: std::ops::RangeInclusive<u64> = 1 << 17..=1 << 30;
/// The longest packet that is captured.
const MAX_PACKET: usize = 0xffff;

/// Packets of one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Packets that passed the capture point.
    pub seen: u64,
    /// Packets that the filter accepted.
    pub accepted: u64,
    /// Accepted packets that the ring had no room for.
    pub lost: u64,
    /// Packets that were not filtered, because filters had used up their share of the worker's time.
    pub missed: u64,
}

#[repr(C)]
struct SharedCounts {
    seen: AtomicU64,
    accepted: AtomicU64,
    lost: AtomicU64,
    missed: AtomicU64,
}

/// A ring cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The memory.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The memory is no ring of this version.
    #[error("the memory holds no capture ring: netvmd and this program are of different versions")]
    Layout,
}

/// What the memory is for.
const NAME: &str = "capture";

/// Bytes of records for which a ring has room: a power of two near `wanted`, within the limits.
#[must_use]
pub fn ring_bytes(wanted: u64) -> u64 {
    wanted.clamp(*SIZES.start(), *SIZES.end()).next_power_of_two()
}

/// The worker's end.
#[derive(Debug)]
pub struct Writer {
    memory: Mapping,
    mask: u64,
    head: u64,
    /// The reader's index, as it was last read.
    tail: u64,
    counts: Box<[Counts]>,
}

impl Writer {
    /// Makes a ring with room for [`ring_bytes`] of records. It is all allocated now.
    ///
    /// # Errors
    /// [`RingError::Map`] when there is too little memory.
    pub fn create(wanted: u64) -> Result<Self, RingError> {
        let ring = Self::create_spare(wanted)?;
        ring.allocate()?;
        Ok(ring)
    }

    /// The same for a worker that may come later: call [`Writer::allocate`] before the first record.
    ///
    /// # Errors
    /// [`RingError::Map`].
    pub fn create_spare(wanted: u64) -> Result<Self, RingError> {
        let bytes = ring_bytes(wanted);
        let memory = Mapping::create_empty(NAME, DATA + bytes)?;
        let writer = Self {
            memory,
            mask: bytes - 1,
            head: 0,
            tail: 0,
            counts: vec![Counts::default(); MAX_INTERFACES].into(),
        };
        writer.word(DATA_BYTES).store(bytes, Ordering::Release);
        Ok(writer)
    }

    /// Allocates all memory, if it is not allocated yet.
    ///
    /// # Errors
    /// [`RingError::Map`] when there is too little memory.
    pub fn allocate(&self) -> Result<(), RingError> {
        Ok(self.memory.populate(NAME)?)
    }

    /// Gives the memory of the records back to the kernel, also if the reader keeps it mapped. The counts stay.
    pub fn release(&self) {
        self.memory.discard(DATA, self.mask + 1);
    }

    #[inline(always)]
    fn word(&self, at: u64) -> &AtomicU64 {
        // SAFETY: the word lies in the mapping, which lives as long as `self`; it is only accessed atomically.
        unsafe { self.memory.at::<AtomicU64>(at).as_ref() }
    }

    /// Writes a record of `length` bytes at `packet`, unless the ring is full: then it is counted as lost. The reader
    /// sees it after [`Writer::publish`].
    ///
    /// # Safety
    /// `length` bytes at `packet` can be read. Another process may write to them meanwhile.
    #[inline]
    pub unsafe fn write(&mut self, record: Record, packet: *const u8, length: usize) -> bool {
        let length = length.min(MAX_PACKET);
        let size = (HEADER + length).next_multiple_of(8) as u64;
        let to_end = (self.mask + 1) - (self.head & self.mask);
        let skipped = if size > to_end { to_end } else { 0 };
        let interface = usize::from(record.interface) % MAX_INTERFACES;
        self.counts[interface].accepted += 1;
        if !self.has_room(skipped + size) {
            self.counts[interface].lost += 1;
            return false;
        }
        if skipped > 0 {
            // The rest is at least 8 bytes: sizes are multiples of 8. A size of 0 leads to the start.
            self.word(DATA + (self.head & self.mask)).store(0, Ordering::Relaxed);
            self.head = self.head.wrapping_add(skipped);
        }
        let at = DATA + (self.head & self.mask);
        let header = record.to_bytes(size as u32, length as u32);
        // SAFETY: `at` and `size` bytes after it lie in the mapping: the mask keeps the start within the records, and
        // the end was checked above. The reader does not read them before `head` is published. `packet` is the
        // caller's.
        unsafe {
            let to = self.memory.base().as_ptr().add(at as usize);
            to.cast::<[u64; HEADER / 8]>().write(header);
            core::ptr::copy_nonoverlapping(packet, to.add(HEADER), length);
        }
        self.head = self.head.wrapping_add(size);
        true
    }

    /// Whether so many bytes are free. The reader's index is hostile: one that is ahead of `head`, or too far behind
    /// it, leaves no room.
    #[inline(always)]
    fn has_room(&mut self, wanted: u64) -> bool {
        let is_free = |head: u64, tail: u64, mask: u64| {
            head.wrapping_sub(tail).checked_add(wanted).is_some_and(|used| used <= mask + 1)
        };
        if is_free(self.head, self.tail, self.mask) {
            return true;
        }
        self.tail = self.word(TAIL).load(Ordering::Acquire);
        is_free(self.head, self.tail, self.mask)
    }

    /// Counts packets that passed the capture point of an interface.
    #[inline(always)]
    pub fn count_seen(&mut self, interface: u16, packets: u64) {
        self.counts[usize::from(interface) % MAX_INTERFACES].seen += packets;
    }

    /// Counts packets that were not filtered.
    #[inline(always)]
    pub fn count_missed(&mut self, interface: u16, packets: u64) {
        self.counts[usize::from(interface) % MAX_INTERFACES].missed += packets;
    }

    /// Shows the reader what was written, and the counts of an interface.
    #[inline(always)]
    pub fn publish(&mut self, interface: u16) {
        let interface = usize::from(interface) % MAX_INTERFACES;
        let shared = counts_of(&self.memory, interface);
        let own = self.counts[interface];
        shared.seen.store(own.seen, Ordering::Relaxed);
        shared.accepted.store(own.accepted, Ordering::Relaxed);
        shared.lost.store(own.lost, Ordering::Relaxed);
        shared.missed.store(own.missed, Ordering::Relaxed);
        self.word(HEAD).store(self.head, Ordering::Release);
    }
}

impl AsFd for Writer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

/// The counts of an interface, which is below [`MAX_INTERFACES`].
#[inline(always)]
fn counts_of(memory: &Mapping, interface: usize) -> &SharedCounts {
    let at = COUNTS + (interface * size_of::<SharedCounts>()) as u64;
    // SAFETY: they lie in the mapping, which lives as long as the reference; they are only accessed atomically.
    unsafe { memory.at::<SharedCounts>(at).as_ref() }
}

/// The reader's end.
#[derive(Debug)]
pub struct Reader {
    memory: Mapping,
    mask: u64,
    /// The worker's index, as it was last read.
    head: u64,
    tail: u64,
}

impl Reader {
    /// Maps a ring that netvmd has sent.
    ///
    /// # Errors
    /// [`RingError`] if it cannot be mapped or is no ring.
    pub fn open(fd: OwnedFd) -> Result<Self, RingError> {
        let header = Mapping::open("capture", fd.try_clone().map_err(clone_failed)?, DATA, false)?;
        // SAFETY: the word lies in the mapping, and is only accessed atomically.
        let bytes = unsafe { header.at::<AtomicU64>(DATA_BYTES).as_ref() }.load(Ordering::Acquire);
        if !bytes.is_power_of_two() || !SIZES.contains(&bytes) {
            return Err(RingError::Layout);
        }
        let memory = Mapping::open("capture", fd, DATA + bytes, true)?;
        Ok(Self { memory, mask: bytes - 1, head: 0, tail: 0 })
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        // SAFETY: as in `Writer::word`.
        unsafe { self.memory.at::<AtomicU64>(at).as_ref() }
    }

    /// The next record and its packet.
    #[inline]
    pub fn peek(&mut self) -> Option<(Record, &[u8])> {
        if self.tail == self.head {
            self.head = self.word(HEAD).load(Ordering::Acquire);
            if self.tail == self.head {
                return None;
            }
        }
        let at = self.tail & self.mask;
        if at > 0 && self.word(DATA + at).load(Ordering::Relaxed) as u32 == 0 {
            let to_end = self.mask + 1 - at;
            if to_end >= self.head.wrapping_sub(self.tail) {
                return self.give_up();
            }
            self.tail = self.tail.wrapping_add(to_end);
        }
        let (record, offset, captured, _) = self.header()?;
        // SAFETY: `header` has checked that the bytes lie in the mapping. The worker does not write to them before
        // `tail` has passed them, which needs `&mut self`.
        let packet =
            unsafe { core::slice::from_raw_parts(self.memory.base().as_ptr().add(offset), captured) };
        Some((record, packet))
    }

    /// The record at `tail`: its packet's position and length, and its size. `None`, and nothing more ever, if it
    /// cannot be.
    #[inline(always)]
    fn header(&mut self) -> Option<(Record, usize, usize, u64)> {
        let at = self.tail & self.mask;
        let to_end = self.mask + 1 - at;
        if to_end < HEADER as u64 {
            return self.give_up();
        }
        // SAFETY: HEADER bytes after `at` lie in the mapping, as just checked; both are multiples of 8.
        let words = unsafe {
            self.memory.base().as_ptr().add((DATA + at) as usize).cast::<[u64; HEADER / 8]>().read()
        };
        let (size, captured, record) = Record::from_bytes(words);
        let (size, captured) = (u64::from(size), captured as usize);
        let is_sound = size.is_multiple_of(8)
            && size <= to_end
            && size <= self.head.wrapping_sub(self.tail)
            && size >= (HEADER + captured) as u64;
        if !is_sound {
            return self.give_up();
        }
        Some((record, (DATA + at) as usize + HEADER, captured, size))
    }

    #[cold]
    fn give_up<T>(&mut self) -> Option<T> {
        self.tail = self.head;
        None
    }

    /// Steps over the record that [`Reader::peek`] gave. Its room is the worker's after [`Reader::release`].
    #[inline]
    pub fn advance(&mut self) {
        if let Some((_, _, _, size)) = self.header() {
            self.tail = self.tail.wrapping_add(size);
        }
    }

    /// Gives the room of all records that were read back to the worker.
    #[inline]
    pub fn release(&self) {
        self.word(TAIL).store(self.tail, Ordering::Release);
    }

    /// Bytes that were read and not released.
    #[must_use]
    pub fn unreleased(&self) -> u64 {
        self.tail.wrapping_sub(self.word(TAIL).load(Ordering::Relaxed))
    }

    /// Whether the worker has written a record.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.word(HEAD).load(Ordering::Relaxed) != 0
    }

    /// Bytes of records that the ring has room for.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.mask + 1
    }

    /// What the worker has counted at an interface.
    #[must_use]
    pub fn counts(&self, interface: u16) -> Counts {
        let shared = counts_of(&self.memory, usize::from(interface) % MAX_INTERFACES);
        Counts {
            seen: shared.seen.load(Ordering::Relaxed),
            accepted: shared.accepted.load(Ordering::Relaxed),
            lost: shared.lost.load(Ordering::Relaxed),
            missed: shared.missed.load(Ordering::Relaxed),
        }
    }
}

fn clone_failed(source: std::io::Error) -> RingError {
    RingError::Map(MapError::System { name: "capture".to_owned(), step: "dup", source })
}

#[cfg(test)]
mod tests;
