// SPDX-License-Identifier: Apache-2.0
//! The cores of the workers, and their NUMA nodes. They change while packets pass: [`resize`](super::resize).

use std::fs;

use netvm_conntrack::NoMemory;
use netvm_model::{EngineConfig, MAX_WORKERS};
use rustix::thread::{CpuSet, sched_getaffinity};

/// Why an engine could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// DPDK did not start.
    #[error(transparent)]
    Eal(#[from] dpdk::EalError),
    /// A core that this process may not use.
    #[error(
        "engine.cores names core {core}, which this process may not use (it may use {allowed}): correct `cores`, or the process's CPU affinity"
    )]
    Core {
        /// The core.
        core: u32,
        /// The cores that it may use, as a list.
        allowed: String,
    },
    /// A flow cache could not be made.
    #[error("engine.flow_cache: {0}")]
    FlowCache(#[from] netvm_flow::CacheError),
    /// The kernel refused a thread or a file descriptor.
    #[error("the engine's workers: {0}")]
    System(#[from] std::io::Error),
}

/// Why the workers' cores cannot be changed while netvm runs. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum CoresError {
    /// A core that this process may not use, or a worker that cannot be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The table of connections of a new worker.
    #[error("engine.cores: no memory for the connections of another worker: {0}")]
    Connections(#[from] NoMemory),
    /// More workers than there were cores at the start.
    #[error(
        "engine.cores: {wanted} workers, but netvm made room for {room} when it started: name fewer cores, or restart \
         netvmd"
    )]
    Room {
        /// The workers.
        wanted: usize,
        /// The most that there can be.
        room: usize,
    },
    /// A worker would change its NUMA node.
    #[error(
        "engine.cores: worker {worker} is on NUMA node {node}, but core {core} is on node {other}: a worker stays on \
         its node while netvm runs, as its packets are there: name a core of node {node}, or restart netvmd"
    )]
    OtherNode {
        /// The worker.
        worker: usize,
        /// Its node.
        node: u32,
        /// The core that it would get.
        core: u32,
        /// The node of this core.
        other: u32,
    },
    /// A core on a NUMA node where netvm has no memory.
    #[error(
        "engine.cores: core {core} is on NUMA node {node}, where netvm had no worker when it started, and so has no \
         packet memory: name a core of node {have}, or restart netvmd"
    )]
    NewNode {
        /// The core.
        core: u32,
        /// Its node.
        node: u32,
        /// The nodes that have workers, as a list.
        have: String,
    },
    /// A NUMA node would lose its last worker.
    #[error(
        "engine.cores: no core is left on NUMA node {node}, where packets are in memory: leave a core of this node, or \
         restart netvmd"
    )]
    EmptyNode {
        /// The node.
        node: u32,
    },
    /// Too few links for a further worker.
    #[error(
        "engine.cores: a further worker needs {wanted} links with NF threads, but {left} are left: name fewer cores, \
         or use fewer NF threads"
    )]
    Links {
        /// Links for all NF threads.
        wanted: usize,
        /// Free ones.
        left: usize,
    },
    /// No memory for what captures that run write.
    #[error(
        "engine.cores: a buffer of a running capture for the new worker: {0} (end the capture, or free memory)"
    )]
    Capture(#[from] netvm_capture_ring::RingError),
    /// Workers of an earlier change have not ended.
    #[error(
        "engine.cores: worker {worker} is about to leave core {core}, but NFs have not returned {buffers} of its \
         packets yet: try again later"
    )]
    Busy {
        /// The worker.
        worker: usize,
        /// Its core.
        core: u32,
        /// The packets.
        buffers: u32,
    },
}

/// The cores of the workers.
#[derive(Debug)]
pub(crate) struct Cores {
    pub(crate) cores: Vec<u32>,
    /// The NUMA nodes of these cores, in ascending order: every trust group has a region on each.
    pub(crate) nodes: Vec<u32>,
    /// For each core, the index of its node in `nodes`.
    pub(crate) regions: Vec<u8>,
    /// The most workers that there can be while netvm runs: NFs have rings for as many.
    pub(crate) room: usize,
}

impl Cores {
    /// The configured cores; without any, the first one that this process may use.
    pub(crate) fn of(config: &EngineConfig) -> Result<Self, StartError> {
        let allowed = sched_getaffinity(None).map_err(std::io::Error::from)?;
        let is_allowed = |core: &u32| (*core as usize) < CpuSet::MAX_CPU && allowed.is_set(*core as usize);
        let mut allowed = (0..CpuSet::MAX_CPU as u32).filter(is_allowed);
        let all = allowed.clone().count();
        if let Some(core) = config.cores.iter().find(|core| !is_allowed(core)) {
            let allowed = allowed.map(|core| core.to_string()).collect::<Vec<_>>().join(",");
            return Err(StartError::Core { core: *core, allowed });
        }
        let cores =
            if config.cores.is_empty() { allowed.next().into_iter().collect() } else { config.cores.clone() };
        let topology = Topology::new(&config.nodes);
        let node_of_each: Vec<u32> = cores.iter().map(|core| topology.node_of(*core)).collect();
        let mut nodes = node_of_each.clone();
        nodes.sort_unstable();
        nodes.dedup();
        let region = |node: &u32| nodes.binary_search(node).unwrap_or(0) as u8;
        let regions = node_of_each.iter().map(region).collect();
        let room = all.max(cores.len()).min(MAX_WORKERS);
        Ok(Self { cores, nodes, regions, room })
    }

    /// The cores of a changed configuration, if the workers can follow it while netvm runs: there is room for them,
    /// each worker stays on its NUMA node, and each node keeps a worker.
    pub(crate) fn changed(&self, config: &EngineConfig) -> Result<Self, CoresError> {
        let new = Self::of(config)?;
        if new.cores.len() > self.room {
            return Err(CoresError::Room { wanted: new.cores.len(), room: self.room });
        }
        let (before, after) = (self.node_of_each(), new.node_of_each());
        for (worker, ((node, other), core)) in before.iter().zip(&after).zip(&new.cores).enumerate() {
            if node != other {
                return Err(CoresError::OtherNode { worker, node: *node, core: *core, other: *other });
            }
        }
        if let Some((node, core)) = after.iter().zip(&new.cores).find(|(node, _)| !before.contains(node)) {
            let have = self.nodes.iter().map(u32::to_string).collect::<Vec<_>>().join(" or ");
            return Err(CoresError::NewNode { core: *core, node: *node, have });
        }
        if let Some(node) = self.nodes.iter().find(|node| !after.contains(node)) {
            return Err(CoresError::EmptyNode { node: *node });
        }
        Ok(Self { room: self.room, ..new })
    }

    /// By worker: its NUMA node.
    pub(crate) fn node_of_each(&self) -> Vec<u32> {
        let node = |region: &u8| self.nodes.get(usize::from(*region)).copied().unwrap_or_default();
        self.regions.iter().map(node).collect()
    }
}

/// Cores of each NUMA node, by node number.
struct Topology(Vec<Vec<u32>>);

impl Topology {
    /// The given topology, or the machine's if it is empty.
    fn new(given: &[Vec<u32>]) -> Self {
        if given.is_empty() { Self(machine()) } else { Self(given.to_vec()) }
    }

    /// The node of a core; 0 for a core that is in no node's list.
    fn node_of(&self, core: u32) -> u32 {
        self.0.iter().position(|cores| cores.contains(&core)).unwrap_or(0) as u32
    }
}

fn machine() -> Vec<Vec<u32>> {
    let mut nodes = Vec::new();
    while let Ok(list) = fs::read_to_string(format!("/sys/devices/system/node/node{}/cpulist", nodes.len())) {
        nodes.push(parse_list(list.trim()));
    }
    nodes
}

/// Parses a kernel CPU list such as `0-3,8`.
fn parse_list(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_topology_replaces_the_machines() {
        let topology = Topology::new(&[vec![0, 2], vec![1, 3]]);
        assert_eq!([0, 1, 2, 3, 9].map(|core| topology.node_of(core)), [0, 1, 0, 1, 0]);
    }

    #[test]
    fn kernel_cpu_lists_are_parsed() {
        assert_eq!(parse_list("0-3,8"), [0, 1, 2, 3, 8]);
        assert!(parse_list("").is_empty());
    }

    #[test]
    fn core_0_of_this_machine_is_on_node_0() {
        assert_eq!(Topology::new(&[]).node_of(0), 0);
    }

    #[test]
    fn a_worker_stays_on_its_node_and_each_node_keeps_one() {
        let Ok(allowed) = sched_getaffinity(None) else { return };
        if !(allowed.is_set(0) && allowed.is_set(1)) {
            return println!("SKIP: needs cores 0 and 1");
        }
        let on = |cores: &[u32], nodes: &[&[u32]]| EngineConfig {
            cores: cores.to_vec(),
            nodes: nodes.iter().map(|cores| cores.to_vec()).collect(),
            ..EngineConfig::default()
        };
        let one: &[&[u32]] = &[&[0, 1]];
        let two: &[&[u32]] = &[&[0], &[1]];
        let changed = |before: EngineConfig, after: EngineConfig| {
            Cores::of(&before)
                .unwrap()
                .changed(&after)
                .map(|new| new.cores)
                .map_err(|error| error.to_string())
        };
        assert_eq!(changed(on(&[0], one), on(&[0, 1], one)), Ok(vec![0, 1]));
        assert_eq!(changed(on(&[0, 1], one), on(&[1], one)), Ok(vec![1]));
        assert_eq!(changed(on(&[0, 1], one), on(&[], one)), Ok(vec![0]));
        let fails = |before, after, text: &str| {
            let error = changed(before, after).unwrap_err();
            assert!(error.contains(text), "{error}");
        };
        fails(on(&[0], two), on(&[0, 1], two), "core 1 is on NUMA node 1, where netvm had no worker");
        fails(on(&[0], two), on(&[1], two), "worker 0 is on NUMA node 0, but core 1 is on node 1");
        fails(on(&[0, 1], two), on(&[0], two), "no core is left on NUMA node 1");
        fails(on(&[0], one), on(&[0, 9999], one), "names core 9999, which this process may not use");
        let few = Cores { room: 1, ..Cores::of(&on(&[0], one)).unwrap() };
        let error = few.changed(&on(&[0, 1], one)).unwrap_err();
        assert!(matches!(error, CoresError::Room { wanted: 2, room: 1 }), "{error}");
    }

    #[test]
    fn workers_share_the_region_of_their_node() {
        let first = Cores::of(&EngineConfig::default()).unwrap();
        assert_eq!((first.cores.len(), first.regions.as_slice()), (1, [0].as_slice()));
        let config = EngineConfig { cores: vec![100_000], ..EngineConfig::default() };
        assert!(matches!(Cores::of(&config), Err(StartError::Core { core: 100_000, .. })));
    }
}
