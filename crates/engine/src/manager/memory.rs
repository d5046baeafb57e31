// SPDX-License-Identifier: Apache-2.0
//! Packet memories: one region for each trust group and NUMA node, and the engine's own for ports without a group.

use std::sync::{Arc, Weak};

use netvm_model::Group;
use netvm_region::{Pages, Region, RegionError, RegionSpec};

use crate::ids::{GroupId, MemoryId};
use crate::memory::{Memory, pools_over};

/// Direct rings per region.
pub(crate) const RINGS: u16 = 256;

/// Why a trust group's memory could not be created.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// Its regions or its table.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The mbufs over a region.
    #[error("group {name}: {source}")]
    Pool {
        /// The group.
        name: String,
        /// What DPDK logged.
        source: Box<dpdk::PoolError>,
    },
    /// No more file descriptors.
    #[error("group {name}: {source} (raise the limit of open files)")]
    Descriptors {
        /// The group.
        name: String,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

/// Creates memories, and keeps the engine's own.
pub(crate) struct Memories {
    eal: dpdk::Eal,
    pages: Pages,
    ring_size: u32,
    /// The NUMA node of each region of a group.
    nodes: Vec<u32>,
    /// Memory for ports without a group, by region; created when first needed.
    own: Vec<Arc<Memory>>,
    next: MemoryId,
    /// The memories that may still be in use.
    made: Vec<Weak<Memory>>,
}

impl Memories {
    pub(crate) fn new(eal: dpdk::Eal, pages: Pages, ring_size: u32, nodes: Vec<u32>) -> Self {
        Self { eal, pages, ring_size, nodes, own: Vec::new(), next: MemoryId(0), made: Vec::new() }
    }

    pub(crate) const fn eal(&self) -> dpdk::Eal {
        self.eal
    }

    /// The NUMA node of each region of a group.
    pub(crate) fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// Memory for ports without a group, by region; empty unless it was needed.
    pub(crate) fn own(&self) -> &[Arc<Memory>] {
        &self.own
    }

    /// Creates the regions of a group, one for each node, with mbufs over them.
    pub(crate) fn create(&mut self, group: &Group) -> Result<Vec<Arc<Memory>>, GroupError> {
        (0..self.nodes.len() as u16).map(|number| self.create_one(group, number)).collect()
    }

    /// Creates the engine's own memory, unless it exists. Returns it if it is new.
    pub(crate) fn create_own(&mut self, buffers: u32) -> Result<Option<&[Arc<Memory>]>, GroupError> {
        if !self.own.is_empty() {
            return Ok(None);
        }
        let config = Group { id: GroupId(u16::MAX), name: "engine".to_owned(), buffers, ..Group::default() };
        self.own = self.create(&config)?;
        Ok(Some(&self.own))
    }

    fn create_one(&mut self, group: &Group, number: u16) -> Result<Arc<Memory>, GroupError> {
        let id = self.unused_id();
        let node = self.nodes[usize::from(number)];
        let spec = RegionSpec {
            buffers: group.buffers,
            stride: group.buffer_size,
            headroom: group.headroom,
            large: group.large_buffers,
            rings: RINGS,
            ring_capacity: self.ring_size,
        };
        let region = Region::create(&format!("{}-{node}", group.name), spec, self.pages, Some(node))?;
        region.label(u32::from(group.id.0), number);
        let region = Arc::new(region);
        let pools = pools_over(self.eal, &region, id, node)
            .map_err(|source| GroupError::Pool { name: group.name.clone(), source: Box::new(source) })?;
        let memory = Arc::new(Memory::new(id, region, pools));
        self.made.push(Arc::downgrade(&memory));
        Ok(memory)
    }

    /// The next number that no memory has. NFs that damage their memory get a new one, so that numbers come round.
    fn unused_id(&mut self) -> MemoryId {
        self.made.retain(|memory| memory.strong_count() > 0);
        let is_used = |id: MemoryId| self.made.iter().filter_map(Weak::upgrade).any(|memory| memory.id == id);
        let mut id = self.next;
        // There are far fewer memories than numbers.
        while is_used(id) {
            id = MemoryId(id.0.wrapping_add(1));
        }
        self.next = MemoryId(id.0.wrapping_add(1));
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::eal_for_tests;

    #[test]
    fn a_group_can_have_as_few_buffers_as_a_configuration_allows() {
        let mut memories = Memories::new(eal_for_tests(), Pages::Normal, 16, vec![0]);
        for buffers in [1, 2, 64, 256, 383, 384] {
            let config = Group { name: "few".to_owned(), buffers, large_buffers: 1, ..Group::default() };
            let memory = memories.create(&config).unwrap().remove(0);
            assert_eq!(memory.free(), buffers + 1);
        }
    }

    #[test]
    fn a_number_is_not_given_twice_at_a_time() {
        let mut memories = Memories::new(eal_for_tests(), Pages::Normal, 16, vec![0]);
        let config = Group { name: "test".to_owned(), buffers: 1024, ..Group::default() };
        let mut create = |next: u16| {
            memories.next = MemoryId(next);
            memories.create(&config).unwrap().remove(0)
        };
        let first = create(u16::MAX);
        let second = create(0);
        assert_eq!((first.id, second.id), (MemoryId(u16::MAX), MemoryId(0)));
        let third = create(u16::MAX);
        assert_eq!(third.id, MemoryId(1));
        drop(first);
        assert_eq!(create(u16::MAX).id, MemoryId(u16::MAX));
    }
}
