//! Statistics of a running engine. Reading them stalls no worker.

pub(crate) mod flows;
pub(crate) mod totals;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use netvm_region::{NfCounter, PageKind};

use crate::counters::{Drops, Stage, WorkerCounters};
use crate::drop_reason::{DropReason, Violation};
use crate::ids::{ChainId, GroupId, InstanceId, MemoryId, NfThreadId, PortId, RoleId, WorkerId};
use crate::manager::Engine;
use crate::manager::nfs::group::GroupState;
use crate::manager::nfs::instance::{Instance, InstanceState};
use crate::manager::ports::PortState;
use crate::memory::Memory;

/// Drops by reason, without the reasons that never happened.
pub type DropCounts = Vec<(DropReason, u64)>;

/// A port.
#[derive(Clone, Debug)]
pub struct PortView {
    /// Its number.
    pub id: PortId,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets that the device dropped for want of room before the engine saw them, as far as it tells; of a source,
    /// those that were due and not made in time. Since the port was opened.
    pub rx_dropped: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Drops at the port, on the way in and on the way out.
    pub drops: DropCounts,
    /// How it is driven.
    pub driver: String,
    /// What was tried first and did not work.
    pub fallback: Option<String>,
    /// Copies that a DMA engine has made for a guest: begun, done and failed.
    pub copies: Option<dpdk::DmaChannelStats>,
    /// Whether the link is up, where that can be told.
    pub link: Option<bool>,
    /// Whether a capture has been read to its end; `None` for other ports.
    pub done: Option<bool>,
    /// What ended it early (captures, and guests that shrink their memory or break the protocol).
    pub fault: Option<String>,
}

/// A chain.
#[derive(Clone, Debug)]
pub struct ChainView {
    /// Its number.
    pub id: ChainId,
    /// Packets handed to its first hop.
    pub entered: u64,
    /// Packets that left it by a port.
    pub left: u64,
    /// Drops in it.
    pub drops: DropCounts,
}

/// One thread of an NF.
#[derive(Clone, Debug)]
pub struct ThreadView {
    /// Its NF thread in the trust group.
    pub nf_thread: NfThreadId,
    /// Packets that the engine handed to it.
    pub delivered: u64,
    /// Packets that the engine took from it.
    pub returned: u64,
    /// What it counts, by [`NfCounter`].
    pub standard: [u64; NfCounter::COUNT],
    /// Drops for what it said or did.
    pub drops: DropCounts,
    /// What no honest NF does.
    pub violations: Vec<(Violation, u64)>,
    /// Packets with which it decided about their flows.
    pub flows_decided: u64,
    /// Packets with which it wanted to, and may not, or whose flow the engine no longer knew.
    pub flows_refused: u64,
    /// Buffers that are with it, by the owner table.
    pub buffers: u32,
}

/// An NF that has attached.
#[derive(Clone, Debug)]
pub struct InstanceView {
    /// Its number.
    pub id: InstanceId,
    /// Its role.
    pub role: RoleId,
    /// Its group.
    pub group: GroupId,
    /// Where it is in its life.
    pub state: InstanceState,
    /// Its threads.
    pub threads: Vec<ThreadView>,
    /// The NF's own counters, summed over its threads.
    pub own: Vec<(String, u64)>,
}

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
    /// Buffers that are out with NFs.
    pub out: u32,
    /// Buffers that are free in the pool.
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
    /// Which.
    pub stage: Stage,
    /// Packets over which it was timed.
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
    /// Everything it counts.
    pub counters: Arc<WorkerCounters>,
}

impl Engine {
    /// The workers.
    pub fn workers(&self) -> impl Iterator<Item = WorkerView> + '_ {
        let view = |worker: &crate::worker::WorkerHandle| WorkerView {
            id: worker.id,
            core: worker.core,
            counters: Arc::clone(&worker.counters),
        };
        self.workers.iter().map(view)
    }

    pub(crate) fn sum(&self, of: impl Fn(&WorkerCounters) -> u64) -> u64 {
        self.workers.sum(of)
    }

    fn drops(&self, of: impl Fn(&WorkerCounters) -> &Drops) -> DropCounts {
        let count = |reason: DropReason| (reason, self.sum(|counters| of(counters).get(reason)));
        DropReason::ALL.into_iter().map(count).filter(|(_, count)| *count > 0).collect()
    }

    /// Time since the start.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Buffers taken back from NFs that are gone, since the start.
    #[must_use]
    pub const fn reclaimed(&self) -> u64 {
        self.nfs.reclaimed
    }

    /// Whether the teardown of an NF or the table of a router is still being worked on.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        !self.nfs.teardowns.is_empty()
            || !self.nfs.audits.is_empty()
            || self.nfs.instances.values().any(|i| i.state == InstanceState::Leaving)
            || self.routers.is_settling()
    }

    /// The ports, by number.
    #[must_use]
    pub fn ports(&self) -> Vec<PortView> {
        let view = |state: &PortState| {
            let index = state.id().index();
            PortView {
                id: state.id(),
                rx_packets: self.sum(|c| c.ports[index].rx_packets.get()),
                rx_bytes: self.sum(|c| c.ports[index].rx_bytes.get()),
                rx_dropped: state.missed(),
                tx_packets: self.sum(|c| c.ports[index].tx_packets.get()),
                tx_bytes: self.sum(|c| c.ports[index].tx_bytes.get()),
                drops: self.drops(|c| &c.ports[index].drops),
                driver: state.mode.driver.clone(),
                fallback: state.mode.fallback.clone(),
                copies: state.dma().map(|dma| dma.stats),
                link: state.link(),
                done: state.progress.as_ref().map(|progress| progress.done.load(Ordering::Acquire)),
                fault: state.fault(),
            }
        };
        self.ports.values().map(view).collect()
    }

    /// The chains, in the order of the configuration.
    #[must_use]
    pub fn chains(&self) -> Vec<ChainView> {
        let view = |chain: &netvm_config::model::Chain| {
            let sums = self.counted_of_chain(chain.id);
            let drops = DropReason::ALL.into_iter().zip(sums.drops).filter(|(_, count)| *count > 0);
            ChainView { id: chain.id, entered: sums.entered, left: sums.left, drops: drops.collect() }
        };
        self.host.chains.iter().map(view).collect()
    }

    /// The NFs that have attached, by number.
    #[must_use]
    pub fn instances(&self) -> Vec<InstanceView> {
        self.nfs.instances.values().map(|instance| self.instance_view(instance)).collect()
    }

    pub(crate) fn instance_view(&self, instance: &Instance) -> InstanceView {
        let mut own: Vec<(String, u64)> = instance.counters.iter().map(|name| (name.clone(), 0)).collect();
        let mut threads = Vec::new();
        let threads_of = instance.nf_threads.iter().zip(&instance.links).zip(&instance.before);
        for (thread, ((nf_thread, links), before)) in (0u16..).zip(threads_of) {
            let block = instance.control.thread(thread);
            for ((_, total), value) in own.iter_mut().zip(&block.own) {
                *total = total.wrapping_add(value.load(Ordering::Relaxed));
            }
            let now = self.workers.link_sums(links);
            let drops = DropReason::ALL.into_iter().zip(now.drops).zip(before.drops);
            let violations = Violation::ALL.into_iter().zip(now.violations).zip(before.violations);
            let memories = self.nfs.groups.get(&instance.group).map(|group| group.memories.as_slice());
            let with = |memory: &Arc<Memory>| memory.in_flight.buffers_with(*nf_thread);
            threads.push(ThreadView {
                nf_thread: *nf_thread,
                delivered: now.delivered - before.delivered,
                returned: now.returned - before.returned,
                standard: std::array::from_fn(|n| block.standard[n].load(Ordering::Relaxed)),
                drops: drops
                    .map(|((reason, now), before)| (reason, now - before))
                    .filter(|d| d.1 > 0)
                    .collect(),
                violations: violations
                    .map(|((v, now), before)| (v, now - before))
                    .filter(|v| v.1 > 0)
                    .collect(),
                flows_decided: now.flows_decided - before.flows_decided,
                flows_refused: now.flows_refused - before.flows_refused,
                buffers: memories.into_iter().flatten().map(with).sum(),
            });
        }
        InstanceView {
            id: instance.id,
            role: instance.role,
            group: instance.group,
            state: instance.state,
            threads,
            own,
        }
    }

    /// The trust groups, and the engine's own memory if there is any.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupView> {
        let memories = |list: &[Arc<Memory>]| {
            let view = |(memory, node): (&Arc<Memory>, &u32)| MemoryView {
                id: memory.id,
                node: *node,
                huge_pages: memory.region().mapping().pages() == PageKind::Huge,
                buffers: memory.region().geometry().buffers,
                buffer_size: memory.region().geometry().stride,
                out: memory.in_flight.buffers_out(),
                free: memory.pool.available(),
            };
            list.iter().zip(&self.memory.nodes).map(view).collect()
        };
        let view =
            |group: &GroupState| GroupView { id: Some(group.id()), memories: memories(&group.memories) };
        let groups = self.nfs.groups.values().map(view);
        let own = Some(GroupView { id: None, memories: memories(&self.memory.own) })
            .filter(|own| !own.memories.is_empty());
        groups.chain(own).collect()
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
