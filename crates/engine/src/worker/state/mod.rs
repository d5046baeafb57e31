// SPDX-License-Identifier: Apache-2.0
//! [`Datapath`]: the state that one worker owns and its stages share, in parts that belong together. Other threads see
//! only counters, regions, and the rings to NFs and other workers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dpdk::{Batch, Mbuf};
use netvm_clock as clock;
use netvm_notify::Signaller;
use netvm_switch::TICKS_PER_SECOND;
use netvm_wire::ConnState;

pub(crate) mod burst;
pub(crate) mod connections;
pub(crate) mod flow_verdicts;
pub(crate) mod flows;
pub(crate) mod handoff;
pub(crate) mod lookup_results;
pub(crate) mod memories;
pub(crate) mod moved;
pub(crate) mod nf_links;
pub(crate) mod ports;

use super::latency::Latency;
use super::monitor::FlowMonitor;
use super::record::Recorder;
use super::router::RouterBurst;
use crate::capture::{CaptureMeta, WorkerCaptures};
use crate::counters::WorkerCounters;
use crate::ids::{LinkId, PortId, WorkerId};
use crate::inflight::{InFlight, ThreadInFlight};
use crate::interface::PortContext;
use crate::kernel_flows::Sampler;
use crate::limits::SharedLimits;
use crate::link::Link;
use crate::memory::Memory;
use crate::snapshot::{MAX_PASSED, Snapshot};
use burst::Burst;
use connections::{TableMemory, WorkerConnections};
use flows::Flows;
use handoff::Handoff;
use memories::Memories;
use nf_links::NfLinks;
use nf_links::start_queue::StartQueue;
use ports::Ports;

/// Packets that a stage handles at once. The fixed cost of a turn (a fence, the clock, ring indexes that cross between
/// cores) is shared by all of them: twice as many as DPDK's usual 32 made a hop 14 % faster.
pub(crate) const BURST: usize = Batch::CAPACITY;

/// Length of a tick of the coarse clock. Never 0.
pub(crate) fn cycles_per_tick() -> u64 {
    clock::cycles_in_micros(1_000_000 / u64::from(TICKS_PER_SECOND)).max(1)
}

/// The time, read once per turn.
#[derive(Default)]
pub(crate) struct Clock {
    /// Cycles at the start of this turn.
    pub(crate) now: u64,
    /// The coarse clock by which flows and addresses age.
    pub(crate) tick: u32,
    next_tick: u64,
}

/// One worker's datapath.
pub(crate) struct Datapath {
    pub(crate) id: WorkerId,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) clock: Clock,
    /// The packet whose latency is measured.
    pub(crate) latency: Latency,
    /// The flow monitor, if configured.
    pub(crate) monitor: Option<Box<FlowMonitor>>,
    pub(crate) memories: Memories,
    /// Rings to and from NF threads.
    pub(crate) nfs: NfLinks,
    /// The packets that NFs have.
    pub(crate) in_flight: InFlight,
    /// Packets that wait for programs that are starting.
    pub(crate) start_queue: StartQueue,
    pub(crate) ports: Ports,
    pub(crate) flows: Flows,
    /// The connections of ports that track them, if there are any.
    pub(crate) connections: Option<Box<WorkerConnections>>,
    /// Scratch space of virtual routers; `None` only while one of them works.
    pub(crate) router_burst: Option<Box<RouterBurst>>,
    /// Scratch space for packets that are looked up in rules once more: in those of the port that they leave by, and of
    /// ports without a device.
    #[expect(
        clippy::vec_box,
        reason = "they are taken out and put back, without a copy of all their results"
    )]
    pub(crate) bursts: Vec<Box<Burst>>,
    /// Packets that have passed ports without a device in this turn.
    pub(crate) passed: usize,
    /// It handles hypothetical packets only, which change nothing.
    pub(crate) is_dry: bool,
    /// What connection tracking finds of hypothetical packets.
    pub(crate) dry_state: ConnState,
    /// Notes what happens to packets, while they are traced.
    pub(crate) recorder: Option<Recorder>,
    /// Samples what ports with a fast path receive, if there are any.
    pub(crate) sampler: Option<Box<Sampler>>,
    /// Limits that hold for all workers together.
    pub(crate) limits: Arc<SharedLimits>,
    /// Whether any capture runs: then stages pass their packets to `captures`.
    pub(crate) is_capturing: bool,
    pub(crate) captures: WorkerCaptures,
}

/// What a datapath is made of.
pub(crate) struct DatapathParts {
    pub(crate) id: WorkerId,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) flows: Flows,
    pub(crate) limits: Arc<SharedLimits>,
    pub(crate) latency: Latency,
    pub(crate) monitor: Option<Box<FlowMonitor>>,
    /// Wakes NFs.
    pub(crate) signaller: Signaller,
    pub(crate) handoff: Handoff,
}

impl Datapath {
    pub(crate) fn new(parts: DatapathParts) -> Self {
        let DatapathParts { id, counters, flows, limits, latency, monitor, signaller, handoff } = parts;
        Self {
            id,
            in_flight: InFlight::new(id),
            counters,
            clock: Clock::default(),
            latency,
            monitor,
            memories: Memories::default(),
            nfs: NfLinks::new(signaller),
            start_queue: StartQueue::new(),
            ports: Ports::new(handoff),
            flows,
            connections: None,
            limits,
            router_burst: Some(Box::new(RouterBurst::new())),
            bursts: (0..=MAX_PASSED).map(|_| Box::new(Burst::new())).collect(),
            passed: 0,
            is_dry: false,
            dry_state: ConnState::New,
            recorder: None,
            sampler: None,
            is_capturing: false,
            captures: WorkerCaptures::default(),
        }
    }

    /// Begins a turn.
    #[inline(always)]
    pub(crate) fn start_turn(&mut self, now: u64) {
        self.clock.now = now;
        self.passed = 0;
        if now >= self.clock.next_tick {
            self.start_tick();
        }
    }

    #[cold]
    fn start_tick(&mut self) {
        let clock = &mut self.clock;
        let cycles = cycles_per_tick();
        clock.tick = (clock.now / cycles) as u32;
        clock.next_tick = (clock.now / cycles + 1) * cycles;
        self.in_flight.expect_order_again();
        self.latency.measure(self.counters.measures_latency.load(Ordering::Relaxed));
        if let Some(connections) = &mut self.connections {
            connections.tick(self.clock.tick, &self.counters.connections);
            connections.pass_events(!self.counters.ignores_events.load(Ordering::Relaxed));
        }
        if let Some(monitor) = &mut self.monitor {
            monitor.tick(&self.counters.monitor);
        }
    }

    pub(crate) fn add_link(&mut self, link: Box<Link>, in_flight: Box<ThreadInFlight>) {
        self.in_flight.add_thread(link.id, in_flight);
        self.nfs.add(link);
    }

    pub(crate) fn remove_link(&mut self, id: LinkId) -> Option<(Box<Link>, Option<Box<ThreadInFlight>>)> {
        let in_flight = self.in_flight.remove_thread(id);
        Some((self.nfs.remove(id)?, in_flight))
    }

    /// Tracks connections in another table, or in none. Returns the one before.
    pub(crate) fn replace_connections(
        &mut self,
        new: Option<Box<WorkerConnections>>,
        snapshot: &Snapshot,
    ) -> Option<Box<WorkerConnections>> {
        let old = std::mem::replace(&mut self.connections, new);
        self.follow_owners(snapshot);
        let mut old = old?;
        old.finish(self.clock.tick, &self.counters.connections);
        Some(old)
    }

    /// Replaces the snapshot. Returns the one before.
    pub(crate) fn follow(&mut self, snapshot: &mut Arc<Snapshot>, new: Arc<Snapshot>) -> Arc<Snapshot> {
        self.follow_owners(&new);
        std::mem::replace(snapshot, new)
    }

    fn follow_owners(&mut self, snapshot: &Snapshot) {
        if let Some(connections) = &mut self.connections {
            connections.table.set_owners(&snapshot.owners);
        }
    }

    /// Gives the table of connections further memory.
    pub(crate) fn extend_connections(&mut self, memory: TableMemory) {
        if let Some(connections) = &mut self.connections {
            connections.extend(memory);
        }
    }

    /// Sends the packets that the ports have gathered. Returns how many the devices took.
    #[inline]
    pub(crate) fn flush_ports(&mut self) -> usize {
        let captures = self.is_capturing.then_some(&self.captures);
        self.ports.flush(self.clock.now, &self.memories, &self.counters, captures)
    }

    /// Receives by a port into another memory.
    pub(crate) fn use_memory(&mut self, port: PortId, memory: &Arc<Memory>) {
        let cx = PortContext::new(port, &self.counters, self.is_capturing.then_some(&self.captures));
        if let Some(queue) = self.ports.get_mut(port) {
            queue.use_memory(memory, self.memories.get(queue.memory), &cx);
        }
    }

    /// The counters and captures of a port's devices.
    #[inline(always)]
    pub(crate) fn port_context(&self, port: PortId) -> PortContext<'_> {
        PortContext::new(port, &self.counters, self.is_capturing.then_some(&self.captures))
    }

    /// Passes packets to the captures. Call it only while [`Datapath::is_capturing`].
    #[inline(always)]
    pub(crate) fn capture(&self, meta: &CaptureMeta, packets: &[Mbuf]) {
        self.captures.capture(meta, packets);
    }
}
