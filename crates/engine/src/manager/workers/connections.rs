// SPDX-License-Identifier: Apache-2.0
//! The workers' tables of connections. In: whether the configuration tracks any. Out: a table for each worker while it
//! does. A table's memory is set aside at once, so that packets never wait for it.

use std::sync::Arc;

use netvm_conntrack::{ContactTable, NoMemory, ProxyTable, Shared};
use netvm_model::{ConnectionsConfig, Host};
use rtrb::Consumer;

use super::Workers;
use crate::ids::WorkerId;
use crate::worker::{Command, EventMemory, LogEvent, TableMemory, WorkerConnections};

/// Tables for some workers.
#[derive(Default)]
pub(crate) struct Tables {
    connections: Vec<(WorkerId, Box<WorkerConnections>)>,
    /// What these, and those that are there, have further.
    further: Vec<(WorkerId, TableMemory)>,
    /// For pools that filter by address.
    contacts: Option<ContactTable>,
}

/// Whether workers have tables, and how large these are.
pub(crate) struct ConnectionTables {
    config: ConnectionsConfig,
    /// By which NAT chooses addresses and ports; `None`: by a random one.
    mapping_key: Option<u64>,
    are_given: bool,
    /// What the tables of the workers share, while they have tables.
    shared: Option<Arc<Shared>>,
    /// Somebody wants their events, or has wanted them: a table of each worker, also of one to come, has a log.
    are_logged: bool,
    /// The rings of their events, until a reader takes them.
    events: Vec<Consumer<LogEvent>>,
    /// The tables have what the SYN proxy adds.
    are_proxied: bool,
    /// They have what filtering by address adds.
    have_contacts: bool,
}

impl ConnectionTables {
    /// No worker has a table.
    pub(crate) fn new(config: &ConnectionsConfig) -> Self {
        Self {
            config: config.clone(),
            mapping_key: None,
            are_given: false,
            shared: None,
            are_logged: config.log.is_some(),
            events: Vec::new(),
            are_proxied: false,
            have_contacts: false,
        }
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
                let memory = TableMemory::SynProxy(ProxyTable::new(self.config.limit)?);
                tables.further.push((worker, memory));
            }
        }
        if let Some(shared) = self.shared.as_ref().filter(|_| host.translates()) {
            WorkerConnections::allow_nat(shared, &self.config, workers.len())?;
        }
        if host.filters_by_address() && !self.have_contacts {
            let connections = self.config.limit.saturating_mul(workers.len() as u32);
            tables.contacts = Some(ContactTable::new(connections)?);
        }
        Ok(tables)
    }

    /// Gives workers their tables, or takes them from all if the host, which is in force, does not track connections.
    pub(crate) fn follow(&mut self, host: &Host, tables: Tables, workers: &mut Workers) {
        for (worker, table) in tables.connections {
            workers.send(worker, Command::SetConnections(Some(table)));
        }
        for (worker, memory) in tables.further {
            workers.send(worker, Command::ExtendConnections(memory));
        }
        if let (Some(shared), Some(contacts)) = (&self.shared, tables.contacts) {
            shared.filter_by_address(contacts);
        }
        if self.are_given && !host.tracks() {
            workers.send_all(|_| Command::SetConnections(None));
        }
        self.are_given = host.tracks();
        self.shared = self.shared.take().filter(|_| self.are_given);
        self.are_proxied = self.are_given && (self.are_proxied || host.has_syn_proxy());
        self.have_contacts = self.are_given && (self.have_contacts || host.filters_by_address());
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
            table.extend(TableMemory::SynProxy(ProxyTable::new(self.config.limit)?));
        }
        Ok(Some(table))
    }

    /// Has the workers' tables, also those to come, pass their events on, if nobody has asked for it before. If there
    /// is no memory for it, a later call tries again.
    pub(crate) fn log(&mut self, workers: &mut Workers) {
        if self.are_logged {
            return;
        }
        let ids: Vec<WorkerId> = workers.ids().filter(|_| self.are_given).collect();
        let Ok(logs) = ids.iter().map(|_| EventMemory::new()).collect::<Result<Vec<_>, _>>() else { return };
        for (worker, (log, ring)) in ids.into_iter().zip(logs) {
            workers.send(worker, Command::ExtendConnections(TableMemory::Events(log)));
            self.events.push(ring);
        }
        self.are_logged = true;
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
        if self.are_logged {
            let (log, ring) = EventMemory::new()?;
            table.extend(TableMemory::Events(log));
            // Those of tables that have gone since.
            self.events.retain(|ring| !ring.is_abandoned());
            self.events.push(ring);
        }
        Ok(table)
    }
}
