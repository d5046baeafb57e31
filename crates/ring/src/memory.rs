//! Where a ring lives: its header and slots as atomics over shared memory, and a view that is neither end of it.

use core::ptr::NonNull;

use crate::descriptor::{Descriptor, LAP};
use crate::ring::{Consumer, Producer};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Version of the layout that this crate reads and writes; both ends of a ring must agree on it.
pub const LAYOUT_VERSION: u32 = 4;

/// Bytes before the first slot.
const HEADER_BYTES: usize = 512;

/// Bytes of one of the two words of a slot.
const WORD_BYTES: usize = 8;

/// Low words that stand side by side: two lines, as processors fetch lines in pairs.
pub(crate) const BLOCK: u32 = 128 / WORD_BYTES as u32;

/// Where the two words of an index's slot are, in bytes from the beginning of a ring of `capacity` slots; for any free-running
/// index.
#[must_use]
pub const fn words_at(index: u32, capacity: u32) -> [usize; 2] {
    let low = HEADER_BYTES + place_of(index, capacity) * WORD_BYTES;
    [low, low + capacity as usize * WORD_BYTES]
}

/// The place of an index's word among the low words, and among the high ones, for any free-running index.
///
/// Blocks are in bit-reversed order, so for seven blocks of eight the next block in memory is a quarter of the ring later. With blocks in
/// index order, the hardware prefetcher of a consumer close behind fetches the lines that the producer is about to write, and each line crosses
/// twice more.
#[inline(always)]
const fn place_of(index: u32, capacity: u32) -> usize {
    let first = index & (capacity - 1);
    let block = first / BLOCK;
    let turned =
        (REVERSED[(block & 0xff) as usize] as u32) << 8 | REVERSED[(block >> 8 & 0xff) as usize] as u32;
    // 16 less the bits of a block's number; with one block there are none, and 0 is 0 however far it is moved.
    let unused = capacity.leading_zeros() + 1 + BLOCK.trailing_zeros() - 16;
    (turned.wrapping_shr(unused) * BLOCK + first % BLOCK) as usize
}

/// Bytes with their bits in reverse order: two look-ups, where turning a word around takes some 25 instructions.
const REVERSED: [u8; 256] = {
    let mut reversed = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        reversed[byte] = (byte as u8).reverse_bits();
        byte += 1;
    }
    reversed
};

/// Bytes that a ring of `capacity` slots takes.
#[must_use]
pub const fn ring_bytes(capacity: u32) -> usize {
    HEADER_BYTES + 2 * capacity as usize * WORD_BYTES
}

/// The header as it lies in shared memory; each index has 128 bytes to itself, as processors fetch lines in pairs.
#[repr(C, align(128))]
pub(crate) struct Header {
    version: AtomicU32,
    capacity: AtomicU32,
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
    high: &'a AtomicU64,
}

impl Slot<'_> {
    /// Two relaxed loads: a peer that writes meanwhile yields a torn descriptor, which is as hostile as any other.
    #[inline(always)]
    pub(crate) fn load(self) -> (u64, u64) {
        (self.low.load(Ordering::Relaxed), self.high.load(Ordering::Relaxed))
    }

    /// The high word, which is that of most packets of a flow and of a chain, is mostly there already from the lap before. What is
    /// not written does not have to cross: its line stays in the caches of both sides.
    #[inline(always)]
    pub(crate) fn store(self, descriptor: Descriptor, lap: u64) {
        if self.high.load(Ordering::Relaxed) != descriptor.high {
            self.high.store(descriptor.high, Ordering::Relaxed);
        }
        self.low.store(descriptor.low | lap, Ordering::Relaxed);
    }
}

/// Slots whose words are adjacent.
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

/// A capacity that no ring can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CapacityError {
    /// What was asked for.
    pub capacity: u32,
}

impl core::fmt::Display for CapacityError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "a ring of {} slots: the capacity must be a power of two from 2 to 65536", self.capacity)
    }
}

impl core::error::Error for CapacityError {}

/// A ring's place in memory, from which either end can be made.
#[derive(Clone, Copy, Debug)]
pub struct RingMemory {
    header: NonNull<Header>,
    /// The low words, then the high ones.
    words: NonNull<AtomicU64>,
    capacity: u32,
}

// SAFETY: all access through a RingMemory goes to atomics, which any thread may use; that the memory stays mapped is
// what the caller of `from_raw` promised, for every thread.
unsafe impl Send for RingMemory {}
// SAFETY: as above: atomics only.
unsafe impl Sync for RingMemory {}

impl RingMemory {
    /// Checks that a ring can have this many slots.
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

    /// The ring of `capacity` slots at `base`.
    ///
    /// The capacity comes from the side that set the ring up, never from shared memory.
    ///
    /// # Errors
    /// [`CapacityError`] for a capacity that no ring can have.
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

    /// Number of slots.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Empties the ring and stamps its header. For the side that sets the ring up, before it makes either end.
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

    /// The end that writes.
    ///
    /// # Safety
    /// There is one producer at a time in all processes that netvm itself is; a second one made after the first has
    /// gone continues where the first published last.
    #[must_use]
    pub unsafe fn producer(self) -> Producer {
        Producer::new(self)
    }

    /// The end that reads.
    ///
    /// # Safety
    /// As for [`RingMemory::producer`].
    #[must_use]
    pub unsafe fn consumer(self) -> Consumer {
        Consumer::new(self)
    }

    /// How many descriptors the ring holds by what both sides claim, at most its capacity.
    #[must_use]
    pub fn occupancy(&self) -> u32 {
        let header = self.header();
        let tail = header.tail.0.load(Ordering::Acquire);
        tail.wrapping_sub(header.head.0.load(Ordering::Acquire)).min(self.capacity)
    }

    /// The indexes that the two sides claim: of the consumer (head) and of the producer (tail).
    #[must_use]
    pub fn claims(&self) -> (u32, u32) {
        let header = self.header();
        (header.head.0.load(Ordering::Acquire), header.tail.0.load(Ordering::Acquire))
    }

    /// Descriptors that a producer wrote but did not live to publish: the slots beyond its tail with the lap bit of
    /// the lap they would have been in. For the engine, once the producer's process is gone.
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
        // SAFETY: `from_raw`'s caller keeps the header mapped and aligned; all of its fields are atomics, so that a
        // peer's writes are no data race.
        unsafe { self.header.as_ref() }
    }

    /// The slot of a free-running index.
    #[inline(always)]
    pub(crate) fn slot(&self, index: u32) -> Slot<'_> {
        let Row { lows, highs } = self.row(index, 1);
        Slot { low: &lows[0], high: &highs[0] }
    }

    /// The slots from a free-running index on that stand in one row, which is in one block and so in one lap; at most `most`. In
    /// bounds for every index, as a place is below a capacity that no peer can set.
    #[inline(always)]
    pub(crate) fn row(&self, index: u32, most: u32) -> Row<'_> {
        // A power of two, which the compiler cannot know: for a remainder it would divide.
        let block = BLOCK.min(self.capacity);
        let count = most.min(block - (index & (block - 1))) as usize;
        // SAFETY: the words of a block stand side by side, so that the places of all of the row are below the capacity, for twice
        // which `from_raw`'s caller keeps words mapped; they are atomics.
        unsafe {
            let low = self.words.add(place_of(index, self.capacity));
            let high = low.add(self.capacity as usize);
            let words = |first: NonNull<AtomicU64>| core::slice::from_raw_parts(first.as_ptr(), count);
            Row { lows: words(low), highs: words(high) }
        }
    }

    /// The lap bit of an index: 1 in the first lap, so that it differs from zeroed memory.
    #[inline(always)]
    pub(crate) fn lap(&self, index: u32) -> u64 {
        if index & self.capacity == 0 { LAP } else { 0 }
    }
}

/// A ring on the heap, for tests and models.
#[cfg(any(test, loom))]
#[derive(Debug)]
pub struct HeapRing {
    header: NonNull<Header>,
    words: NonNull<[AtomicU64]>,
}

#[cfg(any(test, loom))]
impl HeapRing {
    /// A ring of `capacity` slots, whose indexes begin at `first`.
    #[must_use]
    pub fn new(capacity: u32, first: u32) -> Self {
        let line = |value| Line(AtomicU32::new(value));
        let header = Box::new(Header {
            version: AtomicU32::new(LAYOUT_VERSION),
            capacity: AtomicU32::new(capacity),
            tail: line(first),
            head: line(first),
            waiting: line(0),
        });
        let words = (0..2 * capacity).map(|_| AtomicU64::new(0)).collect();
        let ring = Self { header: Box::leak(header).into(), words: Box::leak::<'static>(words).into() };
        let memory = ring.memory();
        for n in 0..capacity {
            // As a ring that has come this far would hold it: every slot in the lap before.
            let index = first.wrapping_add(n);
            memory.slot(index).store(Descriptor::default(), LAP ^ memory.lap(index));
        }
        ring
    }

    /// The ring's place, valid while `self` lives.
    #[must_use]
    pub fn memory(&self) -> RingMemory {
        RingMemory { header: self.header, words: self.words.cast(), capacity: (self.words.len() / 2) as u32 }
    }

    /// Sets what the producer claims to have written up to, as a hostile producer may.
    pub fn claim_tail(&self, tail: u32) {
        self.memory().header().tail.0.store(tail, Ordering::Release);
    }

    /// Sets what the consumer claims to have read up to, as a hostile consumer may.
    pub fn claim_head(&self, head: u32) {
        self.memory().header().head.0.store(head, Ordering::Release);
    }
}

#[cfg(any(test, loom))]
impl Drop for HeapRing {
    fn drop(&mut self) {
        // SAFETY: both came from Box::leak in `new` and are freed only here.
        unsafe {
            drop(Box::from_raw(self.header.as_ptr()));
            drop(Box::from_raw(self.words.as_ptr()));
        }
    }
}

#[cfg(any(test, loom))]
// SAFETY: the ring's memory is atomics; HeapRing owns it and hands out views only.
unsafe impl Send for HeapRing {}
#[cfg(any(test, loom))]
// SAFETY: as above.
unsafe impl Sync for HeapRing {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_a_place_and_rows_stand_side_by_side() {
        for capacity in (1..=16).map(|order| 1u32 << order) {
            let mut taken = vec![false; capacity as usize];
            for index in 0..capacity {
                let place = place_of(index, capacity);
                assert!(!core::mem::replace(&mut taken[place], true), "{index} of {capacity}");
                assert_eq!(place_of(index.wrapping_sub(capacity), capacity), place, "the lap before");
            }
        }
        let ring = HeapRing::new(64, 0);
        let memory = ring.memory();
        for index in 0..64 {
            let row = memory.row(index, 64);
            assert_eq!(row.len() as u32, BLOCK - index % BLOCK);
            for (n, slot) in (0..).zip(row.slots()) {
                let same = memory.slot(index + n);
                assert!(core::ptr::eq(slot.low, same.low) && core::ptr::eq(slot.high, same.high));
            }
        }
    }

    #[test]
    fn a_high_word_that_the_peer_has_changed_is_written_again() {
        let ring = HeapRing::new(4, 0);
        // SAFETY: the only ends of a ring made for this test.
        let (mut producer, mut consumer) = unsafe { (ring.memory().producer(), ring.memory().consumer()) };
        let sent = [Descriptor::new(1, 2, 64).on_path(3, 4, 5, 6); 4];
        for lap in 0..3 {
            assert_eq!(producer.push(&sent), 4);
            let mut got = [Descriptor::default(); 4];
            assert_eq!(consumer.pop(&mut got), 4);
            assert_eq!(got, sent, "lap {lap}");
            (0..4).for_each(|index| ring.memory().slot(index).high.store(!0, Ordering::Relaxed));
        }
    }

    #[test]
    fn what_follows_a_block_in_memory_comes_much_later() {
        let blocks = 512 / BLOCK;
        let at = |block: u32| place_of(block * BLOCK, 512) as u32 / BLOCK;
        let follower = |block: u32| (0..blocks).find(|other| at(*other) == at(block) + 1);
        let much_later = |block: &u32| {
            follower(*block).is_none_or(|other| other.wrapping_sub(*block) % blocks >= blocks / 4)
        };
        assert!((0..blocks).filter(much_later).count() as u32 >= blocks * 7 / 8);
    }
}
