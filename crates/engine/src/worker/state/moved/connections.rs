//! Connections that another worker owns from now on. The manager carries them, in parts, from the former owner to the
//! new one.

use std::sync::Arc;

use netvm_conntrack::Connection;

use crate::ids::WorkerId;
use crate::snapshot::FlowOwners;
use crate::worker::packet::keys::{connection_hash, zone_hash};
use crate::worker::state::connections::WorkerConnections;

/// Slots of the table that one part covers, in some tens of microseconds.
const SLOTS: u32 = 1024;

/// Some of a worker's connections.
#[derive(Debug)]
pub(crate) struct MovedConnections {
    to: ConnectionOwners,
    /// The next slot to read; `None` at the end.
    pub(crate) cursor: Option<u32>,
    /// Filled up to its capacity: a worker does not allocate.
    pub(crate) connections: Vec<Connection>,
}

/// The owners of connections from now on.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionOwners {
    pub(crate) owners: Arc<FlowOwners>,
    /// There is NAT: one worker has all connections of a zone.
    pub(crate) is_by_zone: bool,
}

impl ConnectionOwners {
    /// The worker that owns a connection.
    pub(crate) fn of(&self, connection: &Connection) -> WorkerId {
        let ends = connection.original();
        self.owners.of(match self.is_by_zone {
            true => zone_hash(ends.zone),
            false => connection_hash([ends.source, ends.destination]),
        })
    }
}

impl MovedConnections {
    /// Without connections, from the first slot on.
    pub(crate) fn new(to: &ConnectionOwners) -> Box<Self> {
        let connections = Vec::with_capacity(SLOTS as usize);
        Box::new(Self { to: to.clone(), cursor: Some(0), connections })
    }

    /// These connections, for their new owner.
    pub(crate) fn of(to: &ConnectionOwners, connections: Vec<Connection>) -> Box<Self> {
        Box::new(Self { to: to.clone(), cursor: None, connections })
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
            let found = table.page(slot, 1, now).next().map(|(id, it)| (id, self.to.of(it)));
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
