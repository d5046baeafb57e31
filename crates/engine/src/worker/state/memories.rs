// SPDX-License-Identifier: Apache-2.0
//! The packet memories that a worker uses: one on its own NUMA node for each trust group, and those of other workers
//! whose packets it gets.

use std::sync::Arc;

use crate::ids::put;
use crate::ids::{GroupId, MemoryId};
use crate::memory::Memory;

#[derive(Default)]
pub(crate) struct Memories {
    /// By [`MemoryId`].
    by_id: Vec<Option<Arc<Memory>>>,
    /// By [`GroupId`]: the memory of that group on this worker's node.
    home: Vec<Option<MemoryId>>,
}

impl Memories {
    /// Adds a memory; it is this worker's own of group `home`.
    pub(crate) fn add(&mut self, memory: Arc<Memory>, home: Option<GroupId>) {
        let id = memory.id;
        put(&mut self.by_id, id.index(), memory);
        if let Some(group) = home {
            put(&mut self.home, group.index(), id);
        }
    }

    pub(crate) fn remove(&mut self, id: MemoryId) -> Option<Arc<Memory>> {
        for home in &mut self.home {
            home.take_if(|home| *home == id);
        }
        self.by_id.get_mut(id.index())?.take()
    }

    #[inline(always)]
    pub(crate) fn get(&self, memory: MemoryId) -> Option<&Memory> {
        self.by_id.get(memory.index())?.as_deref()
    }

    /// This worker's memory of a group.
    #[inline(always)]
    pub(crate) fn home_of(&self, group: GroupId) -> Option<MemoryId> {
        *self.home.get(group.index())?
    }
}
