// SPDX-License-Identifier: Apache-2.0
//! Views of a running engine: chains, memory, stages, workers. Reading them stalls no worker.

use std::sync::Arc;

use netvm_counters::{fields, filled};
use netvm_model::{Chain, Host};
use netvm_region::PageKind;

pub(crate) mod connections;
pub(crate) mod flows;
pub(crate) mod latency;
mod monitor;
pub(crate) mod readers;
pub(crate) mod trace;

use super::baselines::{Baselines, ChainSums};
use super::memory::Memories;
use super::nfs::Nfs;
use super::ports::{PortView, Ports};
use super::publish::Chains;
use super::resize::Resizes;
use super::routers::Routers;
use super::workers::Workers;
use crate::counters::{DropCounts, Stage, WorkerCounters};
use crate::ids::{ChainId, GroupId, MemoryId, WorkerId};
use crate::memory::Memory;

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
    /// It is about to end.
    pub is_leaving: bool,
    /// All its counters.
    pub counters: Arc<WorkerCounters>,
}

pub(super) fn workers(
    workers: &Workers,
    ports: &Ports,
    resizes: &Resizes,
) -> impl Iterator<Item = WorkerView> {
    workers.iter().map(move |worker| WorkerView {
        id: worker.id,
        core: worker.core,
        queues: ports.queues_on(worker.id),
        load: ports.load_of(worker.id),
        is_leaving: resizes.is_leaving(worker.id),
        counters: Arc::clone(&worker.counters),
    })
}

/// In the order of the configuration.
pub(super) fn chains(
    host: &Host,
    chains: &Chains,
    baselines: &Baselines,
    workers: &Workers,
) -> Vec<ChainView> {
    let view = |chain: &Chain| {
        let ChainSums { counts, drops } = chains.counts(chain.id, baselines, workers);
        netvm_counters::chain!(filled! { ChainView from counts { id: chain.id, drops: drops.by_reason() } })
    };
    host.chains.iter().map(view).collect()
}

/// With the engine's own memory, if it has any.
pub(super) fn groups(nfs: &Nfs, memory: &Memories) -> Vec<GroupView> {
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
        list.iter().zip(memory.nodes()).map(view).collect()
    };
    let groups =
        nfs.groups().map(|group| GroupView { id: Some(group.id()), memories: memories(group.memories()) });
    let own = GroupView { id: None, memories: memories(memory.own()) };
    groups.chain(Some(own).filter(|own| !own.memories.is_empty())).collect()
}

/// Over all workers.
pub(super) fn stages(workers: &Workers) -> Vec<StageView> {
    let view = |stage: Stage| StageView {
        stage,
        packets: workers.sum(|c| c.stages[stage as usize].packets.get()),
        cycles: workers.sum(|c| c.stages[stage as usize].cycles.get()),
    };
    Stage::ALL.into_iter().map(view).collect()
}

/// Adds the other servers to which tunnels of ports lead now.
pub(crate) fn with_vteps(mut ports: Vec<PortView>, host: &Host, routers: &Routers) -> Vec<PortView> {
    for view in &mut ports {
        view.vteps = host.port(view.id).map_or_else(Vec::new, |port| routers.remotes_of(port));
    }
    ports
}
