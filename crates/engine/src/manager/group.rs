//! A trust group: its memories, its table, its NF threads and the rings between them.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use netvm_config::model::Group;
use netvm_notify::{RateLimit, Signaller, new_eventfd};
use netvm_region::{MAX_STATIONS, Pages, Region, RegionError, RegionSpec, RingRef, Table, TablePublisher};

use super::GroupError;
use super::totals::RoleTotals;
use crate::call::Call;
use crate::ids::{GroupId, MemoryId, NfThreadId};
use crate::memory::Memory;
use crate::worker::WorkerHandle;

/// Direct rings that a region has room for.
const RINGS: u16 = 256;

/// What all memories of an engine are made with.
#[derive(Clone, Debug)]
pub(super) struct MemoryPlan {
    pub(super) eal: dpdk::Eal,
    pub(super) pages: Pages,
    pub(super) ring_size: u32,
    /// The node of each region of a group, in their order.
    pub(super) nodes: Vec<u32>,
}

/// A group as the manager keeps it.
pub(super) struct GroupState {
    pub(super) config: Group,
    /// One for each node of the plan.
    pub(super) memories: Vec<Arc<Memory>>,
    pub(super) publisher: TablePublisher,
    pub(super) table: Box<Table>,
    /// By NF thread number: what wakes it.
    pub(super) wakes: Vec<Arc<OwnedFd>>,
    /// When the manager may wake them.
    rate_limit: RateLimit,
    /// By worker: what this group's NFs wake it by. One of them can have those wait who write to it, so no other group has it.
    pub(super) calls: Vec<Call>,
    /// By NF thread number: in use, or not yet free again.
    taken: u64,
    /// By NF thread number: its process is gone, its number not free yet.
    gone: u64,
    /// By NF thread number: wakes nobody.
    silent: u64,
    /// By name of the role: what instances have counted that are gone.
    pub(super) past: BTreeMap<String, RoleTotals>,
    rings: BTreeMap<(u8, u8), RingRef>,
    /// Rings that are free, by region.
    free_rings: Vec<Vec<u16>>,
}

impl GroupState {
    /// Makes the group's memory, and what its NFs wake workers by; numbers of memories are taken from `next`.
    pub(super) fn create(
        config: Group,
        plan: &MemoryPlan,
        workers: &[WorkerHandle],
        next: &mut u16,
    ) -> Result<Self, GroupError> {
        let mut memories = Vec::new();
        for number in 0..plan.nodes.len() as u16 {
            let id = MemoryId(*next);
            *next += 1;
            memories.push(Arc::new(create_memory(&config, id, plan, number)?));
        }
        let wakes = (0..MAX_STATIONS).map(|_| new_eventfd().map(Arc::new)).collect::<Result<_, _>>();
        let calls = workers.iter().map(|worker| Call::new(&worker.waiter)).collect::<Result<_, _>>();
        let (wakes, calls) = wakes
            .and_then(|wakes| Ok((wakes, calls?)))
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
            taken: 1,
            gone: 0,
            silent: 0,
            past: BTreeMap::new(),
            rings: BTreeMap::new(),
            free_rings,
        })
    }

    /// An NF thread that nobody has.
    pub(super) fn take_nf_thread(&mut self) -> Option<NfThreadId> {
        let free = (!self.taken).trailing_zeros();
        if free as usize >= MAX_STATIONS {
            return None;
        }
        self.taken |= 1 << free;
        Some(NfThreadId(free as u8))
    }

    /// These NF threads, a bit each, wake nobody.
    pub(super) const fn silence(&mut self, nf_threads: u64) {
        self.silent |= nf_threads;
    }

    /// The NF threads that wake nobody, a bit each.
    pub(super) const fn silent(&self) -> u64 {
        self.silent
    }

    /// Gives NF threads back, a bit each, with the rings to and from them. No process may use them any more.
    pub(super) fn release_nf_threads(&mut self, nf_threads: u64) {
        self.taken &= !(nf_threads & !1);
        self.gone &= !nf_threads;
        self.silent &= !nf_threads;
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

    /// The ring between two NF threads, made if there is none; `None` when the region has no more, so that packets go
    /// round by the engine.
    pub(super) fn ring_between(&mut self, from: NfThreadId, to: NfThreadId) -> Option<RingRef> {
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

    /// The rings that an NF thread writes to.
    pub(super) fn rings_from(&self, from: NfThreadId) -> impl Iterator<Item = (NfThreadId, RingRef)> + '_ {
        let range = (from.0, 0)..=(from.0, u8::MAX);
        self.rings.range(range).map(|((_, to), ring)| (NfThreadId(*to), *ring))
    }

    /// Whether an NF thread's process is gone.
    pub(super) const fn is_gone(&self, nf_thread: NfThreadId) -> bool {
        self.gone >> nf_thread.0 & 1 == 1
    }

    /// The processes of these NF threads are gone: what they have set in the backpressure words is taken away.
    pub(super) fn mark_gone(&mut self, nf_threads: u64) {
        self.gone |= nf_threads;
        let Some(memory) = self.memories.first() else { return };
        for chain in 0..netvm_region::MAX_CHAINS as u16 {
            let word = memory.region().backpressure(chain);
            word.fetch_and(!nf_threads, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Wakes every NF thread that sleeps.
    pub(super) fn wake_all(&mut self, signaller: &Signaller) {
        for wake in &self.wakes {
            self.rate_limit.signal(signaller, wake);
        }
    }

    /// Wakes a thread if it sleeps. Where that, or [`GroupState::wake_all`], would take too much of the manager's time, it looks
    /// by itself soon.
    pub(super) fn wake(&mut self, signaller: &Signaller, nf_thread: NfThreadId) {
        self.rate_limit.signal(signaller, &self.wakes[nf_thread.index()]);
    }

    pub(super) const fn id(&self) -> GroupId {
        self.config.id
    }
}

/// The region of a group that has this number, with mbufs over it.
pub(super) fn create_memory(
    config: &Group,
    id: MemoryId,
    plan: &MemoryPlan,
    number: u16,
) -> Result<Memory, GroupError> {
    let node = plan.nodes.get(usize::from(number)).copied().unwrap_or(0);
    let spec = RegionSpec {
        buffers: config.buffers,
        stride: config.buffer_size,
        headroom: config.headroom,
        rings: RINGS,
        ring_capacity: plan.ring_size,
    };
    let region = Region::create(&format!("{}-{node}", config.name), spec, plan.pages, Some(node))?;
    region.label(u32::from(config.id.0), number);
    let region = Arc::new(region);
    let pool = crate::memory::pool_over(plan.eal, &region, id, node)
        .map_err(|source| GroupError::Pool { name: config.name.clone(), source: Box::new(source) })?;
    Ok(Memory::new(id, region, pool))
}
