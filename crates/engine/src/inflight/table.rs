//! The in-flight table of one memory: the buffers that are out and in no in-order queue.
//!
//! One word per number of a buffer, private to the engine:
//!
//! ```text
//!  0                                        in the engine, free, or in an in-order queue
//!  worker + 1 : 8 | mbuf address : 50 | generation : 6      out, in the table
//! ```
//!
//! Mbufs are aligned to cache lines, so the low bits are free for the generation, which audits use to tell old packets
//! from new ones. A non-zero word is changed only by the worker in it, a zero word only by the worker that owns the
//! mbuf. Each word therefore has one writer at any time, and relaxed loads and stores suffice.
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

/// The worker is above this bit: user addresses are below 2^47.
const WORKER_SHIFT: u32 = 56;
const GENERATIONS: u8 = 4;
/// The address bits of a word.
const ADDRESS: usize = (1 << WORKER_SHIFT) - MbufPtr::ALIGNMENT;
const _: () = assert!(MAX_WORKERS < u8::MAX as usize && GENERATIONS as usize <= MbufPtr::ALIGNMENT);

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
    worker: usize,
}

impl WorkerView<'_> {
    /// Whether this worker handed the buffer out and the table has it.
    #[inline(always)]
    pub(super) fn has(self, buffer: u32) -> bool {
        self.words.get(buffer as usize).is_some_and(|word| self.is_own(word.load(Ordering::Relaxed)))
    }

    #[inline(always)]
    fn is_own(self, word: *mut RawMbuf) -> bool {
        word.addr() >> WORKER_SHIFT == self.worker
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

    #[inline(always)]
    pub(super) fn of(&self, worker: WorkerId) -> WorkerView<'_> {
        WorkerView { words: &self.words, worker: owner(worker) }
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
        let with = |buffer: &u32| self.region.owner(*buffer) == Some(nf_thread.0);
        in_queues + self.in_table().filter(with).count() as u32
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

    /// Table → free, for buffers in `range` that `worker` handed out and whose owner, by the owner table, is one of
    /// `nf_threads` (bit mask). Calls `before` with each buffer before it is freed. Returns their number.
    pub(super) fn sweep_gone(
        &self,
        range: Range<u32>,
        worker: WorkerId,
        nf_threads: u64,
        before: impl FnMut(u32, &Mbuf),
    ) -> u64 {
        let is_gone = |owner: u8| nf_threads.checked_shr(owner.into()).is_some_and(|bits| bits & 1 == 1);
        self.sweep(range, worker, |buffer| self.region.owner(buffer).is_some_and(is_gone), before)
    }

    /// Table → free, for buffers in `range` that `worker` handed out. Returns their number.
    pub(super) fn sweep_all(&self, range: Range<u32>, worker: WorkerId) -> u64 {
        self.sweep(range, worker, |_| true, |_, _| {})
    }

    /// Table → free, for buffers in `range` that `worker` handed out in another generation than `current`. Returns
    /// their number.
    pub(super) fn sweep_older(&self, range: Range<u32>, worker: WorkerId, current: u8) -> u64 {
        let is_older = |buffer| self.word(buffer) % MbufPtr::ALIGNMENT != usize::from(current);
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
    ) -> u64 {
        let view = self.of(worker);
        let due = range.filter(|buffer| is_due(*buffer));
        due.filter_map(|buffer| Some((buffer, view.take(buffer).ok()?)))
            .map(|(buffer, mbuf)| before(buffer, &mbuf))
            .count() as u64
    }

    /// The word of a buffer; 0 for a number that no buffer has.
    fn word(&self, buffer: u32) -> usize {
        self.words.get(buffer as usize).map_or(0, |word| word.load(Ordering::Relaxed).addr())
    }
}

/// The worker's part of a word.
const fn owner(worker: WorkerId) -> usize {
    worker.0 as usize + 1
}
