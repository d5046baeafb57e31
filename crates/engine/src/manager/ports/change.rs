//! Changes ports. In: a configuration. Out: ports that are open and not with the workers yet, ports that receive into
//! other memory, and ports that stay closed, each with its reason.
//!
//! What a port needs and this machine lacks (an interface, a namespace, a socket's folder) is a problem of this port
//! alone: it stays closed, and [`Engine::reopen`] opens it later. What only another configuration can mend refuses a
//! change, but not the first configuration, as a network with one wrong port is better than none.

use std::collections::BTreeSet;
use std::sync::Arc;

use netvm_guest_socket::Rights;
use netvm_model::{Host, PortConfig};
use netvm_vnet::LinkEvent;

use super::PortState;
use crate::ids::{PortId, WorkerId};
use crate::interface::{OpenError, PortQueue, XskQueues};
use crate::manager::{ApplyError, Engine, Notice};
use crate::memory::Memory;
use crate::policy::Policy;
use crate::worker::Command;

/// An open port, and its queues, which no worker has yet.
pub(crate) type Opened = (PortState, Vec<(WorkerId, PortQueue)>);

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
    pub(crate) opened: Vec<Opened>,
    /// Ports that stay open, and their new memories by worker.
    pub(crate) moved: Vec<(PortId, Vec<Arc<Memory>>)>,
    /// Ports that stay closed, and why.
    pub(crate) closed: Vec<(PortId, String)>,
}

/// What a change of the configuration does with an open port.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transition {
    Stays,
    /// Only its packets land elsewhere.
    Moves,
    Closes,
}

impl Engine {
    /// Closes and opens the ports that differ in `host`. On an error, the ports are as before.
    pub(crate) fn change_ports(
        &mut self,
        (host, policy): (&Host, &Policy),
        tolerance: Tolerance,
    ) -> Result<Changed, ApplyError> {
        let transition = |old: &PortConfig| {
            host.port(old.id).map_or(Transition::Closes, |new| self.transition((old, new), (host, policy)))
        };
        let transitions: Vec<(PortConfig, Transition)> =
            self.ports.values().map(|port| (port.config.clone(), transition(&port.config))).collect();
        let stay = transitions.iter().filter(|(_, transition)| *transition != Transition::Closes);
        let stay: BTreeSet<PortId> = stay.map(|(old, _)| old.id).collect();
        let xsk = XskQueues::of(host);
        let mut changed = Changed::default();
        for (old, _) in transitions.iter().filter(|(_, transition)| *transition == Transition::Moves) {
            if let Some(new) = host.port(old.id) {
                changed.moved.push((new.id, self.memories_for((host, &xsk), new)?));
            }
        }
        let to_close: Vec<&PortConfig> = transitions
            .iter()
            .filter(|(_, transition)| *transition == Transition::Closes)
            .map(|(old, _)| old)
            .collect();
        for config in &to_close {
            self.close_port(config.id)?;
        }
        let to_open: Vec<&PortConfig> = host.ports.iter().filter(|port| !stay.contains(&port.id)).collect();
        let placed = self.placement.clone();
        self.placement.retain(|port| host.port(port).is_some());
        self.place_ports(host, to_open.iter().copied());
        for config in to_open {
            match self.open_port((host, &xsk), config) {
                Ok(port) => changed.opened.push(port),
                Err(ApplyError::Port(error)) if self.tolerates(tolerance, config, &error) => {
                    changed.closed.push((config.id, error.problem.to_string()));
                }
                Err(error) => {
                    drop(changed);
                    self.placement = placed;
                    let before: Vec<PortId> = to_close.iter().map(|config| config.id).collect();
                    self.reopen(&before);
                    return Err(error);
                }
            }
        }
        Ok(changed)
    }

    /// What a change does with an open port.
    fn transition(
        &self,
        (old, new): (&PortConfig, &PortConfig),
        (host, policy): (&Host, &Policy),
    ) -> Transition {
        let before = self.host.landing_by(&self.rules.policy().leading, old);
        let lands_elsewhere = new.has_queues() && before != host.landing_by(&policy.leading, new);
        // A queue moves only between workers that receive into the same memory.
        let region = |worker: WorkerId| self.workers.regions().get(worker.index());
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
    /// before, as it must not prevent other changes.
    fn tolerates(&self, tolerance: Tolerance, config: &PortConfig, error: &OpenError) -> bool {
        let was_closed = || {
            self.closed_ports.contains_key(&config.id)
                && self.host.port(config.id).is_some_and(|old| old.is_same_device(config))
        };
        match tolerance {
            Tolerance::All => true,
            Tolerance::Absent => !error.problem.is_in_configuration() || was_closed(),
            Tolerance::None => was_closed(),
        }
    }

    /// Lets ports whose device stays open receive into other memories, by worker.
    pub(crate) fn move_ports(&mut self, host: &Host, moved: Vec<(PortId, Vec<Arc<Memory>>)>) {
        for (id, memories) in moved {
            let (Some(state), Some(config)) = (self.ports.get_mut(&id), host.port(id)) else { continue };
            state.follow(config, &memories);
            for worker in &state.workers {
                if let Some(memory) = memories.get(worker.index()) {
                    self.workers.send(*worker, Command::UseMemory(id, Arc::clone(memory)));
                }
            }
        }
    }

    /// Gives ports the memory of their groups anew. Devices that have it registered are closed and opened again.
    pub(crate) fn renew_memory(&mut self, ports: &[PortId]) {
        let host = Arc::clone(&self.host);
        let xsk = XskQueues::of(&host);
        let (mut moved, mut others) = (Vec::new(), Vec::new());
        for config in ports.iter().filter_map(|port| host.port(*port)) {
            match self.memories_for((&host, &xsk), config) {
                Ok(memories) if config.kind.info().changes_memory() => moved.push((config.id, memories)),
                _ => others.push(config.id),
            }
        }
        self.move_ports(&host, moved);
        self.reopen(&others);
    }

    /// Closes ports and opens them again, because their interface was created again or is gone, or opens closed ones.
    /// Ports that cannot be opened stay closed: try again later.
    pub fn reopen(&mut self, ports: &[PortId]) {
        let host = Arc::clone(&self.host);
        let mut opened = Vec::new();
        let xsk = XskQueues::of(&host);
        self.place_ports(&host, ports.iter().filter_map(|port| host.port(*port)));
        for config in ports.iter().filter_map(|port| host.port(*port)) {
            // Such as the user's that runs QEMU, to which netvmd has given the socket.
            let rights = config.kind.own_socket().and_then(|path| Some((path, Rights::of(path)?)));
            match self.close_port(config.id).and_then(|()| self.open_port((&host, &xsk), config)) {
                Ok(port) => {
                    opened.push(port);
                    // If this fails, the guest cannot connect, and the port has no link.
                    let _ = rights.map(|(path, rights)| rights.apply(path));
                }
                Err(ApplyError::Port(error)) => self.note_closed(config.id, error.problem.to_string()),
                Err(error) => self.note_closed(config.id, error.to_string()),
            }
        }
        self.install_all(opened);
    }

    /// Records why a port is closed; reports a new reason.
    pub(crate) fn note_closed(&mut self, port: PortId, fault: String) {
        let before = self.closed_ports.insert(port, fault.clone());
        if before.as_ref() != Some(&fault) {
            self.notices.push(Notice::PortClosed { port, fault });
        }
    }

    /// Gives interfaces that came up their addresses and routes again: the kernel has forgotten some while they were
    /// down.
    pub fn restore_addresses(&mut self, links: &[LinkEvent]) {
        self.ports.values_mut().for_each(|port| port.control.restore_addresses(links));
    }
}
