// SPDX-License-Identifier: Apache-2.0
//! Workers come and go while ports are open. In: workers that were added or are to end. Out: moves of queues between
//! them, and queues of ports that have one on each worker.

use std::ops::Range;
use std::time::Duration;

use netvm_model::Host;

use super::{Context, PortState, Ports};
use crate::ids::{PortId, WorkerId};
use crate::interface::PortQueue;
use crate::manager::placement::Move;
use crate::manager::placement::request::Request;
use crate::manager::workers::Workers;
use crate::port_bits::PortBits;
use crate::worker::Command;

impl Ports {
    /// Takes a new worker on a NUMA node into account. Ports that have a queue on each worker get one on it.
    pub(crate) fn add_worker(&mut self, worker: WorkerId, node: u32, context: &mut Context<'_>) {
        self.placement.add(node);
        for state in self.open.values_mut() {
            // Only sinks that name no worker have no request, but a queue.
            if Request::of(context.in_force.host, &state.config).is_some() {
                continue;
            }
            let Some(device) = state.control.further_queue() else { continue };
            let memories = context.memories_for(&state.config, context.in_force.host);
            let Some(memory) = memories.get(worker.index()) else { continue };
            let queue = PortQueue::new(state.id(), memory.id, false, vec![device]);
            context.workers.send(worker, Command::AddPort(Box::new(queue)));
            context.workers.send(worker, Command::StartPort(state.id()));
            state.workers.push(worker);
        }
        self.open.keys().for_each(|port| self.set_owners(*port, context.workers));
    }

    /// Closes the queues that a worker that is to end has of ports with a queue on each worker.
    pub(crate) fn remove_worker(&mut self, worker: WorkerId, workers: &mut Workers) {
        let with = self.open.values().filter(|state| state.workers.contains(&worker));
        for port in with.map(PortState::id).collect::<Vec<_>>() {
            if let Some(state) = self.open.get_mut(&port) {
                state.workers.retain(|other| *other != worker);
            }
            self.set_owners(port, workers);
            workers.send(worker, Command::RemovePort(port));
        }
    }

    /// Gives no more queues to workers from this number on.
    pub(crate) fn keep_workers(&mut self, count: usize) {
        self.placement.truncate(count);
    }

    /// The moves after which new workers have about as many queues as others.
    pub(crate) fn spread(&self, new: Range<usize>, host: &Host) -> Vec<Move> {
        self.placement.spread(new, &self.loads, &self.movable(host))
    }

    /// The next move of a queue from a worker that is to end; `None` if no such worker has one.
    pub(crate) fn next_off(&self, host: &Host, workers: &Workers) -> Option<Move> {
        let open = self.open.values();
        let requests: Vec<Request> =
            open.filter_map(|state| Request::of(host, host.port(state.id())?)).collect();
        self.placement.next_off(&requests, &self.loads, workers.regions())
    }

    /// Closes ports with queues on workers from this number on, which are to end, and opens them again on others.
    pub(crate) fn reopen_on_others(&mut self, count: usize, context: &mut Context<'_>) {
        let is_leaving =
            |port: &PortId| self.placement.workers_of(*port).iter().any(|worker| worker.index() >= count);
        let ports: Vec<PortId> = self.open.keys().copied().filter(is_leaving).collect();
        self.reopen(&ports, context);
    }

    /// Stops receiving by these ports, and by those that may send to them: any port, if one of them has no device.
    pub(crate) fn stop(&self, ports: &PortBits, workers: &mut Workers) -> Stopped {
        let is_one = |state: &PortState| ports.has(state.id());
        let has_device = |state: &PortState| state.config.kind.info().sends_to.is_none();
        let is_all = self.open.values().any(|state| is_one(state) && !has_device(state));
        let mut queues = Vec::new();
        for state in self.open.values().filter(|state| is_all || is_one(state)) {
            queues.extend(state.workers.iter().map(|worker| (state.id(), *worker)));
        }
        for (port, worker) in &queues {
            workers.send(*worker, Command::StopPort(*port));
        }
        workers.wait_for_all();
        Stopped { queues, is_all }
    }
}

/// Ports that receive nothing for a moment.
pub(crate) struct Stopped {
    /// With each worker that receives by them.
    queues: Vec<(PortId, WorkerId)>,
    /// Whether they are all ports.
    is_all: bool,
}

impl Stopped {
    /// Waits until workers and NFs have nothing under way of what was received by these ports. Returns whether that
    /// took no longer than `within`.
    pub(crate) fn settle(&self, within: Duration, workers: &mut Workers) -> bool {
        if self.is_all {
            return workers.settle_all(within);
        }
        let all: Vec<WorkerId> = workers.ids().collect();
        self.queues.is_empty() || workers.settle(&all, within)
    }

    /// Receives by them again.
    pub(crate) fn start(self, workers: &mut Workers) {
        for (port, worker) in self.queues {
            workers.send(worker, Command::StartPort(port));
        }
    }
}
