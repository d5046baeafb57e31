//! The cores of the workers, and their NUMA nodes.

use std::fs;

use netvm_model::EngineConfig;
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

/// The cores of the workers.
pub(crate) struct Cores {
    pub(crate) cores: Vec<u32>,
    /// The NUMA nodes of these cores, in ascending order: every trust group has a region on each.
    pub(crate) nodes: Vec<u32>,
    /// For each core, the index of its node in `nodes`.
    pub(crate) regions: Vec<u8>,
}

impl Cores {
    /// The configured cores; without any, the first one that this process may use.
    pub(crate) fn of(config: &EngineConfig) -> Result<Self, StartError> {
        let allowed = sched_getaffinity(None).map_err(std::io::Error::from)?;
        let is_allowed = |core: &u32| (*core as usize) < CpuSet::MAX_CPU && allowed.is_set(*core as usize);
        let mut allowed = (0..CpuSet::MAX_CPU as u32).filter(is_allowed);
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
        Ok(Self { cores, nodes, regions })
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
    fn workers_share_the_region_of_their_node() {
        let first = Cores::of(&EngineConfig::default()).unwrap();
        assert_eq!((first.cores.len(), first.regions.as_slice()), (1, [0].as_slice()));
        let config = EngineConfig { cores: vec![100_000], ..EngineConfig::default() };
        assert!(matches!(Cores::of(&config), Err(StartError::Core { core: 100_000, .. })));
    }
}
