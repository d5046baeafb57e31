// SPDX-License-Identifier: Apache-2.0
//! The heaviest addresses and names among the flows that run: what workers' flow monitors have counted since their last
//! records.

use netvm_flowmon::export::Heaviest;

use super::readers::Readers;
use crate::manager::workers::Workers;
use crate::worker::{Command, MonitorPage};

impl Readers<Heaviest> {
    pub(crate) fn read(&mut self, workers: &mut Workers, done: impl FnOnce(Heaviest) + Send + 'static) {
        let ticket = self.begin(workers, Heaviest::new(), done);
        workers.send_all(|worker| Command::ReadMonitor(Box::new(MonitorPage::new(worker, ticket))));
    }

    /// Handles a page, and requests the worker's next one.
    pub(crate) fn page(&mut self, mut page: Box<MonitorPage>, workers: &mut Workers) {
        let has_more = self.handle(page.ticket, |heaviest| {
            page.records.drain(..).for_each(|record| heaviest.add(&record));
            page.cursor.is_some() && workers.has(page.worker)
        });
        if has_more {
            workers.send(page.worker, Command::ReadMonitor(page));
        }
    }
}
