// SPDX-License-Identifier: Apache-2.0
//! Changes ports. In: a configuration. Out: ports that are open and not with the workers yet, ports that receive into
//! other memory, and ports that stay closed, each with its reason.
//!
//! What a port needs and this machine lacks (an interface, a namespace, a socket's folder) is a problem of this port
//! alone: it stays closed, and [`Ports::reopen`] opens it later. What only another configuration can mend refuses a
//! change, but not the first configuration, as a network with one wrong port is better than none.

use std::collections::BTreeSet;
use std::sync::Arc;

use netvm_guest_socket::Rights;
use netvm_model::{Host, PortConfig};

use super::open::{Opened, Target, new_shaper};
use super::{Configured, Context, Ports};
use crate::ids::{PortId, WorkerId};
use crate::interface::{OpenError, OpenProblem, Shaper};
use crate::manager::notice::{Notice, Notices};
use crate::manager::placement::Placement;
use crate::manager::workers::Workers;
use crate::memory::Memory;
use crate::worker::Command;

/// Which ports may fail to open without failing the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tolerance {
    /// All: this is the first configuration.
    All,
    /// Those that lack something that may come.
    Absent,
    /// None but those that were closed before.
    None,
}

/// The ports that changed.
#[derive(Default)]
pub(crate) struct Changed {
    opened: Vec<Opened>,
    /// Ports that stay open, and their new memories by worker.
    moved: Vec<(PortId, Vec<Arc<Memory>>)>,
    /// Ports that stay closed, and why.
    closed: Vec<(PortId, OpenProblem)>,
    /// New shapers of ports that stay open.
    shapers: Vec<NewShaper>,
}

/// What a change of the configuration does with an open port.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transition {
    Stays,
    /// Only its packets land elsewhere.
    Moves,
    Closes,
}

/// The shaper that a port is to have, if any.
type NewShaper = (PortId, Option<Box<Shaper>>);

impl Ports {
    /// Closes and opens the ports that differ in another configuration than the one in force. On an error, the ports
    /// are as before.
    pub(crate) fn change(
        &mut self,
        after: Configured<'_>,
        tolerance: Tolerance,
        context: &mut Context<'_>,
    ) -> Result<Changed, OpenError> {
        let shapers = self.changed_shapers(after.host)?;
        let exchanged = self.set_socket_rights(after.host);
        match exchanged.and_then(|()| self.exchange(after, tolerance, context)) {
            Ok(changed) => Ok(Changed { shapers, ..changed }),
            Err(error) => {
                // It was so until now.
                let _ = self.set_socket_rights(context.in_force.host);
                Err(error)
            }
        }
    }

    /// Completes a change. Its configuration is in force, and workers have its snapshots, which decide what happens to
    /// packets.
    pub(crate) fn complete(&mut self, changed: Changed, context: &mut Context<'_>) {
        let host = context.in_force.host;
        self.closed.retain(|port, _| host.port(*port).is_some() && !self.open.contains_key(port));
        self.install(changed.opened, context.workers);
        self.receive_elsewhere(changed.moved, host, context.workers);
        for (port, problem) in changed.closed {
            self.note_closed(port, &problem, context.notices);
        }
        self.set_shapers(changed.shapers, host, context.workers);
        self.move_to_named_workers(context);
    }

    fn exchange(
        &mut self,
        after: Configured<'_>,
        tolerance: Tolerance,
        context: &mut Context<'_>,
    ) -> Result<Changed, OpenError> {
        let host = after.host;
        let (mut stay, mut to_close, mut changed) = (BTreeSet::new(), Vec::new(), Changed::default());
        for port in self.open.values() {
            match (self.transition(&port.config, after, context), host.port(port.id())) {
                (Transition::Closes, _) | (_, None) => to_close.push(port.id()),
                (transition, Some(new)) => {
                    stay.insert(new.id);
                    if transition == Transition::Moves {
                        changed.moved.push((new.id, context.memories_for(new, host)));
                    }
                }
            }
        }
        let placed = self.placement.clone();
        for port in &to_close {
            if let Err(error) = self.close_port(*port, context) {
                self.restore(placed, &to_close, context);
                return Err(error);
            }
        }
        let to_open: Vec<&PortConfig> = host.ports.iter().filter(|port| !stay.contains(&port.id)).collect();
        self.placement.retain(|port| host.port(port).is_some());
        self.place(host, to_open.iter().copied());
        let target = Target::of(host);
        for config in to_open {
            match self.open_port(config, &target, context) {
                Ok(port) => changed.opened.push(port),
                Err(error) if self.tolerates(tolerance, config, &error, context.in_force.host) => {
                    changed.closed.push((config.id, error.problem));
                }
                Err(error) => {
                    drop(changed);
                    self.restore(placed, &to_close, context);
                    return Err(error);
                }
            }
        }
        Ok(changed)
    }

    /// Opens the closed ones of `ports` again, with the workers that they had.
    fn restore(&mut self, placed: Placement, ports: &[PortId], context: &mut Context<'_>) {
        self.placement = placed;
        let is_closed = |port: &PortId| !self.open.contains_key(port);
        let closed: Vec<PortId> = ports.iter().copied().filter(is_closed).collect();
        self.reopen(&closed, context);
    }

    /// What a change does with an open port.
    fn transition(&self, old: &PortConfig, after: Configured<'_>, context: &Context<'_>) -> Transition {
        let Some(new) = after.host.port(old.id) else { return Transition::Closes };
        let lands_elsewhere = new.has_queues() && context.in_force.landing(old) != after.landing(new);
        // A queue moves only between workers that receive into the same memory.
        let region = |worker: WorkerId| context.workers.regions().get(worker.index());
        let is_far = |worker: WorkerId| {
            self.placement.workers_of(old.id).iter().any(|now| region(*now) != region(worker))
        };
        let stays_near = new.worker.is_none_or(|worker| !is_far(WorkerId(worker)));
        match (old.is_same_device(new) && stays_near, lands_elsewhere) {
            (true, false) => Transition::Stays,
            (true, true) if new.kind.info().changes_memory() => Transition::Moves,
            _ => Transition::Closes,
        }
    }

    /// Whether a port that cannot be opened stays closed, instead of failing the change: also one that was closed
    /// `before`, as it must not prevent other changes.
    fn tolerates(&self, tolerance: Tolerance, config: &PortConfig, error: &OpenError, before: &Host) -> bool {
        let was_closed = || {
            self.closed.contains_key(&config.id)
                && before.port(config.id).is_some_and(|old| old.is_same_device(config))
        };
        match tolerance {
            Tolerance::All => true,
            Tolerance::Absent => !error.problem.is_in_configuration() || was_closed(),
            Tolerance::None => was_closed(),
        }
    }

    /// Lets ports whose device stays open receive into other memories, by worker.
    fn receive_elsewhere(
        &mut self,
        moved: Vec<(PortId, Vec<Arc<Memory>>)>,
        host: &Host,
        workers: &mut Workers,
    ) {
        for (id, memories) in moved {
            let (Some(state), Some(config)) = (self.open.get_mut(&id), host.port(id)) else { continue };
            state.follow(config, &memories);
            for worker in &state.workers {
                if let Some(memory) = memories.get(worker.index()) {
                    workers.send(*worker, Command::UseMemory(id, Arc::clone(memory)));
                }
            }
        }
    }

    /// Gives ports the memory of their groups anew. Devices that have it registered are closed and opened again.
    pub(crate) fn renew_memory(&mut self, ports: &[PortId], context: &mut Context<'_>) {
        let host = context.in_force.host;
        let configs = ports.iter().filter_map(|port| host.port(*port));
        let (moved, others): (Vec<_>, Vec<_>) =
            configs.partition(|config| config.kind.info().changes_memory());
        let moved = moved.into_iter().map(|config| (config.id, context.memories_for(config, host))).collect();
        self.receive_elsewhere(moved, host, context.workers);
        let others: Vec<PortId> = others.into_iter().map(|config| config.id).collect();
        self.reopen(&others, context);
    }

    /// Closes ports and opens them again, or opens closed ones. Ports that cannot be opened stay closed.
    pub(crate) fn reopen(&mut self, ports: &[PortId], context: &mut Context<'_>) {
        let host = context.in_force.host;
        let configs = || ports.iter().filter_map(move |port| host.port(*port));
        self.place(host, configs());
        let target = Target::of(host);
        let mut opened = Vec::new();
        for config in configs() {
            // Such as the user's that runs QEMU, to which netvmd has given the socket.
            let rights = config.kind.own_socket().and_then(|path| Some((path, Rights::of(path)?)));
            match self.close_port(config.id, context).and_then(|()| self.open_port(config, &target, context))
            {
                Ok(port) => {
                    opened.push(port);
                    // If this fails, the guest cannot connect, and the port has no link.
                    let _ = rights.map(|(path, rights)| rights.apply(path));
                }
                Err(error) => self.note_closed(config.id, &error.problem, context.notices),
            }
        }
        self.install(opened, context.workers);
    }

    /// Records why a port is closed; reports a new reason.
    fn note_closed(&mut self, port: PortId, problem: &OpenProblem, notices: &mut Notices) {
        let fault = problem.to_string();
        let before = self.closed.insert(port, fault.clone());
        if before.as_ref() != Some(&fault) {
            notices.push(match problem.is_absent() {
                true => Notice::PortWaits { port, fault },
                false => Notice::PortClosed { port, fault },
            });
        }
    }

    /// Gives the sockets of ports that stay open their owners and modes in `host`.
    fn set_socket_rights(&mut self, host: &Host) -> Result<(), OpenError> {
        for state in self.open.values_mut() {
            if let Some(new) = host.port(state.id()).filter(|new| new.is_same_device(&state.config)) {
                state.set_socket_rights(&new.socket)?;
            }
        }
        Ok(())
    }

    /// The shapers of open ports that differ in `host`.
    fn changed_shapers(&self, host: &Host) -> Result<Vec<NewShaper>, OpenError> {
        let mut changed = Vec::new();
        for state in self.open.values() {
            let Some(new) = host.port(state.id()) else { continue };
            if new.is_same_device(&state.config) && new.policy.qos != state.config.policy.qos {
                changed.push((new.id, new_shaper(new)?));
            }
        }
        Ok(changed)
    }

    /// Hands shapers to the workers of ports that are still open.
    fn set_shapers(&mut self, shapers: Vec<NewShaper>, host: &Host, workers: &mut Workers) {
        for (port, shaper) in shapers {
            let (Some(state), Some(new)) = (self.open.get_mut(&port), host.port(port)) else { continue };
            if new.policy.qos == state.config.policy.qos {
                // The port was reopened with its new shaper.
                continue;
            }
            state.config.policy.qos.clone_from(&new.policy.qos);
            state.queues = shaper.as_ref().map(|shaper| shaper.counters()).unwrap_or_default();
            if let Some(worker) = state.workers.first() {
                workers.send(*worker, Command::SetShaper(port, shaper));
            }
            self.set_owners(port, workers);
        }
    }
}
