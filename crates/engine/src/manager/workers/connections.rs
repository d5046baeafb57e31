//! The workers' tables of connections. In: whether the configuration tracks any. Out: a table for each worker while it
//! does. A table's memory is set aside at once, so that packets never wait for it.

use std::sync::Arc;

use netvm_conntrack::{NoMemory, ProxyTable, Shared};
use netvm_model::{ConnectionsConfig, Host};
use rtrb::Consumer;

use super::Workers;
use crate::ids::WorkerId;
use crate::worker::{Command, LogEvent, WorkerConnections};

/// Tables for some workers.
#[derive(Default)]
pub(crate) struct Tables {
    connections: Vec<(WorkerId, Box<WorkerConnections>)>,
    /// What the SYN proxy adds.
    proxied: Vec<(WorkerId, ProxyTable)>,
}

/// Whether workers have tables, and how large these are.
pub(crate) struct ConnectionTables {
    config: ConnectionsConfig,
    /// By which NAT chooses addresses and ports; `None`: by a random one.
    mapping_key: Option<u64>,
    are_given: bool,
    /// What the tables of the workers share, while they have tables.
    shared: Option<Arc<Shared>>,
    /// The rings of their events, until a reader takes them.
    events: Vec<Consumer<LogEvent>>,
    /// The tables have what the SYN proxy adds.
    are_proxied: bool,
}

impl ConnectionTables {
    /// No worker has a table.
    pub(crate) fn new(config: &ConnectionsConfig) -> Self {
        let events = Vec::new();
        let config = config.clone();
        Self { config, mapping_key: None, are_given: false, shared: None, events, are_proxied: false }
    }

    /// Has NAT choose addresses and ports by this key in tables that are yet to be made.
    pub(crate) const fn set_mapping_key(&mut self, key: u64) {
        self.mapping_key = Some(key);
    }

    /// The key by which NAT chooses.
    pub(crate) const fn mapping_key(&self) -> Option<u64> {
        self.mapping_key
    }

    /// Allocates the tables that workers need for a host and do not have.
    pub(crate) fn missing_for(&mut self, host: &Host, workers: &Workers) -> Result<Tables, NoMemory> {
        let mut tables = Tables::default();
        for worker in workers.ids().filter(|_| host.tracks()) {
            if !self.are_given {
                tables.connections.push((worker, self.table(worker, workers.len())?));
            }
            if host.has_syn_proxy() && !self.are_proxied {
                tables.proxied.push((worker, ProxyTable::new(self.config.limit)?));
            }
        }
        Ok(tables)
    }

    /// Gives workers their tables, or takes them from all if the host, which is in force, does not track connections.
    pub(crate) fn follow(&mut self, host: &Host, tables: Tables, workers: &mut Workers) {
        for (worker, table) in tables.connections {
            workers.send(worker, Command::SetConnections(Some(table)));
        }
        for (worker, table) in tables.proxied {
            workers.send(worker, Command::AllowSynProxy(table));
        }
        if self.are_given && !host.tracks() {
            workers.send_all(|_| Command::SetConnections(None));
        }
        self.are_given = host.tracks();
        self.shared = self.shared.take().filter(|_| self.are_given);
        self.are_proxied = self.are_given && (self.are_proxied || host.has_syn_proxy());
    }

    /// A table for a worker that is new, if the others have one.
    pub(crate) fn of_new_worker(
        &mut self,
        worker: WorkerId,
    ) -> Result<Option<Box<WorkerConnections>>, NoMemory> {
        if !self.are_given {
            return Ok(None);
        }
        let mut table = self.table(worker, worker.index() + 1)?;
        if self.are_proxied {
            table.table.allow_syn_proxy(ProxyTable::new(self.config.limit)?);
        }
        Ok(Some(table))
    }

    /// The rings of the events of tables that were made since the last call.
    pub(crate) fn take_events(&mut self) -> Vec<Consumer<LogEvent>> {
        std::mem::take(&mut self.events)
    }

    /// A table of one of so many workers.
    fn table(&mut self, worker: WorkerId, workers: usize) -> Result<Box<WorkerConnections>, NoMemory> {
        let Self { config, mapping_key, shared, .. } = self;
        let shared = match shared {
            Some(shared) => {
                shared.allow_workers(workers)?;
                shared
            }
            None => shared.insert(WorkerConnections::shared(config, *mapping_key, workers)?),
        };
        let mut table = Box::new(WorkerConnections::of_worker(config, shared, worker)?);
        // Those of tables that have gone since.
        self.events.retain(|ring| !ring.is_abandoned());
        self.events.push(table.log());
        Ok(table)
    }
}
