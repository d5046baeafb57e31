//! Connections, for display, and ending them.

use super::readers::Readers;
use crate::manager::workers::Workers;
use crate::worker::{Command, ConnectionFilter, ConnectionPage, ConnectionView};

/// What a request has found so far.
pub(crate) struct Found {
    most: usize,
    connections: Vec<ConnectionView>,
    flushed: u64,
}

impl Readers<Found> {
    /// Reads at most `most` connections of all workers; `done` gets them.
    pub(crate) fn read(
        &mut self,
        filter: ConnectionFilter,
        most: usize,
        workers: &mut Workers,
        done: impl FnOnce(Vec<ConnectionView>) + Send + 'static,
    ) {
        let found = Found { most, connections: Vec::new(), flushed: 0 };
        let ticket = self.begin(workers, found, |found| done(found.connections));
        workers.send_all(|worker| Command::ReadConnections(ConnectionPage::to_read(worker, ticket, filter)));
    }

    /// Ends connections of all workers; `done` gets their number.
    pub(crate) fn flush(
        &mut self,
        filter: ConnectionFilter,
        workers: &mut Workers,
        done: impl FnOnce(u64) + Send + 'static,
    ) {
        let found = Found { most: usize::MAX, connections: Vec::new(), flushed: 0 };
        let ticket = self.begin(workers, found, |found| done(found.flushed));
        workers.send_all(|worker| Command::ReadConnections(ConnectionPage::to_flush(worker, ticket, filter)));
    }

    /// Handles a page, and requests the worker's next one.
    pub(crate) fn connections(&mut self, mut page: Box<ConnectionPage>, workers: &mut Workers) {
        let has_more = self.handle(page.ticket, |found| {
            let room = found.most.saturating_sub(found.connections.len());
            found.connections.extend(page.rows.drain(..).take(room));
            page.rows.clear();
            found.flushed += std::mem::take(&mut page.flushed);
            page.cursor.is_some() && found.connections.len() < found.most && workers.has(page.worker)
        });
        if has_more {
            workers.send(page.worker, Command::ReadConnections(page));
        }
    }
}
