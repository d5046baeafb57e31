//! The engine's view of a region: DPDK's mbufs over its buffers, and the private account of which buffers are out.
//!
//! Every buffer has an mbuf, whose header only the engine maps. While an NF has the buffer, the mbuf is nobody's: the account
//! says so ([`Memory::note_out`]), and only the account brings it back ([`TakingBack`], [`Memory::sweep`]). What
//! the NF writes decides which buffer it means, never whether it had it. Packets that come back in the order in which they were handed out
//! need not be noted; they are kept by [`Expected`](crate::expected::Expected) meanwhile.
//!
//! The account has a word for each buffer: 0 while the engine has the packet or expects it, else the address of its mbuf, which
//! nobody has. Above the address is the number of the worker that handed the buffer out, plus 1; below it, in bits that are 0 as
//! mbufs fill whole cache lines, the generation in which it did (see `manager/audit.rs`). Only that worker changes a word that is
//! not 0, and only the worker that holds the mbuf changes one that is: so every word has one writer at any time, and relaxed
//! loads and stores are enough.

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};

use dpdk::{
    BufferIndex, BufferLayout, Eal, EalOptions, HEADROOM, HugePages, Mbuf, MbufPtr, NumaNode, PacketMemory,
    Pool, PoolError, PoolOptions, RawMbuf,
};
use netvm_region::Region;
use netvm_ring::Span;

use crate::drop_reason::Violation;
use crate::ids::{MemoryId, NfThreadId, PortId, WorkerId};

/// The worker is above this bit of a word of the account: addresses of processes are below 2^47.
const WORKER_SHIFT: u32 = 56;
const GENERATIONS: u8 = 4;
/// The bits of an mbuf's address that may be set.
const ADDRESS: usize = (1 << WORKER_SHIFT) - MbufPtr::ALIGNMENT;
const _: () =
    assert!(netvm_region::MAX_WORKERS < u8::MAX as usize && GENERATIONS as usize <= MbufPtr::ALIGNMENT);

/// A word of the account.
type Entry = AtomicPtr<RawMbuf>;

/// What the account says of a buffer that is out, besides its mbuf: worker and generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark(usize);

/// Gives buffers to an NF thread. By value, as what lies behind a reference would be loaded anew for each buffer: the compiler takes
/// every store to shared memory for one that may have changed it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandingOut<'a> {
    buffers: BufferIndex,
    owner_table: &'a [AtomicU8],
    nf_thread: u8,
}

impl HandingOut<'_> {
    /// Gives the buffer of a packet of this memory; returns its number. The caller forgets the mbuf now without freeing it, and sees to it
    /// that it is noted ([`Memory::note_out`]) before anybody asks for it.
    #[inline(always)]
    pub(crate) fn buffer_of(self, mbuf: &Mbuf) -> u32 {
        let buffer = self.buffers.of_packet(mbuf);
        self.owner_table[buffer as usize].store(self.nf_thread, Ordering::Relaxed);
        buffer
    }
}

/// Takes buffers back that a worker handed out; by value as [`HandingOut`] is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakingBack<'a> {
    out: &'a [Entry],
    worker: usize,
}

impl TakingBack<'_> {
    /// Whether the account has a buffer, handed out by the worker.
    #[inline(always)]
    pub(crate) fn has(self, buffer: u32) -> bool {
        self.out.get(buffer as usize).is_some_and(|entry| self.is_worker_s(entry.load(Ordering::Relaxed)))
    }

    #[inline(always)]
    fn is_worker_s(self, entry: *mut RawMbuf) -> bool {
        entry.addr() >> WORKER_SHIFT == self.worker
    }

    /// Takes a buffer back that an NF thread of the memory's group returns; the caller owns the mbuf from then.
    #[inline(always)]
    pub(crate) fn buffer(self, buffer: u32) -> Result<Mbuf, Violation> {
        let place = self.out.get(buffer as usize).ok_or(Violation::BufferOutOfRange)?;
        let entry = place.load(Ordering::Relaxed);
        if !self.is_worker_s(entry) {
            return Err(Violation::BufferNotOut);
        }
        place.store(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: a word with a worker has the address of an mbuf, which is not null.
        let mbuf = unsafe { NonNull::new_unchecked(entry.map_addr(|address| address & ADDRESS)) };
        // SAFETY: whoever handed the buffer out forgot its mbuf (`Memory::note_out`), the account gives it back only here, and only
        // once: the word is 0 now.
        Ok(unsafe { MbufPtr::new(mbuf).own() })
    }
}

/// Packet memory on the packet path.
#[derive(Debug)]
pub struct Memory {
    /// Its number.
    pub id: MemoryId,
    /// The mbufs.
    pub pool: Arc<Pool>,
    region: Arc<Region>,
    out: Box<[Entry]>,
    /// The generation in which buffers are handed out now.
    generation: AtomicU8,
    /// For captures: time stamp of the packet in each buffer; and its original length, with the number of the port that it was
    /// read by, plus 1, in the upper half. A packet that came in by another port did not bring them, but found them there.
    stamps: Box<[[AtomicU64; 2]]>,
}

impl Memory {
    pub(crate) fn new(id: MemoryId, region: Arc<Region>, pool: Pool) -> Self {
        let buffers = region.geometry().buffers as usize;
        let out = (0..buffers).map(|_| Entry::default()).collect();
        let stamps = (0..buffers).map(|_| Default::default()).collect();
        Self { id, pool: Arc::new(pool), region, out, generation: AtomicU8::new(0), stamps }
    }

    /// The shared part.
    #[inline(always)]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// What is needed to give buffers to an NF thread, for a burst.
    #[inline(always)]
    pub(crate) fn handing_out(&self, nf_thread: NfThreadId) -> HandingOut<'_> {
        HandingOut {
            buffers: self.pool.buffer_index(),
            owner_table: self.region.owner_table(),
            nf_thread: nf_thread.0,
        }
    }

    /// What the account says of buffers that `worker` hands out now.
    #[inline(always)]
    pub(crate) fn mark_of(&self, worker: WorkerId) -> Mark {
        Mark(of_worker(worker) << WORKER_SHIFT | usize::from(self.generation.load(Ordering::Relaxed)))
    }

    /// The account has packets that were handed out so, and gives each back once.
    #[inline(always)]
    pub(crate) fn note_out(&self, spans: &[Span], mbufs: &[MbufPtr], mark: Mark) {
        for (span, mbuf) in spans.iter().zip(mbufs) {
            let entry = mbuf.as_ptr().map_addr(|address| address | mark.0);
            self.out[span.buffer() as usize].store(entry, Ordering::Relaxed);
        }
    }

    /// What is needed to take buffers back that `worker` handed out, for a burst.
    #[inline(always)]
    pub(crate) fn taking_back(&self, worker: WorkerId) -> TakingBack<'_> {
        TakingBack { out: &self.out, worker: of_worker(worker) }
    }

    /// Begins the next generation; returns it.
    pub(crate) fn next_generation(&self) -> u8 {
        let next = (self.generation.load(Ordering::Relaxed) + 1) % GENERATIONS;
        self.generation.store(next, Ordering::Relaxed);
        next
    }

    /// [`TakingBack::buffer`] of one.
    fn take_back(&self, buffer: u32, worker: WorkerId) -> Result<Mbuf, Violation> {
        self.taking_back(worker).buffer(buffer)
    }

    /// Takes back the buffers of `range` that `worker` handed out and whose owner table entry is one of `nf_threads` (a bit
    /// each), and frees them; returns how many.
    pub(crate) fn sweep(&self, range: core::ops::Range<u32>, worker: WorkerId, nf_threads: u64) -> u64 {
        let gone = |owner: u8| nf_threads.checked_shr(owner.into()).is_some_and(|bits| bits & 1 == 1);
        let mut count = 0;
        for buffer in range {
            if self.region.owner(buffer).is_some_and(gone) && self.take_back(buffer, worker).is_ok() {
                count += 1;
            }
        }
        count
    }

    /// Takes back the buffers of `range` that `worker` handed out in another generation than `current`, whoever the owner table
    /// says has them, and frees them; returns how many.
    pub(crate) fn sweep_older(&self, range: core::ops::Range<u32>, worker: WorkerId, current: u8) -> u64 {
        let is_older = |buffer: u32| {
            let entry = self.entry(buffer);
            entry != 0 && entry % MbufPtr::ALIGNMENT != usize::from(current)
        };
        range.filter(|buffer| is_older(*buffer) && self.take_back(*buffer, worker).is_ok()).count() as u64
    }

    /// Takes back one buffer if its owner table entry is `nf_thread`: for what a dead producer wrote and did not publish.
    pub(crate) fn sweep_one(&self, buffer: u32, worker: WorkerId, nf_thread: NfThreadId) -> bool {
        if self.region.owner(buffer) != Some(nf_thread.0) {
            return false;
        }
        self.take_back(buffer, worker).is_ok()
    }

    /// How many buffers are out.
    #[must_use]
    pub fn buffers_out(&self) -> u32 {
        self.buffers().filter(|buffer| self.entry(*buffer) != 0).count() as u32
    }

    /// How many buffers are out and, by the owner table, with `nf_thread`.
    #[must_use]
    pub fn buffers_with(&self, nf_thread: NfThreadId) -> u32 {
        let with = |buffer: &u32| self.entry(*buffer) != 0 && self.region.owner(*buffer) == Some(nf_thread.0);
        self.buffers().filter(with).count() as u32
    }

    fn buffers(&self) -> core::ops::Range<u32> {
        0..self.out.len() as u32
    }

    /// The word of the account for a buffer; 0 for a number that is no buffer's.
    fn entry(&self, buffer: u32) -> usize {
        self.out.get(buffer as usize).map_or(0, |entry| entry.load(Ordering::Relaxed).addr())
    }

    /// Notes a packet's time stamp (nanoseconds since 1970) and original length; they hold for a packet of its port.
    pub(crate) fn set_stamp(&self, mbuf: &Mbuf, time: u64, original: u32) {
        if let Some([t, l]) = self.stamps.get(self.pool.buffer_of(mbuf) as usize) {
            t.store(time, Ordering::Relaxed);
            l.store(u64::from(original) | read_by(mbuf.port().0), Ordering::Relaxed);
        }
    }

    /// What was noted when the packet was read; zeros for one that was not read from a capture.
    pub(crate) fn stamp(&self, mbuf: &Mbuf) -> (u64, u32) {
        let Some([t, l]) = self.stamps.get(self.pool.buffer_of(mbuf) as usize) else { return (0, 0) };
        let noted = l.load(Ordering::Relaxed);
        let is_its_own = noted >> 32 == read_by(mbuf.port().0) >> 32;
        if is_its_own { (t.load(Ordering::Relaxed), noted as u32) } else { (0, 0) }
    }

    /// Forgets what was noted of packets of a port: its number is to be another port's.
    pub(crate) fn forget_stamps(&self, port: PortId) {
        for [_, l] in &self.stamps {
            if l.load(Ordering::Relaxed) >> 32 == read_by(port.0) >> 32 {
                l.store(0, Ordering::Relaxed);
            }
        }
    }
}

/// The worker's part of a word of the account.
const fn of_worker(worker: WorkerId) -> usize {
    worker.0 as usize + 1
}

/// The port's part of a stamp.
const fn read_by(port: u16) -> u64 {
    (port as u64 + 1) << 32
}

/// A region as DPDK sees it.
struct Buffers(Arc<Region>);

// SAFETY: the region stays mapped while the Arc lives, at an address that does not change; its buffers hold packets and
// nothing else, and the pool is told to use only these.
unsafe impl PacketMemory for Buffers {
    fn base(&self) -> core::ptr::NonNull<u8> {
        self.0.mapping().base()
    }

    fn len(&self) -> usize {
        self.0.mapping().len()
    }

    fn page_bytes(&self) -> usize {
        if self.0.mapping().pages() == netvm_region::PageKind::Huge { 2 << 20 } else { 4096 }
    }
}

/// How the EAL is started: its memory holds mbuf headers only.
pub(crate) fn eal_options(huge_pages: bool, pci: bool) -> EalOptions {
    let huge_pages = if huge_pages { HugePages::Auto } else { HugePages::Off };
    EalOptions { huge_pages, memory_mib: 1024, pci, ..EalOptions::default() }
}

/// mbufs over the buffers of a region.
pub(crate) fn pool_over(eal: Eal, region: &Arc<Region>, id: MemoryId, node: u32) -> Result<Pool, PoolError> {
    let geometry = region.geometry();
    let layout = BufferLayout {
        first: geometry.buffers_at as usize,
        stride: geometry.stride,
        buffers: geometry.buffers,
        // Drivers leave what DPDK was built with; the headroom of the configuration holds where netvm places packets.
        headroom: (geometry.headroom as u16).min(HEADROOM),
    };
    let buffers: Arc<dyn PacketMemory> = Arc::new(Buffers(Arc::clone(region)));
    let options = PoolOptions { node: existing(node), ..PoolOptions::default() };
    Pool::over_region(eal, &format!("memory-{id}"), buffers, layout, options)
}

/// A node that the machine has; one of a topology that was made up is nowhere.
fn existing(node: u32) -> Option<NumaNode> {
    std::path::Path::new(&format!("/sys/devices/system/node/node{node}")).exists().then_some(NumaNode(node))
}
