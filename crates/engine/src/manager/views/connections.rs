// SPDX-License-Identifier: Apache-2.0
//! Connections: to show, end, save and restore them.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use netvm_conntrack::{FlowOwners, SavedConnection};
use netvm_flowmon::export::Heaviest;
use rtrb::Consumer;

use super::readers::Readers;
use crate::ids::WorkerId;
use crate::manager::workers::connections::ConnectionTables;
use crate::manager::workers::{COMMAND_TIMEOUT, Workers};
use crate::worker::{
    Command, ConnectionFilter, ConnectionPage, ConnectionView, Event, LogEvent, PageWork, Restored,
};

/// The connections of all workers, for other crates.
pub struct EngineConnections<'a> {
    pub(crate) readers: &'a mut Readers<Found>,
    pub(crate) tables: &'a mut ConnectionTables,
    pub(crate) owners: Arc<FlowOwners>,
    pub(crate) workers: &'a mut Workers,
    /// To be set by a flush.
    pub(crate) is_flushed: &'a mut bool,
}

impl EngineConnections<'_> {
    /// Reads at most `most` connections that a filter accepts, page by page. `Engine::service` calls `done` with them.
    pub fn read(
        self,
        filter: ConnectionFilter,
        most: usize,
        done: impl FnOnce(Vec<ConnectionView>) + Send + 'static,
    ) {
        self.readers.read(filter, most, self.workers, done);
    }

    /// Sums up the bytes of all connections, both directions, by the addresses of their ends, page by page.
    /// `Engine::service` calls `done` with the heaviest, and with the number of connections.
    pub fn sum_up(self, done: impl FnOnce(Heaviest, u64) + Send + 'static) {
        self.readers.sum_up(self.workers, done);
    }

    /// Ends the connections that a filter accepts, part by part. `Engine::service` calls `done` with their number.
    pub fn flush(self, filter: ConnectionFilter, done: impl FnOnce(u64) + Send + 'static) {
        *self.is_flushed = true;
        self.readers.flush(filter, self.workers, done);
    }

    /// Saves a part of a worker's connections, from a slot on, while packets go on. A worker that does not exist has
    /// none.
    #[must_use]
    pub fn save(self, worker: WorkerId, first: u32) -> SavedPart {
        let page = ConnectionPage::to_save(worker, self.workers.new_ticket(), first);
        match handled(page, self.workers) {
            Some(page) => {
                let next = page.cursor;
                let connections = if let PageWork::Save(saved) = page.work { saved } else { Vec::new() };
                SavedPart { connections, next }
            }
            None => SavedPart::default(),
        }
    }

    /// Restores saved connections, each in the table of its owner. Workers that have no table restore none.
    #[must_use]
    pub fn restore(self, saved: Vec<SavedConnection>) -> Restored {
        let mut by_owner: BTreeMap<WorkerId, Vec<SavedConnection>> = BTreeMap::new();
        for one in saved {
            by_owner.entry(WorkerId(one.connection().owner(&self.owners))).or_default().push(one);
        }
        let mut sum = Restored::default();
        for (worker, saved) in by_owner {
            let work = PageWork::Restore(saved, Restored::default());
            let mut page = Some(ConnectionPage::new(worker, self.workers.new_ticket(), work));
            while let Some(it) = page.take_if(|page| page.cursor.is_some()) {
                page = handled(it, self.workers);
            }
            if let Some(PageWork::Restore(_, restored)) = page.map(|page| page.work) {
                sum = sum + restored;
            }
        }
        sum
    }

    /// The rings of what happens to connections: those of tables that were made since the last call. Whether anybody
    /// wants these events, also those of workers to come: call it again now and then. Tables get memory for events when
    /// somebody wants them for the first time.
    pub fn take_events(self, are_wanted: bool) -> Vec<Consumer<LogEvent>> {
        for worker in self.workers.iter() {
            worker.counters.ignores_events.store(!are_wanted, Ordering::Relaxed);
        }
        if are_wanted {
            self.tables.log(self.workers);
        }
        self.tables.take_events()
    }
}

/// Some saved connections of a worker.
#[derive(Debug, Default)]
pub struct SavedPart {
    /// The connections.
    pub connections: Vec<SavedConnection>,
    /// Where the next part begins; `None`: there is none.
    pub next: Option<u32>,
}

/// What a request has found so far.
pub(crate) struct Found {
    most: usize,
    connections: Vec<ConnectionView>,
    /// Those that were ended, or summed up.
    count: u64,
    /// `None`: they are not summed up.
    heaviest: Option<Heaviest>,
}

impl Found {
    const fn new(most: usize) -> Self {
        Self { most, connections: Vec::new(), count: 0, heaviest: None }
    }

    /// Takes the connections of a page.
    fn take(&mut self, rows: &mut Vec<ConnectionView>) {
        if let Some(heaviest) = &mut self.heaviest {
            self.count += rows.len() as u64;
            for ConnectionView { original, reply, bytes, .. } in rows.drain(..) {
                // The ends themselves, not what stands for them.
                for end in [original.source, reply.source] {
                    heaviest.add_bytes(end.to_ip(), bytes[0] + bytes[1]);
                }
            }
        }
        let room = self.most.saturating_sub(self.connections.len());
        self.connections.extend(rows.drain(..).take(room));
        rows.clear();
    }
}

impl Readers<Found> {
    /// Reads at most `most` connections of all workers; `done` gets them.
    fn read(
        &mut self,
        filter: ConnectionFilter,
        most: usize,
        workers: &mut Workers,
        done: impl FnOnce(Vec<ConnectionView>) + Send + 'static,
    ) {
        let ticket = self.begin(workers, Found::new(most), |found| done(found.connections));
        workers.send_all(|worker| Command::ReadConnections(ConnectionPage::to_read(worker, ticket, filter)));
    }

    /// Sums up the bytes of the connections of all workers.
    fn sum_up(&mut self, workers: &mut Workers, done: impl FnOnce(Heaviest, u64) + Send + 'static) {
        let found = Found { heaviest: Some(Heaviest::new()), ..Found::new(usize::MAX) };
        let done = |found: Found| done(found.heaviest.unwrap_or_default(), found.count);
        let ticket = self.begin(workers, found, done);
        let filter = ConnectionFilter::default();
        workers.send_all(|worker| Command::ReadConnections(ConnectionPage::to_read(worker, ticket, filter)));
    }

    /// Ends connections of all workers; `done` gets their number.
    fn flush(
        &mut self,
        filter: ConnectionFilter,
        workers: &mut Workers,
        done: impl FnOnce(u64) + Send + 'static,
    ) {
        let ticket = self.begin(workers, Found::new(usize::MAX), |found| done(found.count));
        let work = || PageWork::End(filter, 0);
        workers.send_all(|worker| Command::ReadConnections(ConnectionPage::new(worker, ticket, work())));
    }

    /// Handles a page, and requests the worker's next one.
    pub(crate) fn connections(&mut self, mut page: Box<ConnectionPage>, workers: &mut Workers) {
        let has_more = self.handle(page.ticket, |found| {
            match &mut page.work {
                PageWork::Show(_, rows) => found.take(rows),
                PageWork::End(_, count) => found.count += std::mem::take(count),
                // Those who ask for these wait for them.
                PageWork::Save(_) | PageWork::Restore(..) => {}
            }
            page.cursor.is_some() && found.connections.len() < found.most && workers.has(page.worker)
        });
        if has_more {
            workers.send(page.worker, Command::ReadConnections(page));
        }
    }
}

/// Has a worker handle a page, and waits for it.
fn handled(page: Box<ConnectionPage>, workers: &mut Workers) -> Option<Box<ConnectionPage>> {
    let (worker, ticket) = (page.worker, page.ticket);
    if !workers.has(worker) {
        return None;
    }
    workers.send(worker, Command::ReadConnections(page));
    workers.wait_for(COMMAND_TIMEOUT, |_, event| match event {
        Event::Connections(page) if page.ticket == ticket => ControlFlow::Break(page),
        other => ControlFlow::Continue(Some(other)),
    })
}
