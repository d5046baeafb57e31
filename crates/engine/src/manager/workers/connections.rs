//! The workers' tables of connections. In: whether the configuration tracks any. Out: a table for each worker while it
//! does. A table's memory is set aside at once, so that packets never wait for it.

use netvm_conntrack::NoMemory;
use netvm_model::{ConnectionsConfig, Host};

use super::Workers;
use crate::ids::WorkerId;
use crate::worker::{Command, WorkerConnections};

/// Tables for some workers.
pub(crate) type Tables = Vec<(WorkerId, Box<WorkerConnections>)>;

/// Whether workers have tables, and how large these are.
#[derive(Debug)]
pub(crate) struct ConnectionTables {
    config: ConnectionsConfig,
    /// By which NAT chooses addresses and ports; `None`: each table by a random one.
    mapping_key: Option<u64>,
    are_given: bool,
}

impl ConnectionTables {
    /// No worker has a table.
    pub(crate) fn new(config: &ConnectionsConfig) -> Self {
        Self { config: config.clone(), mapping_key: None, are_given: false }
    }

    /// Has NAT choose addresses and ports by this key in tables that are yet to be made.
    pub(crate) const fn set_mapping_key(&mut self, key: u64) {
        self.mapping_key = Some(key);
    }

    /// Allocates the tables that workers need for a host and do not have.
    pub(crate) fn missing_for(&self, host: &Host, workers: &Workers) -> Result<Tables, NoMemory> {
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
    pub(crate) fn of_new_worker(&self) -> Result<Option<Box<WorkerConnections>>, NoMemory> {
        self.are_given.then(|| self.table()).transpose()
    }

    fn table(&self) -> Result<Box<WorkerConnections>, NoMemory> {
        Ok(Box::new(WorkerConnections::new(&self.config, self.mapping_key)?))
    }
}
