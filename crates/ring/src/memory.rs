// SPDX-License-Identifier: Apache-2.0
//! A ring's shared memory: its header and slots as atomics. In: a free-running index. Out: references to the words of
//! its slot.

use core::ptr::NonNull;

use crate::descriptor::{Descriptor, LAP};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Version of the ring layout; both ends must use the same.
pub const LAYOUT_VERSION: u32 = 4;

/// Bytes before the first slot.
const HEADER_BYTES: usize = 512;

/// Bytes of a word; a slot has two.
const WORD_BYTES: usize = 8;

/// Words in a block: two cache lines, because processors fetch lines in pairs.
pub(crate) const BLOCK: u32 = 128 / WORD_BYTES as u32;

/// Byte offsets, from the start of a ring of `capacity` slots, of the two words of a slot. Any free-running index is
/// valid.
#[must_use]
pub const fn word_offsets(index: u32, capacity: u32) -> [usize; 2] {
    let low = HEADER_BYTES + word_position(index, capacity) * WORD_BYTES;
    [low, low + capacity as usize * WORD_BYTES]
}

/// Position of a slot's word in the array of low words, and in that of high words. Any free-running index is valid.
///
/// Blocks are in bit-reversed order. For seven blocks of eight, the next block in memory is thus used at least a
/// quarter of the ring later. In index order, the hardware prefetcher of a consumer close behind the producer would
/// fetch the lines that the producer is about to write, and each line would cross twice more.
#[inline(always)]
pub(crate) const fn word_position(index: u32, capacity: u32) -> usize {
    let first = index & (capacity - 1);
    let block = first / BLOCK;
    let reversed =
        (REVERSED[(block & 0xff) as usize] as u32) << 8 | REVERSED[(block >> 8 & 0xff) as usize] as u32;
    // 16 minus the bits of a block number. With a single block the shift wraps, which is harmless: the value is 0.
    let unused = capacity.leading_zeros() + 1 + BLOCK.trailing_zeros() - 16;
    (reversed.wrapping_shr(unused) * BLOCK + first % BLOCK) as usize
}

/// Every byte with its bits reversed. Two look-ups replace some 25 instructions that reverse a word.
const REVERSED: [u8; 256] = {
    let mut reversed = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        reversed[byte] = (byte as u8).reverse_bits();
        byte += 1;
    }
    reversed
};

/// Size of a ring of `capacity` slots, in bytes.
#[must_use]
pub const fn ring_bytes(capacity: u32) -> usize {
    HEADER_BYTES + 2 * capacity as usize * WORD_BYTES
}

/// The ring's header in shared memory. Each index has 128 bytes to itself, because processors fetch lines in pairs.
#[repr(C, align(128))]
pub(crate) struct Header {
    pub(crate) version: AtomicU32,
    pub(crate) capacity: AtomicU32,
    pub(crate) tail: Line,
    pub(crate) head: Line,
    pub(crate) waiting: Line,
}

#[repr(C, align(128))]
pub(crate) struct Line(pub(crate) AtomicU32);

#[cfg(not(loom))]
const _: () = assert!(size_of::<Header>() == HEADER_BYTES && size_of::<AtomicU64>() == WORD_BYTES);

/// The two words of a slot.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'a> {
    pub(crate) low: &'a AtomicU64,
    pub(crate) high: &'a AtomicU64,
}

impl Slot<'_> {
    /// Two relaxed loads. If a peer writes meanwhile, the descriptor is torn; the reader's checks cover that too.
    #[inline(always)]
    pub(crate) fn load(self) -> (u64, u64) {
        (self.low.load(Ordering::Relaxed), self.high.load(Ordering::Relaxed))
    }

    /// Skips the store of an unchanged high word. Most packets of a chain have the same one, so the slot often holds it
    /// from the lap before, and the line stays in the caches of both sides.
    #[inline(always)]
    pub(crate) fn store(self, descriptor: Descriptor, lap: u64) {
        if self.high.load(Ordering::Relaxed) != descriptor.high {
            self.high.store(descriptor.high, Ordering::Relaxed);
        }
        self.low.store(descriptor.low | lap, Ordering::Relaxed);
    }
}

/// Slots whose words are adjacent in memory.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    pub(crate) lows: &'a [AtomicU64],
    highs: &'a [AtomicU64],
}

impl<'a> Row<'a> {
    #[inline(always)]
    pub(crate) const fn len(self) -> usize {
        self.lows.len()
    }

    #[inline(always)]
    pub(crate) fn slots(self) -> impl Iterator<Item = Slot<'a>> {
        self.lows.iter().zip(self.highs).map(|(low, high)| Slot { low, high })
    }
}

/// The capacity of a ring is out of range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CapacityError {
    /// The requested capacity.
    pub capacity: u32,
}

impl core::fmt::Display for CapacityError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "invalid ring capacity {}: it must be a power of two from 2 to 65536", self.capacity)
    }
}

impl core::error::Error for CapacityError {}

/// A mapped ring, from which either end can be made.
#[derive(Clone, Copy, Debug)]
pub struct RingMemory {
    header: NonNull<Header>,
    /// The low words, then the high ones.
    words: NonNull<AtomicU64>,
    capacity: u32,
}

// SAFETY: all access through a RingMemory goes to atomics, which any thread may use. The caller of `from_raw` keeps the
// memory mapped, for every thread.
unsafe impl Send for RingMemory {}
// SAFETY: as above: atomics only.
unsafe impl Sync for RingMemory {}

impl RingMemory {
    /// Checks a ring's capacity.
    ///
    /// # Errors
    /// [`CapacityError`] unless `capacity` is a power of two from 2 to 65,536.
    pub const fn check_capacity(capacity: u32) -> Result<(), CapacityError> {
        if capacity.is_power_of_two() && capacity >= 2 && capacity <= 1 << 16 {
            Ok(())
        } else {
            Err(CapacityError { capacity })
        }
    }

    /// The ring of `capacity` slots at `base`. The capacity must come from the side that set up the ring, not from
    /// shared memory.
    ///
    /// # Errors
    /// [`CapacityError`] as in [`RingMemory::check_capacity`].
    ///
    /// # Safety
    /// `base` is aligned to 128 bytes and [`ring_bytes`]`(capacity)` bytes from it stay mapped, readable and writable,
    /// for as long as the value or an end made from it lives. Other processes may write there at any time.
    #[cfg(not(loom))]
    pub const unsafe fn from_raw(base: NonNull<u8>, capacity: u32) -> Result<Self, CapacityError> {
        match Self::check_capacity(capacity) {
            Ok(()) => Ok(Self {
                header: base.cast(),
                // SAFETY: the caller maps at least the header and the slots from `base`.
                words: unsafe { base.add(HEADER_BYTES) }.cast(),
                capacity,
            }),
            Err(error) => Err(error),
        }
    }

    #[cfg(any(test, loom))]
    pub(crate) const fn over(header: NonNull<Header>, words: NonNull<AtomicU64>, capacity: u32) -> Self {
        Self { header, words, capacity }
    }

    /// Number of slots.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Empties the ring and writes its header. The side that sets up the ring calls this before it makes either end.
    pub fn initialise(&self) {
        let header = self.header();
        header.tail.0.store(0, Ordering::Relaxed);
        header.head.0.store(0, Ordering::Relaxed);
        header.waiting.0.store(0, Ordering::Relaxed);
        for index in 0..self.capacity {
            self.slot(index).store(Descriptor::default(), 0);
        }
        header.capacity.store(self.capacity, Ordering::Relaxed);
        header.version.store(LAYOUT_VERSION, Ordering::Release);
    }

    /// Number of descriptors in the ring by the indexes that both sides claim, at most its capacity.
    #[must_use]
    pub fn occupancy(&self) -> u32 {
        let header = self.header();
        let tail = header.tail.0.load(Ordering::Acquire);
        tail.wrapping_sub(header.head.0.load(Ordering::Acquire)).min(self.capacity)
    }

    /// The indexes that the two sides claim: the consumer's head and the producer's tail.
    #[must_use]
    pub fn claims(&self) -> (u32, u32) {
        let header = self.header();
        (header.head.0.load(Ordering::Acquire), header.tail.0.load(Ordering::Acquire))
    }

    /// Descriptors that are published and not consumed, by the indexes that the two sides claim.
    pub fn waiting(&self) -> impl Iterator<Item = Descriptor> + '_ {
        let (head, tail) = self.claims();
        (0..tail.wrapping_sub(head).min(self.capacity)).map(move |n| {
            let (low, high) = self.slot(head.wrapping_add(n)).load();
            Descriptor::from_words([low, high])
        })
    }

    /// Descriptors that were consumed and whose slots hold them still, by the indexes that the two sides claim: oldest
    /// first. A slot that was never used holds an empty one.
    pub fn consumed(&self) -> impl Iterator<Item = Descriptor> + '_ {
        let (head, tail) = self.claims();
        let count = self.capacity - tail.wrapping_sub(head).min(self.capacity);
        (0..count).map(move |n| {
            let (low, high) = self.slot(head.wrapping_sub(count).wrapping_add(n)).load();
            Descriptor::from_words([low, high])
        })
    }

    /// Descriptors that a dead producer wrote but did not publish: the slots beyond its tail that have the lap bit of
    /// the next lap. The engine calls this once the producer's process is gone.
    pub fn unpublished(&self) -> impl Iterator<Item = Descriptor> + '_ {
        let tail = self.header().tail.0.load(Ordering::Acquire);
        (0..self.capacity).filter_map(move |n| {
            let index = tail.wrapping_add(n);
            let (low, high) = self.slot(index).load();
            (low & LAP == self.lap(index)).then(|| Descriptor::from_words([low, high]))
        })
    }

    #[inline(always)]
    pub(crate) fn header(&self) -> &Header {
        // SAFETY: `from_raw`'s caller keeps the header mapped and aligned. All of its fields are atomics, so a peer's
        // writes are no data race.
        unsafe { self.header.as_ref() }
    }

    /// The slot of a free-running index.
    #[inline(always)]
    pub(crate) fn slot(&self, index: u32) -> Slot<'_> {
        let Row { lows, highs } = self.row(index, 1);
        Slot { low: &lows[0], high: &highs[0] }
    }

    /// At most `most` slots from a free-running index to the end of its block, which are all of one lap. In bounds for
    /// every index: the position is below the capacity, which no peer can set.
    #[inline(always)]
    pub(crate) fn row(&self, index: u32, most: u32) -> Row<'_> {
        // A power of two; the compiler does not know that, and would divide to get a remainder.
        let block = BLOCK.min(self.capacity);
        let count = most.min(block - (index & (block - 1))) as usize;
        // SAFETY: the words of a block are adjacent, so every position in the row is below the capacity; `from_raw`'s
        // caller keeps twice as many words mapped. They are atomics.
        unsafe {
            let low = self.words.add(word_position(index, self.capacity));
            let high = low.add(self.capacity as usize);
            let words = |first: NonNull<AtomicU64>| core::slice::from_raw_parts(first.as_ptr(), count);
            Row { lows: words(low), highs: words(high) }
        }
    }

    /// The lap bit of an index: 1 in the first lap, to differ from zeroed memory.
    #[inline(always)]
    pub(crate) fn lap(&self, index: u32) -> u64 {
        if index & self.capacity == 0 { LAP } else { 0 }
    }
}
