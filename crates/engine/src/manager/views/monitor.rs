//! The heaviest addresses and names among the flows that run: what workers' flow monitors have counted since their last
//! records.
//!
//! Workers report them in pages, one per command, so that reading stalls no worker.

use netvm_flowmon::export::Heaviest;

use crate::manager::Engine;
use crate::worker::{Command, MonitorPage};

/// A request to read running flows, and what has arrived so far.
pub(crate) struct MonitorReader {
    ticket: u64,
    /// Workers that have more pages.
    left: usize,
    heaviest: Heaviest,
    done: Box<dyn FnOnce(Heaviest) + Send>,
}

impl Engine {
    /// Reads the running flows of all workers' monitors, page by page. [`Engine::service`] calls `done` with the
    /// heaviest of them; with none if the engine has no monitor.
    pub fn read_running(&mut self, done: impl FnOnce(Heaviest) + Send + 'static) {
        let ticket = self.workers.new_ticket();
        self.monitor_readers.push(MonitorReader {
            ticket,
            left: self.workers.len(),
            heaviest: Heaviest::new(),
            done: Box::new(done),
        });
        self.workers.send_all(|worker| Command::ReadMonitor(Box::new(MonitorPage::new(worker, ticket))));
    }

    /// Handles a page: requests the worker's next page, or completes the request.
    pub(crate) fn monitor_read(&mut self, mut page: Box<MonitorPage>) {
        let readers = &mut self.monitor_readers;
        let Some(n) = readers.iter().position(|reader| reader.ticket == page.ticket) else { return };
        let reader = &mut readers[n];
        for record in page.records.drain(..) {
            reader.heaviest.add(&record);
        }
        if page.cursor.is_some() {
            self.workers.send(page.worker, Command::ReadMonitor(page));
            return;
        }
        reader.left -= 1;
        if reader.left == 0 {
            let reader = readers.swap_remove(n);
            (reader.done)(reader.heaviest);
        }
    }
}
