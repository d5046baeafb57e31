//! What the stages of the packet path share: memories, links, outlets, counters of one worker.

pub(crate) mod flow_verdicts;

use std::sync::Arc;

use dpdk::Batch;
use netvm_notify::{RateLimit, Signaller};
use netvm_region::{MAX_PORTS, clock};
use netvm_switch::{Policer, TICKS_PER_SECOND};

use crate::counters::WorkerCounters;
use crate::drop_reason::DropReason;
use crate::ids::{ChainId, GroupId, LinkId, MemoryId, PortId, WorkerId};
use crate::inflight::{InFlight, ThreadInFlight};
use crate::link::{Link, MAX_LINKS};
use crate::memory::Memory;
use crate::port::PortQueue;
use crate::worker::act::reject;
use crate::worker::classify::lookup::Flows;
use crate::worker::forward::route::Routing;
use crate::worker::tx::handoff::Handoff;

/// Packets that a stage handles at once, if there are so many. What a turn costs besides (a fence, the clock, the lines of rings'
/// indexes that cross from core to core) is shared by all of them: twice as many as DPDK's usual 32 made a hop 14 % faster.
pub(crate) const BURST: usize = Batch::CAPACITY;

/// What NFs were given since they last returned something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    Nothing,
    /// A wake-up, for packets that may come.
    WokenAhead,
    /// Packets, all of them while they were awake.
    OfAwake,
    /// Packets and a wake-up.
    OfWoken,
}

/// One worker's possessions.
pub(crate) struct Path {
    pub(crate) id: WorkerId,
    pub(crate) counters: Arc<WorkerCounters>,
    /// Wakes NFs.
    pub(crate) signaller: Signaller,
    /// What is awaited of them.
    pub(crate) awaited: Awaited,
    /// By [`MemoryId`].
    pub(crate) memories: Vec<Option<Arc<Memory>>>,
    /// By [`GroupId`]: the memory of that group on this worker's node.
    pub(crate) home: Vec<Option<MemoryId>>,
    /// By [`GroupId`]: when this worker may wake its NFs.
    pub(crate) rate_limits: Vec<Option<RateLimit>>,
    /// By [`LinkId`].
    pub(crate) links: Vec<Option<Box<Link>>>,
    /// The packets that NFs have.
    pub(crate) in_flight: InFlight,
    /// The links that there are.
    pub(crate) active: Vec<LinkId>,
    /// By [`PortId`]: the queues that this worker has of it.
    pub(crate) ports: Vec<Option<Box<PortQueue>>>,
    /// Ports with packets that are not sent yet, a bit each.
    pub(crate) unsent: [u64; MAX_PORTS / 64],
    /// The way to ports of which this worker has no queue.
    pub(crate) handoff: Handoff,
    /// What is known of flows.
    pub(crate) flows: Flows,
    /// Packets may come by whose senders have left something to others; see `offload.rs`.
    pub(crate) leaves_work: bool,
    /// For bursts that go through virtual routers.
    pub(crate) routing: Option<Box<Routing>>,
    /// What bounds the answers to packets that are refused.
    pub(crate) answers: Option<Policer>,
    /// Cycles at the start of this turn.
    pub(crate) now: u64,
    /// The coarse clock that flows and addresses age by.
    pub(crate) tick: u32,
    next_tick: u64,
}

impl Path {
    pub(crate) fn new(
        id: WorkerId,
        counters: Arc<WorkerCounters>,
        signaller: Signaller,
        handoff: Handoff,
        flows: Flows,
    ) -> Self {
        let hz = clock::cycles_in_micros(1_000_000);
        Self {
            id,
            in_flight: InFlight::new(id),
            counters,
            signaller,
            awaited: Awaited::Nothing,
            memories: Vec::new(),
            home: Vec::new(),
            rate_limits: Vec::new(),
            links: (0..MAX_LINKS).map(|_| None).collect(),
            active: Vec::with_capacity(MAX_LINKS),
            ports: (0..MAX_PORTS).map(|_| None).collect(),
            unsent: [0; MAX_PORTS / 64],
            handoff,
            flows,
            leaves_work: false,
            routing: Some(Box::new(Routing::new())),
            answers: Policer::new(reject::ANSWERS, reject::ANSWERS_AT_ONCE, hz).ok(),
            now: 0,
            tick: 0,
            next_tick: 0,
        }
    }

    /// A turn begins.
    #[inline(always)]
    pub(crate) fn look_at_clock(&mut self, now: u64) {
        self.now = now;
        if now >= self.next_tick {
            self.tick();
        }
    }

    #[cold]
    fn tick(&mut self) {
        let cycles = clock::cycles_in_micros(1_000_000 / u64::from(TICKS_PER_SECOND)).max(1);
        self.tick = (self.now / cycles) as u32;
        self.next_tick = (self.now / cycles + 1) * cycles;
        self.in_flight.expect_order_again();
    }

    /// The memory with this number. The reference is counted, so that it can be held while the path is changed.
    #[inline(always)]
    pub(crate) fn memory(&self, memory: MemoryId) -> Option<&Arc<Memory>> {
        self.memories.get(memory.index())?.as_ref()
    }

    /// This worker's memory for a group.
    #[inline(always)]
    pub(crate) fn home_of(&self, group: GroupId) -> Option<MemoryId> {
        *self.home.get(group.index())?
    }

    pub(crate) fn add_link(&mut self, link: Box<Link>, in_flight: Box<ThreadInFlight>) {
        let id = link.id;
        self.in_flight.add_thread(id, in_flight);
        self.links[id.index()] = Some(link);
        self.active.push(id);
    }

    pub(crate) fn remove_link(&mut self, id: LinkId) -> Option<(Box<Link>, Option<Box<ThreadInFlight>>)> {
        self.active.retain(|active| *active != id);
        let in_flight = self.in_flight.remove_thread(id);
        Some((self.links[id.index()].take()?, in_flight))
    }

    /// Does something with every link.
    #[inline(always)]
    pub(crate) fn each_link(&mut self, mut each: impl FnMut(&mut Link)) {
        for id in &self.active {
            if let Some(link) = self.links[id.index()].as_deref_mut() {
                each(link);
            }
        }
    }

    /// Asks for what NFs have returned to be brought into this core's cache, a burst of each.
    #[inline(always)]
    pub(crate) fn prefetch_returned(&mut self) {
        self.each_link(|link| link.from_nf.prefetch(BURST as u32));
    }

    /// Frees packets that did not enter a chain.
    #[cold]
    pub(crate) fn drop_at_port(&self, port: PortId, reason: DropReason, batch: &mut Batch) {
        if let Some(counters) = self.counters.ports.get(port.index()) {
            counters.drops.add(reason, batch.len() as u64);
        }
        batch.clear();
    }

    /// Frees packets of a chain.
    #[inline]
    pub(crate) fn drop_in_chain(&self, chain: ChainId, reason: DropReason, batch: &mut Batch) {
        if let Some(counters) = self.counters.chains.get(chain.index()) {
            counters.drops.add(reason, batch.len() as u64);
        }
        batch.clear();
    }
}
