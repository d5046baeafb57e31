//! Connections that another worker owns from now on. The manager carries them, in parts, from the former owner to the
//! new one.

use std::sync::Arc;

use netvm_conntrack::Connection;

use crate::ids::WorkerId;
use crate::snapshot::FlowOwners;
use crate::worker::packet::keys::connection_hash;
use crate::worker::state::connections::WorkerConnections;

/// Slots of the table that one part covers, in some tens of microseconds.
const SLOTS: u32 = 1024;

/// Some of a worker's connections.
#[derive(Debug)]
pub(crate) struct MovedConnections {
    /// The owners from now on.
    owners: Arc<FlowOwners>,
    /// The next slot to read; `None` at the end.
    pub(crate) cursor: Option<u32>,
    /// Filled up to its capacity: a worker does not allocate.
    pub(crate) connections: Vec<Connection>,
}

/// The worker that owns a connection.
pub(crate) fn owner_of(connection: &Connection, owners: &FlowOwners) -> WorkerId {
    let ends = connection.original();
    owners.of(connection_hash([ends.source, ends.destination]))
}

impl MovedConnections {
    /// Without connections, from the first slot on.
    pub(crate) fn new(owners: &Arc<FlowOwners>) -> Box<Self> {
        let connections = Vec::with_capacity(SLOTS as usize);
        Box::new(Self { owners: Arc::clone(owners), cursor: Some(0), connections })
    }

    /// These connections, for their new owner.
    pub(crate) fn of(owners: &Arc<FlowOwners>, connections: Vec<Connection>) -> Box<Self> {
        Box::new(Self { owners: Arc::clone(owners), cursor: None, connections })
    }

    /// Takes the next connections of a worker that others own now.
    pub(crate) fn take(&mut self, worker: WorkerId, of: Option<&mut WorkerConnections>, now: u32) {
        let (Some(first), Some(of)) = (self.cursor, of) else {
            self.cursor = None;
            return;
        };
        let table = &mut of.table;
        let end = first.saturating_add(SLOTS).min(table.capacity());
        for slot in first..end {
            let found = table.page(slot, 1, now).next().map(|(id, it)| (id, owner_of(it, &self.owners)));
            if let Some((id, owner)) = found
                && owner != worker
            {
                self.connections.extend(table.take(id));
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
