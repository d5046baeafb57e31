// SPDX-License-Identifier: Apache-2.0
//! The in-flight table of one memory: the buffers that are out and in no in-order queue.
//!
//! One word per number of a buffer, private to the engine:
//!
//! ```text
//!  0                                        in the engine, free, or in an in-order queue
//!  worker + 1 : 8 | kept : 1 | 0 : 1 | NF thread : 6 | mbuf address : 42 | generation : 6      out, in the table
//! ```
//!
//! The NF thread is that of a buffer that is kept, and 0 in other words. Mbufs are aligned to cache lines, so the low
//! bits are free for the generation, which audits use to tell old packets from new ones. A non-zero word is changed
//! only by the worker in it, a zero word only by the worker that owns the mbuf. Each word therefore has one writer at
//! any time, and relaxed loads and stores suffice.
//!
//! A store costs 8 bytes of a line that no other core writes; a take costs that line and the first line of the mbuf.

use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};

use dpdk::{BufferIndex, Mbuf, MbufPtr, RawMbuf};
use netvm_region::{Geometry, MAX_NF_THREADS, MAX_WORKERS, Region};
use netvm_ring::{RingMemory, Span};

use crate::drop_reason::Violation;
use crate::ids::{NfThreadId, WorkerId};

/// The worker is above this bit.
const WORKER_SHIFT: u32 = 56;
/// Bit of buffers that an NF thread keeps.
const KEPT: usize = 1 << 55;
/// The NF thread is above this bit: user addresses are below 2^48.
const HOLDER_SHIFT: u32 = 48;
const GENERATIONS: u8 = 4;
/// The address bits of a word.
const ADDRESS: usize = (1 << HOLDER_SHIFT) - MbufPtr::ALIGNMENT;
const _: () = assert!(MAX_WORKERS < u8::MAX as usize && GENERATIONS as usize <= MbufPtr::ALIGNMENT);
const _: () = assert!(MAX_NF_THREADS <= 64);

type Word = AtomicPtr<RawMbuf>;

/// A word without its address: worker and generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark(usize);

impl Mark {
    /// The mark of no packet.
    pub(super) const NONE: Self = Self(0);
}

/// Writes the owner table for packets that go to one NF thread. Passed by value: behind a reference, the compiler would
/// reload every field after each store to shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnerWriter<'a> {
    buffers: BufferIndex,
    owners: &'a [AtomicU8],
    nf_thread: u8,
}

impl OwnerWriter<'_> {
    /// Makes the NF thread the owner of a packet's buffer and returns the buffer's number.
    #[inline(always)]
    pub(super) fn set_owner(self, mbuf: &Mbuf) -> u32 {
        let buffer = self.buffers.of_packet(mbuf);
        self.owners[buffer as usize].store(self.nf_thread, Ordering::Relaxed);
        buffer
    }
}

/// One worker's view of the table, by value for the same reason as [`OwnerWriter`].
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkerView<'a> {
    words: &'a [Word],
    /// The bits of a word above its address: for buffers that are kept all of them, else those of the worker and
    /// [`KEPT`].
    bits: usize,
    shift: u32,
}

impl WorkerView<'_> {
    /// Whether this worker handed the buffer out and the table has it.
    #[inline(always)]
    pub(super) fn has(self, buffer: u32) -> bool {
        self.words.get(buffer as usize).is_some_and(|word| self.is_own(word.load(Ordering::Relaxed)))
    }

    #[inline(always)]
    fn is_own(self, word: *mut RawMbuf) -> bool {
        word.addr() >> self.shift == self.bits
    }

    /// The view of the buffers that this NF thread keeps.
    pub(super) const fn kept_by(self, nf_thread: NfThreadId) -> Self {
        let worker = self.bits >> (WORKER_SHIFT - self.shift);
        let bits = (worker << WORKER_SHIFT | KEPT) >> HOLDER_SHIFT | nf_thread.0 as usize;
        Self { bits, shift: HOLDER_SHIFT, ..self }
    }

    /// The view of all buffers that this worker handed out.
    const fn all(self) -> Self {
        Self { bits: self.bits >> (WORKER_SHIFT - self.shift), shift: WORKER_SHIFT, ..self }
    }

    /// Table → engine: the caller owns the packet.
    #[inline(always)]
    pub(super) fn take(self, buffer: u32) -> Result<Mbuf, Violation> {
        let slot = self.words.get(buffer as usize).ok_or(Violation::BufferOutOfRange)?;
        let word = slot.load(Ordering::Relaxed);
        if !self.is_own(word) {
            return Err(Violation::BufferNotOut);
        }
        slot.store(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: a word with a worker holds the address of an mbuf, which is not null.
        let mbuf = unsafe { NonNull::new_unchecked(word.map_addr(|address| address & ADDRESS)) };
        // SAFETY: `insert` promises that nothing else owns the mbuf, and the word that gives it back is now 0.
        Ok(unsafe { MbufPtr::new(mbuf).own() })
    }
}

/// Number of packets in the in-order queues of one worker, by NF thread. Each worker writes its own cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct Levels([AtomicU32; MAX_NF_THREADS]);

/// The in-flight table of one memory.
#[derive(Debug)]
pub(crate) struct InFlightTable {
    words: Box<[Word]>,
    /// By worker.
    levels: Box<[Levels]>,
    /// The generation of packets that are handed out now.
    generation: AtomicU8,
    buffers: BufferIndex,
    geometry: Geometry,
    region: Arc<Region>,
}

impl InFlightTable {
    /// An empty table for the buffers of `region`. `buffers` converts mbufs to buffer numbers.
    pub(crate) fn new(region: Arc<Region>, buffers: BufferIndex) -> Arc<Self> {
        let geometry = *region.geometry();
        let words = (0..geometry.numbers()).map(|_| Word::default()).collect();
        let levels =
            (0..MAX_WORKERS).map(|_| Levels([const { AtomicU32::new(0) }; MAX_NF_THREADS])).collect();
        let generation = AtomicU8::new(0);
        Arc::new(Self { words, levels, generation, buffers, geometry, region })
    }

    /// The sizes of buffers.
    #[inline(always)]
    pub(super) const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    #[inline(always)]
    pub(super) fn owner_writer(&self, nf_thread: NfThreadId) -> OwnerWriter<'_> {
        OwnerWriter { buffers: self.buffers, owners: self.region.owner_table(), nf_thread: nf_thread.0 }
    }

    /// The mark of packets that `worker` hands out now.
    #[inline(always)]
    pub(super) fn mark(&self, worker: WorkerId) -> Mark {
        Mark(owner(worker) << WORKER_SHIFT | usize::from(self.generation.load(Ordering::Relaxed)))
    }

    /// The mark of buffers of `worker` that an NF thread keeps.
    pub(super) fn mark_kept(&self, worker: WorkerId, nf_thread: NfThreadId) -> Mark {
        Mark(self.mark(worker).0 | KEPT | usize::from(nf_thread.0) << HOLDER_SHIFT)
    }

    #[inline(always)]
    pub(super) fn of(&self, worker: WorkerId) -> WorkerView<'_> {
        // The bit below those of the worker is that of kept buffers: 0.
        WorkerView { words: &self.words, bits: owner(worker) << 1, shift: WORKER_SHIFT - 1 }
    }

    /// Engine, or in-order queue → table.
    ///
    /// # Safety
    /// `mbufs` are the mbufs of the buffers in `spans`, they have one segment, and nothing owns them any more.
    #[inline(always)]
    pub(super) unsafe fn insert(&self, spans: &[Span], mbufs: &[MbufPtr], mark: Mark) {
        for (span, mbuf) in spans.iter().zip(mbufs) {
            let word = mbuf.as_ptr().map_addr(|address| address | mark.0);
            self.words[span.buffer() as usize].store(word, Ordering::Relaxed);
        }
    }

    /// A direct ring of the memory.
    pub(super) fn ring(&self, index: u16) -> Option<RingMemory> {
        self.region.ring(index)
    }

    /// Starts the next generation and returns it.
    pub(crate) fn next_generation(&self) -> u8 {
        let next = (self.generation.load(Ordering::Relaxed) + 1) % GENERATIONS;
        self.generation.store(next, Ordering::Relaxed);
        next
    }

    /// Publishes the number of packets in the in-order queue of an NF thread. A reader that sees a lower number also
    /// sees the table words of the packets that the queue has spilled.
    #[inline(always)]
    pub(super) fn set_level(&self, worker: WorkerId, nf_thread: NfThreadId, level: usize) {
        self.levels[worker.index()].0[nf_thread.index()].store(level as u32, Ordering::Release);
    }

    /// How many buffers are out, in queues and in the table.
    pub(crate) fn buffers_out(&self) -> u32 {
        let levels = self.levels.iter().flat_map(|levels| &levels.0);
        levels.map(|level| level.load(Ordering::Acquire)).sum::<u32>() + self.in_table().count() as u32
    }

    /// Number of buffers that `nf_thread` has: in its queues, or in the table and, by the owner table, with it.
    pub(crate) fn buffers_with(&self, nf_thread: NfThreadId) -> u32 {
        let levels = self.levels.iter().map(|levels| levels.0[nf_thread.index()].load(Ordering::Acquire));
        let in_queues: u32 = levels.sum();
        let with = |buffer: &u32| match holder(self.word(*buffer)) {
            Some(holder) => holder == nf_thread.0,
            None => self.region.owner(*buffer) == Some(nf_thread.0),
        };
        in_queues + self.in_table().filter(with).count() as u32
    }

    /// The same without those that the NF thread keeps: what it is expected to return.
    pub(crate) fn buffers_to_return(&self, nf_thread: NfThreadId) -> u32 {
        let kept = |buffer: &u32| holder(self.word(*buffer)) == Some(nf_thread.0);
        self.buffers_with(nf_thread).saturating_sub(self.in_table().filter(kept).count() as u32)
    }

    /// Number of buffers that a worker has handed out, in queues and in the table.
    pub(crate) fn buffers_out_of(&self, worker: WorkerId) -> u32 {
        let queues = self.levels[worker.index()].0.iter();
        let in_queues: u32 = queues.map(|level| level.load(Ordering::Acquire)).sum();
        let is_its_own = |buffer: &u32| self.word(*buffer) >> WORKER_SHIFT == owner(worker);
        in_queues + (0..self.len()).filter(is_its_own).count() as u32
    }

    fn in_table(&self) -> impl Iterator<Item = u32> {
        (0..self.len()).filter(|buffer| self.word(*buffer) != 0)
    }

    /// The numbers of buffers are below this one.
    pub(crate) const fn len(&self) -> u32 {
        self.words.len() as u32
    }

    /// Table → free, for buffers in `range` that `worker` handed out and that one of `nf_threads` (bit mask) has: it
    /// keeps them, or is their owner by the owner table. Calls `before` with each buffer before it is freed.
    pub(super) fn sweep_gone(
        &self,
        range: Range<u32>,
        worker: WorkerId,
        nf_threads: u64,
        before: impl FnMut(u32, &Mbuf),
    ) -> SweptBuffers {
        let is_gone =
            |nf_thread: u8| nf_threads.checked_shr(nf_thread.into()).is_some_and(|bits| bits & 1 == 1);
        let has = |buffer| match holder(self.word(buffer)) {
            Some(holder) => is_gone(holder),
            None => self.region.owner(buffer).is_some_and(is_gone),
        };
        self.sweep(range, worker, has, before)
    }

    /// Table → free, for buffers in `range` that `worker` handed out.
    pub(super) fn sweep_all(&self, range: Range<u32>, worker: WorkerId) -> SweptBuffers {
        self.sweep(range, worker, |_| true, |_, _| {})
    }

    /// Table → free, for buffers in `range` that `worker` handed out in another generation than `current`, and that
    /// nobody keeps.
    pub(super) fn sweep_older(&self, range: Range<u32>, worker: WorkerId, current: u8) -> SweptBuffers {
        let is_older = |buffer| {
            let word = self.word(buffer);
            word % MbufPtr::ALIGNMENT != usize::from(current) && holder(word).is_none()
        };
        self.sweep(range, worker, is_older, |_, _| {})
    }

    /// Table → free, for `stranded` buffers that `worker` handed out and whose owner, by the owner table, is the given
    /// NF thread. Returns their number.
    pub(super) fn sweep_stranded(&self, stranded: &[(u32, NfThreadId)], worker: WorkerId) -> u64 {
        let one = |(buffer, to): &(u32, NfThreadId)| {
            self.region.owner(*buffer) == Some(to.0) && self.of(worker).take(*buffer).is_ok()
        };
        stranded.iter().filter(|stranded| one(stranded)).count() as u64
    }

    fn sweep(
        &self,
        range: Range<u32>,
        worker: WorkerId,
        is_due: impl Fn(u32) -> bool,
        mut before: impl FnMut(u32, &Mbuf),
    ) -> SweptBuffers {
        let view = self.of(worker).all();
        let mut swept = SweptBuffers::default();
        for buffer in range.filter(|buffer| is_due(*buffer)) {
            let is_kept = holder(self.word(buffer)).is_some();
            let Ok(mbuf) = view.take(buffer) else { continue };
            before(buffer, &mbuf);
            swept.all += 1;
            swept.kept += u64::from(is_kept);
        }
        swept
    }

    /// The word of a buffer; 0 for a number that no buffer has.
    fn word(&self, buffer: u32) -> usize {
        self.words.get(buffer as usize).map_or(0, |word| word.load(Ordering::Relaxed).addr())
    }
}

/// What a sweep has freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SweptBuffers {
    /// Number of buffers.
    pub(crate) all: u64,
    /// Those of them that an NF thread kept.
    pub(crate) kept: u64,
}

impl std::ops::AddAssign for SweptBuffers {
    fn add_assign(&mut self, other: Self) {
        (self.all, self.kept) = (self.all + other.all, self.kept + other.kept);
    }
}

/// The NF thread that keeps the buffer of a word.
const fn holder(word: usize) -> Option<u8> {
    if word & KEPT == 0 { None } else { Some((word >> HOLDER_SHIFT) as u8 & 0x3f) }
}

/// The worker's part of a word.
const fn owner(worker: WorkerId) -> usize {
    worker.0 as usize + 1
}
