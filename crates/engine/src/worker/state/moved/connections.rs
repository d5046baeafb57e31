// SPDX-License-Identifier: Apache-2.0
//! Connections that another worker owns from now on. The manager carries them, in parts, from the former owner to the
//! new one.

use std::sync::Arc;

use netvm_conntrack::{Connection, FlowOwners};

use crate::ids::WorkerId;
use crate::worker::state::connections::WorkerConnections;

/// Slots of the table that one part covers, in some tens of microseconds.
const SLOTS: u32 = 1024;

/// Some of a worker's connections.
#[derive(Debug)]
pub(crate) struct MovedConnections {
    to: Arc<FlowOwners>,
    /// The next slot to read; `None` at the end.
    pub(crate) cursor: Option<u32>,
    /// Filled up to its capacity: a worker does not allocate.
    pub(crate) connections: Vec<Connection>,
}

impl MovedConnections {
    /// Without connections, from the first slot on.
    pub(crate) fn new(to: &Arc<FlowOwners>) -> Box<Self> {
        let connections = Vec::with_capacity(SLOTS as usize);
        Box::new(Self { to: Arc::clone(to), cursor: Some(0), connections })
    }

    /// These connections, for their new owner.
    pub(crate) fn of(to: &Arc<FlowOwners>, connections: Vec<Connection>) -> Box<Self> {
        Box::new(Self { to: Arc::clone(to), cursor: None, connections })
    }

    /// Takes the next connections of a worker that others own now. Those that stay may be exceptions now, or no longer.
    pub(crate) fn take(&mut self, worker: WorkerId, of: Option<&mut WorkerConnections>, now: u32) {
        let (Some(first), Some(of)) = (self.cursor, of) else {
            self.cursor = None;
            return;
        };
        let table = &mut of.table;
        let end = first.saturating_add(SLOTS).min(table.capacity());
        for slot in first..end {
            let found = table.page(slot, 1, now).next().map(|(id, it)| (id, it.owner(&self.to)));
            match found {
                Some((id, owner)) if owner == worker.0 => table.claim_again(id),
                Some((id, _)) => self.connections.extend(table.take(id)),
                None => {}
            }
        }
        self.cursor = (end < table.capacity()).then_some(end);
    }

    /// Adds connections that another worker owned.
    pub(crate) fn give(&self, to: Option<&mut WorkerConnections>) {
        if let Some(to) = to {
            for connection in &self.connections {
                to.table.adopt(connection);
            }
        }
    }
}
