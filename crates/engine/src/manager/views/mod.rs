//! Views of a running engine: ports, chains, memory, stages, workers. Reading them stalls no worker.

use std::iter::Sum;
use std::sync::Arc;
use std::time::Duration;

use netvm_clock as clock;
use netvm_counters::{fields, filled};
use netvm_model::{Chain, PortConfig, QueueConfig, SendsTo};
use netvm_region::PageKind;

pub(crate) mod flows;
pub(crate) mod latency;
mod monitor;
pub(crate) mod readers;
pub(crate) mod trace;

use crate::counters::{DropCounts, InterfaceCounts, QueueCounters, Stage, WorkerCounters};
use crate::drop_reason::DropReason;
use crate::ids::{ChainId, GroupId, MemoryId, PortId, WorkerId};
use crate::interface::{InterfaceView, closed_interface};
use crate::manager::Engine;
use crate::manager::ports::PortState;
use crate::manager::since::{ChainSums, DropSums, PortSums};
use crate::memory::Memory;
use crate::policy::SwitchingView;
use crate::snapshot::connection;

netvm_counters::port! { fields! {
    /// A port.
    #[derive(Clone, Debug)]
    pub struct PortView {
        /// Its number.
        pub id: PortId,
        /// The workers that have its queues.
        pub workers: Vec<PortWorker>,
        /// Packets that the device dropped for lack of room before the engine received them, if the device counts them;
        /// for a source, packets that were due but not generated in time. Since the port was opened.
        pub rx_dropped: u64,
        /// The workers' time that its packets took, and turns in which it had to wait because other ports had used less
        /// of their share. Counted if a port has `weight` or `reserve`.
        pub worker_time: Duration,
        /// See `worker_time`.
        pub waited: u64,
        /// Drops at the port, on receive and on transmit.
        pub drops: DropCounts,
        /// If it is a punt port: counts of the virtual router's interface.
        pub router_interface: InterfaceCounts,
        /// Queues of its shaper.
        pub queues: Vec<QueueView>,
        /// How it is driven.
        pub driver: String,
        /// The preferred mode and why it failed, if this is a fallback.
        pub fallback: Option<String>,
        /// Copies to a guest by a DMA device: begun, completed and failed.
        pub copies: Option<dpdk::DmaChannelStats>,
        /// Requests and interrupts of a guest's e1000 card.
        pub card: Option<netvm_e1000::Counts>,
        /// Whether the link is up, if known.
        pub link: Option<bool>,
        /// What L2 switching has seen at it.
        pub switching: SwitchingView,
        /// Whether it is open; if not, `fault` says why.
        pub is_open: bool,
        /// Its interface, for ports that have one.
        pub interface: Option<InterfaceView>,
        /// Whether a capture has been read to its end; `None` for other ports.
        pub done: Option<bool>,
        /// Why it is closed, or stopped early (captures, and guests that truncate their memory or break the protocol).
        pub fault: Option<String>,
        /// Problems that do not stop it, with their remedies.
        pub notes: Vec<String>,
    }
} }

/// A worker that has queues of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortWorker {
    /// The worker.
    pub worker: WorkerId,
    /// The number of queues.
    pub queues: usize,
    /// Thousandths of the worker's time, in the last second, that packets of these queues took.
    pub load: u32,
}

netvm_counters::queue! { fields! {
    /// A queue of a port's shaper, since the shaper was configured.
    #[derive(Clone, Debug)]
    pub struct QueueView {
        /// Its name.
        pub name: String,
    }
} }

netvm_counters::chain! { fields! {
    /// A chain.
    #[derive(Clone, Debug)]
    pub struct ChainView {
        /// Its number.
        pub id: ChainId,
        /// Drops in it.
        pub drops: DropCounts,
    }
} }

/// One region and its mbufs.
#[derive(Clone, Debug)]
pub struct MemoryView {
    /// Its number.
    pub id: MemoryId,
    /// NUMA node.
    pub node: u32,
    /// Whether it has huge pages.
    pub huge_pages: bool,
    /// Number of buffers.
    pub buffers: u32,
    /// Bytes of a buffer.
    pub buffer_size: u32,
    /// Buffers that NFs hold.
    pub out: u32,
    /// Free buffers in the pool.
    pub free: u32,
}

/// A trust group.
#[derive(Clone, Debug)]
pub struct GroupView {
    /// Its number; `None` for the engine's own memory.
    pub id: Option<GroupId>,
    /// Its regions.
    pub memories: Vec<MemoryView>,
}

/// Cycles of one stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageView {
    /// The stage.
    pub stage: Stage,
    /// Packets in the timed turns.
    pub packets: u64,
    /// Cycles for these.
    pub cycles: u64,
}

/// A worker.
#[derive(Clone, Debug)]
pub struct WorkerView {
    /// Its number.
    pub id: WorkerId,
    /// Its core.
    pub core: u32,
    /// Rx queues that it has, without those of punt ports and sinks.
    pub queues: usize,
    /// Thousandths of the last second that it spent on packets.
    pub load: u32,
    /// All its counters.
    pub counters: Arc<WorkerCounters>,
}

impl Engine {
    /// The workers.
    pub fn workers(&self) -> impl Iterator<Item = WorkerView> + '_ {
        self.workers.iter().map(|worker| WorkerView {
            id: worker.id,
            core: worker.core,
            queues: self.placement.queues(worker.id),
            load: self.loads.of_worker(worker.id),
            counters: Arc::clone(&worker.counters),
        })
    }

    pub(crate) fn sum<S: Sum>(&self, of: impl Fn(&WorkerCounters) -> S) -> S {
        self.workers.sum(of)
    }

    /// Time since the start.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// The ports, by number.
    #[must_use]
    pub fn ports(&self) -> Vec<PortView> {
        let view = |state: &PortState| {
            let sums = self.since.port(state.id(), &self.workers);
            let control = &state.control;
            PortView {
                workers: self.workers_of(state),
                rx_dropped: control.missed(),
                drops: with_device(sums.drops, (control.missed(), control.refused())),
                queues: queue_views(state),
                driver: state.mode.driver.clone(),
                fallback: state.mode.fallback.clone(),
                copies: control.copies(),
                card: control.card(),
                link: control.link().or_else(|| self.link_without_device(&state.config)),
                switching: self.rules.switching_view(state.id()),
                is_open: true,
                interface: control.interface(),
                done: control.is_done(),
                fault: control.fault(),
                notes: control.notes(),
                ..closed_view(state.id(), sums)
            }
        };
        let closed = |config: &PortConfig| {
            Some(PortView {
                switching: self.rules.switching_view(config.id),
                interface: closed_interface(config.kind.info()),
                fault: Some(self.closed_ports.get(&config.id)?.clone()),
                ..closed_view(config.id, self.since.port(config.id, &self.workers))
            })
        };
        let closed = self.host.ports.iter().filter_map(closed);
        let mut all: Vec<PortView> = self.ports.values().map(view).chain(closed).collect();
        all.sort_by_key(|port| port.id);
        all
    }

    fn workers_of(&self, state: &PortState) -> Vec<PortWorker> {
        let placed = self.placement.workers_of(state.id());
        let view = |worker: &WorkerId| PortWorker {
            worker: *worker,
            // A sink has one for each worker.
            queues: placed.iter().filter(|other| *other == worker).count().max(1),
            load: self.loads.of_port(state.id(), *worker),
        };
        let mut workers: Vec<PortWorker> = state.workers.iter().map(view).collect();
        workers.sort_by_key(|view| view.worker);
        workers
    }

    /// Whether a port without a device is connected, to a port with a link; `None` if it has one.
    fn link_without_device(&self, port: &PortConfig) -> Option<bool> {
        let mut port = port;
        for _ in &self.ports {
            let SendsTo::Parent { port: parent, .. } = port.kind.info().sends_to? else { break };
            let Some(parent) = self.ports.get(&parent) else { return Some(false) };
            if let Some(link) = parent.control.link() {
                return Some(link);
            }
            port = &parent.config;
        }
        Some(connection(&self.host, port).is_some())
    }

    /// The chains, in the order of the configuration.
    #[must_use]
    pub fn chains(&self) -> Vec<ChainView> {
        let view = |chain: &Chain| {
            let ChainSums { counts, drops } = self.chains.counts(chain.id, &self.since, &self.workers);
            netvm_counters::chain!(
                filled! { ChainView from counts { id: chain.id, drops: by_reason(drops) } }
            )
        };
        self.host.chains.iter().map(view).collect()
    }

    /// The trust groups, and the engine's own memory if it has any.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupView> {
        let memories = |list: &[Arc<Memory>]| {
            let view = |(memory, node): (&Arc<Memory>, &u32)| MemoryView {
                id: memory.id,
                node: *node,
                huge_pages: memory.region().mapping().pages() == PageKind::Huge,
                buffers: memory.region().geometry().buffers + memory.region().geometry().large,
                buffer_size: memory.region().geometry().stride,
                out: memory.in_flight.buffers_out(),
                free: memory.free(),
            };
            list.iter().zip(&self.memory.nodes).map(view).collect()
        };
        let groups = self.nfs.groups();
        let groups =
            groups.map(|group| GroupView { id: Some(group.id()), memories: memories(group.memories()) });
        let own = GroupView { id: None, memories: memories(&self.memory.own) };
        groups.chain(Some(own).filter(|own| !own.memories.is_empty())).collect()
    }

    /// Cycles of each stage, over all workers.
    #[must_use]
    pub fn stages(&self) -> Vec<StageView> {
        let view = |stage: Stage| StageView {
            stage,
            packets: self.sum(|c| c.stages[stage as usize].packets.get()),
            cycles: self.sum(|c| c.stages[stage as usize].cycles.get()),
        };
        Stage::ALL.into_iter().map(view).collect()
    }
}

fn time_of(cycles: u64) -> Duration {
    Duration::from_secs_f64(cycles as f64 / clock::cycles_per_second() as f64)
}

/// The view of a closed port, with what was counted at it.
fn closed_view(id: PortId, sums: PortSums) -> PortView {
    let counts = sums.counts;
    netvm_counters::port!(filled! { PortView from counts {
        id,
        workers: Vec::new(),
        rx_dropped: 0,
        worker_time: time_of(sums.cycles),
        waited: sums.waited,
        drops: by_reason(sums.drops),
        router_interface: sums.interface,
        queues: Vec::new(),
        driver: "closed".to_owned(),
        fallback: None,
        copies: None,
        card: None,
        link: Some(false),
        switching: SwitchingView::default(),
        is_open: false,
        interface: None,
        done: None,
        fault: None,
        notes: Vec::new(),
    } })
}

/// Drops of a port with those of its device before packets were received, and after they were sent.
fn with_device(DropSums(mut counts): DropSums, (missed, refused): (u64, u64)) -> DropCounts {
    counts[DropReason::RxMissed as usize] += missed;
    counts[DropReason::TxRefused as usize] += refused;
    by_reason(DropSums(counts))
}

fn by_reason(DropSums(counts): DropSums) -> DropCounts {
    DropReason::ALL.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect()
}

fn queue_views(state: &PortState) -> Vec<QueueView> {
    let configured = state.config.policy.qos.iter().flat_map(|qos| &qos.queues);
    let view = |(queue, counters): (&QueueConfig, &QueueCounters)| {
        let counts = counters.counts();
        netvm_counters::queue!(filled! { QueueView from counts { name: queue.name.clone() } })
    };
    configured.zip(state.queues.iter()).map(view).collect()
}
