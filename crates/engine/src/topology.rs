//! NUMA node of each core: from sysfs, or from the configuration (`[engine] nodes`).

use std::fs;

/// Cores of each node, by node number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    nodes: Vec<Vec<u32>>,
}

impl Topology {
    /// The configured topology, or the machine's if that is empty.
    #[must_use]
    pub fn new(given: &[Vec<u32>]) -> Self {
        if given.is_empty() { Self { nodes: machine() } } else { Self { nodes: given.to_vec() } }
    }

    /// The node of a core; 0 for an unknown core.
    #[must_use]
    pub fn node_of(&self, core: u32) -> u32 {
        self.nodes.iter().position(|cores| cores.contains(&core)).unwrap_or(0) as u32
    }
}

fn machine() -> Vec<Vec<u32>> {
    let mut nodes = Vec::new();
    while let Ok(list) = fs::read_to_string(format!("/sys/devices/system/node/node{}/cpulist", nodes.len())) {
        nodes.push(parse_list(list.trim()));
    }
    nodes
}

/// A kernel CPU list such as `0-3,8`.
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
    fn a_configured_topology_overrides_the_machine() {
        let topology = Topology::new(&[vec![0, 2], vec![1, 3]]);
        assert_eq!([0, 1, 2, 3, 9].map(|core| topology.node_of(core)), [0, 1, 0, 1, 0]);
    }

    #[test]
    fn kernel_cpu_lists_are_parsed() {
        assert_eq!(parse_list("0-3,8"), [0, 1, 2, 3, 8]);
        assert!(parse_list("").is_empty());
    }

    #[test]
    fn every_core_of_this_machine_has_a_node() {
        assert_eq!(Topology::new(&[]).node_of(0), 0);
    }
}
