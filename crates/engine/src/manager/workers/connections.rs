//! The workers' tables of connections. In: whether the configuration tracks any. Out: a table for each worker while it
//! does. A table's memory is set aside at once, so that packets never wait for it.

use netvm_conntrack::{Event, NoMemory};
use netvm_model::{ConnectionsConfig, Host};
use rtrb::Consumer;

use super::Workers;
use crate::ids::WorkerId;
use crate::worker::{Command, WorkerConnections};

/// Tables for some workers.
pub(crate) type Tables = Vec<(WorkerId, Box<WorkerConnections>)>;

/// Whether workers have tables, and how large these are.
pub(crate) struct ConnectionTables {
    config: ConnectionsConfig,
    /// By which NAT chooses addresses and ports; `None`: each table by a random one.
    mapping_key: Option<u64>,
    are_given: bool,
    /// The rings of their events, until a reader takes them.
    events: Vec<Consumer<Event>>,
}

impl ConnectionTables {
    /// No worker has a table.
    pub(crate) fn new(config: &ConnectionsConfig) -> Self {
        Self { config: config.clone(), mapping_key: None, are_given: false, events: Vec::new() }
    }

    /// Has NAT choose addresses and ports by this key in tables that are yet to be made.
    pub(crate) const fn set_mapping_key(&mut self, key: u64) {
        self.mapping_key = Some(key);
    }

    /// Allocates the tables that workers need for a host and do not have.
    pub(crate) fn missing_for(&mut self, host: &Host, workers: &Workers) -> Result<Tables, NoMemory> {
        let is_due = host.tracks() && !self.are_given;
        let table = |worker| Ok((worker, self.table()?));
        if is_due { workers.ids().map(table).collect() } else { Ok(Tables::new()) }
    }

    /// Gives workers their tables, or takes them from all if the host, which is in force, does not track connections.
    pub(crate) fn follow(&mut self, host: &Host, tables: Tables, workers: &mut Workers) {
        for (worker, table) in tables {
            workers.send(worker, Command::SetConnections(Some(table)));
        }
        if self.are_given && !host.tracks() {
            workers.send_all(|_| Command::SetConnections(None));
        }
        self.are_given = host.tracks();
    }

    /// A table for a worker that is new, if the others have one.
    pub(crate) fn of_new_worker(&mut self) -> Result<Option<Box<WorkerConnections>>, NoMemory> {
        self.are_given.then(|| self.table()).transpose()
    }

    /// The rings of the events of tables that were made since the last call.
    pub(crate) fn take_events(&mut self) -> Vec<Consumer<Event>> {
        std::mem::take(&mut self.events)
    }

    fn table(&mut self) -> Result<Box<WorkerConnections>, NoMemory> {
        let mut table = Box::new(WorkerConnections::new(&self.config, self.mapping_key)?);
        // Those of tables that have gone since.
        self.events.retain(|ring| !ring.is_abandoned());
        self.events.push(table.log());
        Ok(table)
    }
}
