// SPDX-License-Identifier: Apache-2.0
//! A trust group: memories, next-hop table, NF threads, and the direct rings between them.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use netvm_model::Group;
use netvm_notify::{EpollWaiter, RateLimit, Signaller, new_eventfd};
use netvm_region::{MAX_NF_THREADS, RegionError, RingRef, Table, TablePublisher};
use netvm_ring::RingMemory;
use rustix::io::Errno;

use crate::ids::{GroupId, NfThreadId, WorkerId};
use crate::manager::memory::{GroupError, RINGS};
use crate::manager::workers::Workers;
use crate::memory::Memory;

/// The eventfd that the NFs of a group signal to wake a worker. The worker's epoll instance watches it until this is
/// dropped or the worker ends. NF processes may keep their descriptor for longer.
#[derive(Debug)]
pub(super) struct Call {
    fd: OwnedFd,
    /// `None` while there is no such worker.
    waiter: Option<EpollWaiter>,
}

impl Call {
    fn new() -> Result<Self, Errno> {
        Ok(Self { fd: new_eventfd()?, waiter: None })
    }

    /// From now on it wakes a worker.
    fn watch(&mut self, waiter: &EpollWaiter) -> Result<(), Errno> {
        waiter.add(&self.fd)?;
        self.waiter = Some(waiter.clone());
        Ok(())
    }

    /// The worker has ended.
    fn forget(&mut self) {
        if let Some(waiter) = self.waiter.take() {
            waiter.remove(&self.fd);
        }
    }
}

impl AsFd for Call {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.forget();
    }
}

/// A trust group.
pub(crate) struct GroupState {
    pub(super) config: Group,
    /// One per NUMA node.
    memories: Vec<Arc<Memory>>,
    pub(super) publisher: TablePublisher,
    table: Box<Table>,
    /// By NF thread: the eventfd that wakes it.
    pub(super) wakes: Vec<Arc<OwnedFd>>,
    /// Limits the manager's wake-ups.
    rate_limit: RateLimit,
    /// By worker, for as many as there can be: the eventfd by which this group's NFs wake it. An NF can stall every
    /// process that writes to a shared eventfd, so each group has its own.
    pub(super) calls: Vec<Call>,
    /// A new group has replaced it; instances with its number belong to the new one.
    pub(super) is_replaced: bool,
    /// Bit mask of NF threads in use or not yet free again.
    taken: u64,
    /// Bit mask of NF threads whose process ended and whose number is not free yet.
    gone: u64,
    /// Bit mask of NF threads that never signal.
    poll_only: u64,
    rings: BTreeMap<(u8, u8), RingRef>,
    /// Free rings by region.
    free_rings: Vec<Vec<u16>>,
}

impl GroupState {
    /// A group with these memories, and the eventfds by which its NFs and the workers wake each other: for as many
    /// workers as there can be.
    pub(super) fn create(
        config: Group,
        memories: Vec<Arc<Memory>>,
        workers: &Workers,
    ) -> Result<Self, GroupError> {
        let wakes = (0..MAX_NF_THREADS).map(|_| new_eventfd().map(Arc::new)).collect::<Result<_, _>>();
        let (wakes, calls) = wakes
            .and_then(|wakes| Ok((wakes, calls(workers)?)))
            .map_err(|error| GroupError::Descriptors { name: config.name.clone(), source: error.into() })?;
        let publisher = TablePublisher::create(&config.name).map_err(RegionError::Map)?;
        let free_rings = memories.iter().map(|_| (0..RINGS).rev().collect()).collect();
        Ok(Self {
            config,
            memories,
            publisher,
            table: Table::new_boxed(),
            wakes,
            rate_limit: RateLimit::new(),
            calls,
            is_replaced: false,
            taken: 1,
            gone: 0,
            poll_only: 0,
            rings: BTreeMap::new(),
            free_rings,
        })
    }

    /// NFs can wake this worker from now on.
    pub(super) fn watch(&mut self, worker: WorkerId, waiter: &EpollWaiter) -> Result<(), Errno> {
        self.calls.get_mut(worker.index()).map_or(Ok(()), |call| call.watch(waiter))
    }

    /// This worker has ended.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        if let Some(call) = self.calls.get_mut(worker.index()) {
            call.forget();
        }
    }

    /// Reserves a free NF thread.
    pub(super) fn take_nf_thread(&mut self) -> Option<NfThreadId> {
        let free = (!self.taken).trailing_zeros();
        if free as usize >= MAX_NF_THREADS {
            return None;
        }
        self.taken |= 1 << free;
        Some(NfThreadId(free as u8))
    }

    /// Marks NF threads (bit mask) that never signal.
    pub(super) const fn add_poll_only(&mut self, nf_threads: u64) {
        self.poll_only |= nf_threads;
    }

    /// Bit mask of the NF threads that never signal.
    pub(crate) const fn poll_only(&self) -> u64 {
        self.poll_only
    }

    /// Frees NF threads (bit mask) and the rings to and from them. No process may use them any more.
    pub(super) fn release_nf_threads(&mut self, nf_threads: u64) {
        self.taken &= !(nf_threads & !1);
        self.gone &= !nf_threads;
        self.poll_only &= !nf_threads;
        let gone = |nf_thread: u8| nf_threads >> nf_thread & 1 == 1;
        let free_rings = &mut self.free_rings;
        self.rings.retain(|(from, to), ring| {
            let keep = !gone(*from) && !gone(*to);
            if !keep && let Some(free) = free_rings.get_mut(usize::from(ring.region)) {
                free.push(ring.index);
            }
            keep
        });
    }

    /// The ring between two NF threads, created if there is none; `None` if no ring is free. Packets then go through
    /// the engine.
    pub(crate) fn ring_between(&mut self, from: NfThreadId, to: NfThreadId) -> Option<RingRef> {
        if let Some(ring) = self.rings.get(&(from.0, to.0)) {
            return Some(*ring);
        }
        let region = (0..self.memories.len()).find(|region| !self.free_rings[*region].is_empty())?;
        let index = self.free_rings[region].pop()?;
        self.memories[region].region().ring(index)?.initialise();
        let ring = RingRef::new(region as u8, index);
        self.rings.insert((from.0, to.0), ring);
        Some(ring)
    }

    /// A ring that two of its NF threads share.
    pub(super) fn ring(&self, ring: RingRef) -> Option<RingMemory> {
        self.memories.get(usize::from(ring.region))?.region().ring(ring.index)
    }

    /// The rings that an NF thread writes to.
    pub(crate) fn rings_from(&self, from: NfThreadId) -> impl Iterator<Item = (NfThreadId, RingRef)> + '_ {
        let range = (from.0, 0)..=(from.0, u8::MAX);
        self.rings.range(range).map(|((_, to), ring)| (NfThreadId(*to), *ring))
    }

    /// The rings that an NF thread reads from, apart from the workers'.
    pub(super) fn rings_to(&self, to: NfThreadId) -> impl Iterator<Item = RingRef> + '_ {
        self.rings.iter().filter(move |((_, other), _)| *other == to.0).map(|(_, ring)| *ring)
    }

    /// Whether an NF thread's process has ended.
    pub(crate) const fn is_gone(&self, nf_thread: NfThreadId) -> bool {
        self.gone >> nf_thread.0 & 1 == 1
    }

    /// Records that the processes of these NF threads ended, and clears the group's backpressure: they may have set the
    /// bits of others, which those would never clear. An NF whose ring is still full sets its bit again.
    pub(super) fn mark_gone(&mut self, nf_threads: u64) {
        self.gone |= nf_threads;
        let Some(memory) = self.memories.first() else { return };
        for chain in 0..netvm_region::MAX_CHAINS as u16 {
            memory.region().backpressure(chain).store(0, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Publishes this table if it differs from the one before. Returns its epoch, then.
    pub(super) fn replace_table(&mut self, table: Box<Table>, signaller: &Signaller) -> Option<u64> {
        let is_new = *self.table != *table || self.publisher.epoch() == 0;
        self.table = table;
        is_new.then(|| self.publish(signaller))
    }

    /// Publishes the table again and wakes every sleeping NF thread. Returns the table's epoch.
    pub(super) fn publish(&mut self, signaller: &Signaller) -> u64 {
        let epoch = self.publisher.publish(&self.table);
        self.wake_all(signaller);
        epoch
    }

    fn wake_all(&mut self, signaller: &Signaller) {
        for wake in &self.wakes {
            self.rate_limit.signal(signaller, wake);
        }
    }

    /// Wakes a thread if it sleeps, unless the rate limit forbids it; NFs also wake up on their own soon.
    pub(super) fn wake(&mut self, signaller: &Signaller, nf_thread: NfThreadId) {
        self.rate_limit.signal(signaller, &self.wakes[nf_thread.index()]);
    }

    /// Its memories, one per NUMA node.
    pub(crate) fn memories(&self) -> &[Arc<Memory>] {
        &self.memories
    }

    pub(crate) const fn id(&self) -> GroupId {
        self.config.id
    }
}

/// An eventfd for each worker that there can be; those of the workers that there are wake them.
fn calls(workers: &Workers) -> Result<Vec<Call>, Errno> {
    let mut calls = (0..workers.room()).map(|_| Call::new()).collect::<Result<Vec<_>, _>>()?;
    for (call, worker) in calls.iter_mut().zip(workers.iter()) {
        call.watch(&worker.waiter)?;
    }
    Ok(calls)
}
