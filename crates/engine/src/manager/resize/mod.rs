// SPDX-License-Identifier: Apache-2.0
//! The work of workers that were added, and of those that are to end, changes its worker while packets pass. None is
//! lost, and each flow keeps its order. In: the number of workers that are to stay. Out: the same number of workers, in
//! steps:
//!
//! ```text
//!  queues    one after the other moves (`ports/moves`): to workers that were added, from workers that are to end
//!  flows     the flows are divided among the workers that stay (`flows`)
//!  draining  NFs return what they have of workers that are to end; those still send it
//!  ending    what they handed over has left; NFs forget them, links, captures and rings come back, threads end
//! ```
//!
//! Each call of [`Engine::service`](super::Engine::service) does a step, so the watchdog and the teardown of NFs go on:
//! an NF that returns nothing is found, and its packets are taken back. The first two steps stop a port for a moment.
//! If NFs do not return packets in this time, the step is tried again with more time, and at last done without them:
//! the ports are closed and opened again.

pub(super) mod connections;
pub(super) mod flows;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_conntrack::FlowOwners;

use super::cores::{Cores, CoresError};
use super::memory::Memories;
use super::nfs::Nfs;
use super::placement::Move;
use super::ports::{Context, Ports};
use super::workers::Workers;
use crate::ids::WorkerId;

/// Time that NFs have to return packets at the first attempt; twice as long at each further one.
const FIRST_ATTEMPT: Duration = Duration::from_millis(2);
/// Attempts of a step: the last one waits for a second.
const ATTEMPTS: u32 = 10;
/// Attempts to give a new worker its queues, which is not urgent.
const ATTEMPTS_TO_SPREAD: u32 = 6;
/// Interval at which the packets that are out are counted.
const COUNT_INTERVAL: Duration = Duration::from_millis(5);
/// Time that a change of the configuration waits for the workers to follow it. Then they go on by themselves.
pub(super) const FOLLOW_TIMEOUT: Duration = Duration::from_secs(1);
/// Time that the next change waits for them.
pub(super) const END_TIMEOUT: Duration = Duration::from_secs(2);

/// The cores of the workers, the owners of flows, and the resize that is not done yet.
pub(super) struct Resizes {
    /// The cores that the workers have, or get when those that are to end have ended.
    cores: Cores,
    owners: Arc<FlowOwners>,
    running: Option<Resize>,
}

/// What a resize does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Queues,
    Flows,
    Draining,
    Ending,
    Done,
}

/// A change of the number of workers that is not done yet.
pub(super) struct Resize {
    /// So many workers are to stay.
    target: usize,
    /// The cores of those that are to end.
    leaving: Vec<(WorkerId, u32)>,
    phase: Phase,
    /// Moves of queues to workers that were added.
    moves: VecDeque<Move>,
    /// Attempts of this step that failed.
    failed: u32,
    counted: Instant,
}

impl Resizes {
    /// The workers have these cores.
    pub(super) fn new(cores: Cores) -> Self {
        let owners = Arc::new(FlowOwners::new(cores.cores.len()));
        Self { cores, owners, running: None }
    }

    pub(super) const fn cores(&self) -> &Cores {
        &self.cores
    }

    /// Which worker owns which flows.
    pub(super) const fn owners(&self) -> &Arc<FlowOwners> {
        &self.owners
    }

    /// Whether a resize is not done yet.
    pub(super) const fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Whether a worker is about to end.
    pub(super) fn is_leaving(&self, worker: WorkerId) -> bool {
        self.running.as_ref().is_some_and(|resize| worker.index() >= resize.target)
    }

    /// The workers have these cores, or get them.
    pub(super) fn set_cores(&mut self, cores: Cores) {
        self.cores = cores;
    }

    pub(super) fn set_owners(&mut self, owners: Arc<FlowOwners>) {
        self.owners = owners;
    }

    /// Begins a resize, or goes on with one.
    pub(super) fn run(&mut self, resize: Resize) {
        self.running = Some(resize);
    }

    /// The resize that is not done yet, for its next step.
    pub(super) const fn take(&mut self) -> Option<Resize> {
        self.running.take()
    }

    /// Why the workers cannot change again yet.
    pub(super) fn busy(&self, nfs: &Nfs, memory: &Memories) -> CoresError {
        let leaving = self.running.iter().flat_map(|resize| &resize.leaving);
        let (worker, core) = leaving.copied().next().unwrap_or_default();
        CoresError::Busy { worker: worker.index(), core, buffers: buffers_out_of(worker, nfs, memory) }
    }
}

impl Resize {
    /// Workers were added. `moves`: of queues to them.
    pub(super) fn of_added(workers: &Workers, moves: Vec<Move>) -> Self {
        Self::new(workers.len(), Vec::new(), moves.into())
    }

    /// Workers from number `target` on are to end.
    pub(super) fn of_leaving(workers: &Workers, target: usize) -> Self {
        let leaving = workers.iter().skip(target).map(|worker| (worker.id, worker.core)).collect();
        Self::new(target, leaving, VecDeque::new())
    }

    fn new(target: usize, leaving: Vec<(WorkerId, u32)>, moves: VecDeque<Move>) -> Self {
        Self { target, leaving, phase: Phase::Queues, moves, failed: 0, counted: Instant::now() }
    }

    pub(super) const fn phase(&self) -> Phase {
        self.phase
    }

    /// Number of workers that are to stay.
    pub(super) const fn target(&self) -> usize {
        self.target
    }

    /// The workers that are to end, each with its core.
    pub(super) fn leaving(&self) -> &[(WorkerId, u32)] {
        &self.leaving
    }

    /// The owners of flows from now on, if they change.
    pub(super) fn new_owners(&self, before: &FlowOwners) -> Option<Arc<FlowOwners>> {
        let owners = before.among(self.target);
        (owners != *before).then(|| Arc::new(owners))
    }

    /// Time that NFs have to return packets at this attempt.
    pub(super) fn attempt(&self) -> Duration {
        FIRST_ATTEMPT * 2_u32.pow(self.failed.min(ATTEMPTS - 1))
    }

    /// Whether the step has to be done at this attempt.
    pub(super) const fn is_last_attempt(&self) -> bool {
        self.failed + 1 >= ATTEMPTS
    }

    /// The attempt has failed.
    pub(super) const fn try_again(&mut self) {
        self.failed += 1;
    }

    /// Goes on with another step.
    pub(super) const fn go_on(&mut self, phase: Phase) {
        (self.phase, self.failed) = (phase, 0);
    }

    /// The flows have their new owners.
    pub(super) fn flows_divided(&mut self) {
        self.go_on(if self.leaving.is_empty() { Phase::Done } else { Phase::Draining });
    }

    /// Moves the next queue; goes on if there is none.
    pub(super) fn move_next_queue(&mut self, ports: &mut Ports, context: &mut Context<'_>) {
        let next = match self.leaving.is_empty() {
            true => self.moves.front().copied(),
            false => ports.next_off(context.in_force.host, context.workers),
        };
        let Some(next) = next else { return self.go_on(Phase::Flows) };
        if ports.move_queue(next, self.attempt(), context) {
            self.failed = 0;
            self.moves.pop_front();
            return;
        }
        self.try_again();
        if self.leaving.is_empty() {
            if self.failed >= ATTEMPTS_TO_SPREAD {
                self.moves.clear();
            }
        } else if self.failed >= ATTEMPTS {
            ports.reopen_on_others(self.target, context);
        }
    }

    /// Whether NFs have returned the packets of workers that are to end, and these have passed them on; looks for them
    /// at intervals.
    pub(super) fn is_drained(&mut self, nfs: &Nfs, memory: &Memories, workers: &mut Workers) -> bool {
        if self.counted.elapsed() < COUNT_INTERVAL {
            return false;
        }
        self.counted = Instant::now();
        // A packet that a worker has while they are counted, on its way from one NF to the next, is not among them, but
        // is handed out afterwards.
        let before = self.handed_out(workers);
        if self.leaving.iter().any(|(worker, _)| buffers_out_of(*worker, nfs, memory) > 0) {
            return false;
        }
        workers.finish_handed_over();
        let has_arrivals = self.leaving.iter().any(|(worker, _)| workers.has_arrivals(*worker));
        !has_arrivals && self.handed_out(workers) == before
    }

    /// Packets that workers that are to end have handed to NFs since the start.
    fn handed_out(&self, workers: &Workers) -> u64 {
        self.leaving.iter().map(|(worker, _)| workers.delivered(*worker)).sum()
    }
}

/// Number of buffers that NFs have from a worker.
fn buffers_out_of(worker: WorkerId, nfs: &Nfs, memory: &Memories) -> u32 {
    let of_groups = nfs.memories().flat_map(|(memories, _)| memories);
    of_groups.chain(memory.own()).map(|memory| memory.in_flight.buffers_out_of(worker)).sum()
}
