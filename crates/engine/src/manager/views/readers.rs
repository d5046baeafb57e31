// SPDX-License-Identifier: Apache-2.0
//! Requests to read what workers report in pages, one page for each command, so that reading stalls no worker.

use crate::manager::workers::Workers;

/// A request, and what has arrived so far.
struct Reader<T> {
    ticket: u64,
    /// Workers that have more pages.
    left: usize,
    found: T,
    done: Box<dyn FnOnce(T) + Send>,
}

/// The requests of one kind.
pub(crate) struct Readers<T>(Vec<Reader<T>>);

impl<T> Default for Readers<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Readers<T> {
    /// Begins a request to all workers. Returns its ticket, which its pages carry.
    pub(super) fn begin(
        &mut self,
        workers: &mut Workers,
        found: T,
        done: impl FnOnce(T) + Send + 'static,
    ) -> u64 {
        let ticket = workers.new_ticket();
        self.0.push(Reader { ticket, left: workers.len(), found, done: Box::new(done) });
        ticket
    }

    /// Handles a page of this ticket. `take` gets what has arrived, adds the page, and returns whether the worker has
    /// to send more; this returns the same. Completes the request with the last page of all workers.
    pub(super) fn handle(&mut self, ticket: u64, take: impl FnOnce(&mut T) -> bool) -> bool {
        let Some(n) = self.0.iter().position(|reader| reader.ticket == ticket) else { return false };
        let reader = &mut self.0[n];
        if take(&mut reader.found) {
            return true;
        }
        reader.left -= 1;
        if reader.left == 0 {
            let reader = self.0.swap_remove(n);
            (reader.done)(reader.found);
        }
        false
    }
}
