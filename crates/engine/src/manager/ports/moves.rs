// SPDX-License-Identifier: Apache-2.0
//! Moves a queue of a port from one worker to another while packets pass. None is lost, and each flow keeps its order:
//!
//! ```text
//!  1  the other workers hold their packets for the port; the port's workers send what was handed over before
//!  2  the old worker gives the queue away, and holds its packets, too; those that arrive wait in the device
//!  3  what the old worker has handed to other workers has left, and what it has handed to NFs has come back
//!  4  the new worker has the queue, and starts it
//!  5  all workers send what they held
//! ```
//!
//! If the packets of step 3 do not come back in time, because an NF is slow, the queue returns to the old worker.

use std::ops::ControlFlow;
use std::time::Duration;

use netvm_model::Host;

use super::{Context, Ports};
use crate::ids::{PortId, WorkerId};
use crate::manager::notice::Notice;
use crate::manager::placement::Move;
use crate::manager::placement::request::Request;
use crate::manager::workers::{COMMAND_TIMEOUT, Workers};
use crate::worker::handoff::Held;
use crate::worker::{Command, Event};

/// Time for NFs to return the old worker's packets. A device has room for what arrives meanwhile.
const RETURN_TIMEOUT: Duration = Duration::from_millis(2);
/// The same, if the configuration names the worker: otherwise the port has to be closed and opened again.
const RETURN_TO_NAMED_TIMEOUT: Duration = Duration::from_secs(1);

impl Ports {
    /// Moves a queue, if a worker is overloaded and another one is not.
    pub(super) fn relieve_workers(&mut self, context: &mut Context<'_>) {
        if context.workers.len() < 2 {
            return;
        }
        let movable = self.movable(context.in_force.host);
        if let Some(wanted) = self.balance.next(&self.placement, &self.loads, &movable) {
            self.balance.tried();
            self.move_queue(wanted, RETURN_TIMEOUT, context);
        }
    }

    /// Open ports of which a queue may move to any worker of its node.
    pub(super) fn movable(&self, host: &Host) -> Vec<PortId> {
        let may_move = |port: &PortId| {
            let config = host.port(*port);
            let request = config.and_then(|config| Request::of(host, config));
            request.is_some_and(|request| request.worker.is_none() && request.with.is_none())
        };
        self.open.keys().copied().filter(may_move).collect()
    }

    /// Moves the queues of ports to the workers that the configuration names. Ports of which a queue cannot be moved
    /// now are closed and opened again.
    pub(super) fn move_to_named_workers(&mut self, context: &mut Context<'_>) {
        let host = context.in_force.host;
        let mut stuck = Vec::new();
        for (port, to) in host.ports.iter().filter_map(|port| Some((port.id, WorkerId(port.worker?)))) {
            let placed = self.placement.workers_of(port).to_vec();
            for from in placed.into_iter().filter(|from| *from != to) {
                if self.open.contains_key(&port)
                    && !self.move_queue(Move { port, from, to }, RETURN_TO_NAMED_TIMEOUT, context)
                {
                    stuck.push(port);
                    break;
                }
            }
        }
        if !stuck.is_empty() {
            self.reopen(&stuck, context);
        }
    }

    /// Moves a queue, if NFs return the old worker's packets in this time. Returns whether it could be done.
    pub(crate) fn move_queue(&mut self, wanted: Move, within: Duration, context: &mut Context<'_>) -> bool {
        let Move { port, from, to } = wanted;
        let Some(state) = self.open.get(&port) else { return false };
        let workers = &mut *context.workers;
        let has_queues = |worker: WorkerId| state.workers.contains(&worker);
        if !has_queues(from) || workers.regions()[from.index()] != workers.regions()[to.index()] {
            return false;
        }
        for worker in workers.ids().filter(|worker| !has_queues(*worker)) {
            workers.send(worker, Command::Hold(Held::new(port)));
        }
        workers.wait_for_all();
        // What was handed over before that leaves before what is held.
        workers.finish_handed_over();
        let end = self.give(wanted, within, workers);
        self.set_owners(port, workers);
        workers.send_all(|_| Command::Release);
        workers.wait_for_all();
        if end == to {
            context.notices.push(Notice::QueueMoved { port, from, to });
        }
        end == to
    }

    /// Takes the queue from its worker and gives it to the other, or back. Returns the worker that has it.
    fn give(&mut self, wanted: Move, within: Duration, workers: &mut Workers) -> WorkerId {
        let Move { port, from, to } = wanted;
        workers.send(from, Command::TakeQueue(port, Held::new(port)));
        // A queue that does not come back in time would be lost.
        let taken = workers.wait_for(COMMAND_TIMEOUT, |_, event| match event {
            Event::QueueTaken(queue) => ControlFlow::Break(queue),
            other => ControlFlow::Continue(Some(other)),
        });
        let Some(queue) = taken.flatten() else { return from };
        let is_last = self.placement.queues_of(port, from) < 2;
        let end = if workers.settle(&[from], within) { to } else { from };
        // The last packets of the old worker leave before the first ones of the new one.
        workers.finish_handed_over();
        let has_some = |worker| self.open.get(&port).is_some_and(|state| state.workers.contains(&worker));
        let is_new = if end == from { is_last } else { !has_some(to) };
        workers.send(end, Command::GiveQueue(queue));
        if is_new {
            workers.send(end, Command::StartPort(port));
        }
        if end == to {
            self.placement.moved(wanted);
            if let Some(state) = self.open.get_mut(&port) {
                if is_last {
                    state.workers.retain(|worker| *worker != from);
                }
                if !state.workers.contains(&to) {
                    state.workers.push(to);
                }
            }
        }
        end
    }
}
