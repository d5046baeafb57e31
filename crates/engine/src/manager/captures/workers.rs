// SPDX-License-Identifier: Apache-2.0
//! Workers come and go while captures run.

use netvm_capture_ring::RingError;

use super::{Captures, Session};
use crate::capture::{EndedCapture, WorkerCapture};
use crate::ids::WorkerId;
use crate::manager::reaper::Reaper;
use crate::manager::workers::Workers;
use crate::worker::Command;

impl Session {
    /// Allocates the ring of a worker that is about to get its part of the capture.
    pub(super) fn allocate(&self, worker: WorkerId) -> Result<(), RingError> {
        self.spares.get(&worker).map_or(Ok(()), |capture| capture.allocate())
    }
}

impl Captures {
    /// Allocates the rings of a worker that is about to be added.
    pub(crate) fn allocate(&self, worker: WorkerId) -> Result<(), RingError> {
        self.sessions.values().try_for_each(|session| session.allocate(worker))
    }

    /// Gives a worker its part of all captures that run. The numbers of their points have to follow
    /// ([`Captures::renumber`]) before the worker has packets.
    pub(crate) fn add_captures(&mut self, worker: WorkerId, workers: &mut Workers) {
        for session in self.sessions.values_mut() {
            if let Some(capture) = session.spares.remove(&worker) {
                workers.send(worker, Command::AddCapture(capture));
            }
        }
    }

    /// Takes the captures from a worker that is about to end.
    pub(crate) fn remove_captures(&self, worker: WorkerId, workers: &mut Workers) {
        for id in self.sessions.keys() {
            workers.send(worker, Command::RemoveCapture(*id));
        }
    }

    /// Keeps a worker's part of a capture for the next worker of its number, or frees the memory of its ring if the
    /// capture has ended.
    pub(crate) fn capture_returned(
        &mut self,
        worker: WorkerId,
        capture: Box<WorkerCapture>,
        reaper: &Reaper,
    ) {
        match self.sessions.get_mut(&capture.id) {
            Some(session) => drop(session.spares.insert(worker, capture)),
            None => reaper.free(EndedCapture(capture)),
        }
    }
}
