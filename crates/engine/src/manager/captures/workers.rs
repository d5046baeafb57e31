//! Workers come and go while captures run.

use netvm_tap::RingError;

use super::{Captures, Session};
use crate::ids::WorkerId;
use crate::manager::reaper::Reaper;
use crate::manager::workers::Workers;
use crate::tap::{EndedTap, Tap};
use crate::worker::Command;

impl Session {
    /// Allocates the ring of a worker that is about to get its tap.
    pub(super) fn allocate(&self, worker: WorkerId) -> Result<(), RingError> {
        self.spares.get(&worker).map_or(Ok(()), |tap| tap.allocate())
    }
}

impl Captures {
    /// Allocates the rings of a worker that is about to be added.
    pub(crate) fn allocate(&self, worker: WorkerId) -> Result<(), RingError> {
        self.sessions.values().try_for_each(|session| session.allocate(worker))
    }

    /// Gives a worker its taps of all captures that run. The numbers of their places have to follow
    /// ([`Captures::renumber`]) before the worker has packets.
    pub(crate) fn add_taps(&mut self, worker: WorkerId, workers: &mut Workers) {
        for session in self.sessions.values_mut() {
            if let Some(tap) = session.spares.remove(&worker) {
                workers.send(worker, Command::AddTap(tap));
            }
        }
    }

    /// Takes its taps from a worker that is about to end.
    pub(crate) fn remove_taps(&self, worker: WorkerId, workers: &mut Workers) {
        for id in self.sessions.keys() {
            workers.send(worker, Command::RemoveTap(*id));
        }
    }

    /// Keeps a tap that a worker has returned for the next worker of its number, or frees the memory of its ring if the
    /// capture has ended.
    pub(crate) fn tap_returned(&mut self, worker: WorkerId, tap: Box<Tap>, reaper: &Reaper) {
        match self.sessions.get_mut(&tap.id) {
            Some(session) => drop(session.spares.insert(worker, tap)),
            None => reaper.free(EndedTap(tap)),
        }
    }
}
