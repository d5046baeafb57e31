// SPDX-License-Identifier: Apache-2.0
//! Opens and closes ports: from a configuration to the port's state, and to the queues that workers have.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use netvm_model::{Host, PortConfig, SocketRights};
use netvm_switch::qos::QosError;

use super::{Context, PortState, Ports, give_socket};
use crate::ids::{PortId, WorkerId};
use crate::interface::{
    self, Device, OpenError, OpenProblem, Opening, PortQueue, Shaper, XskMemory, XskQueues,
};
use crate::manager::nfs::group::GroupState;
use crate::manager::notice::Notice;
use crate::manager::placement::request::Request;
use crate::manager::workers::Workers;
use crate::memory::Memory;
use crate::worker::{Command, Event};

/// Time limit for workers to return a port's queues.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// An open port, and its queues, which no worker has yet.
pub(super) type Opened = (PortState, Vec<(WorkerId, PortQueue)>);

/// A configuration whose ports are to be open.
pub(super) struct Target<'a> {
    pub(super) host: &'a Host,
    xsk: XskQueues,
}

impl<'a> Target<'a> {
    pub(super) fn of(host: &'a Host) -> Self {
        Self { host, xsk: XskQueues::of(host) }
    }
}

impl Context<'_> {
    /// For each worker, the memory into which a port of `host` receives: its group's, or the engine's own.
    pub(super) fn memories_for(&self, config: &PortConfig, host: &Host) -> Vec<Arc<Memory>> {
        let group = host.landing_group(config).and_then(|group| self.nfs.group(group));
        self.workers.local(group.map_or(self.memory.own(), GroupState::memories))
    }
}

impl Ports {
    /// Chooses the workers of ports that are about to open.
    pub(super) fn place<'a>(&mut self, host: &Host, ports: impl Iterator<Item = &'a PortConfig>) {
        let requests: Vec<Request> = ports.filter_map(|config| Request::of(host, config)).collect();
        self.placement.place(&requests, &self.loads);
    }

    /// Opens a port, for which workers are chosen.
    pub(super) fn open_port(
        &mut self,
        config: &PortConfig,
        target: &Target<'_>,
        context: &Context<'_>,
    ) -> Result<Opened, OpenError> {
        self.placement.check(config)?;
        let memories = match config.has_queues() {
            true => context.memories_for(config, target.host),
            false => Vec::new(),
        };
        let buffers = memories.first().map_or(0, |memory| memory.region().geometry().buffers);
        let xsk = target.xsk.memory(target.host, config, buffers);
        let workers = self.placement.workers_of(config.id).to_vec();
        let Self { kernel_flows, store, .. } = &*self;
        let opening = Opening { eal: context.memory.eal(), config, memories, workers, kernel_flows, store };
        let (mut state, mut queues) = open(&opening, xsk)?;
        if let (Some(shaper), Some((_, queue))) = (new_shaper(config)?, queues.first_mut()) {
            state.queues = shaper.counters();
            drop(queue.set_shaper(Some(shaper)));
        }
        let groups = context.nfs.groups().flat_map(GroupState::memories);
        for memory in groups.chain(context.memory.own()) {
            memory.forget_stamps(config.id);
            state.register_memory(memory)?;
        }
        Ok((state, queues))
    }

    /// Hands ports to the workers. Every port can send before the first one receives.
    pub(super) fn install(&mut self, opened: Vec<Opened>, workers: &mut Workers) {
        let ids: Vec<PortId> = opened.iter().map(|(state, _)| state.id()).collect();
        for (state, queues) in opened {
            let id = state.id();
            for (worker, queue) in queues {
                workers.send(worker, Command::AddPort(Box::new(queue)));
            }
            self.open.insert(id, state);
            self.closed.remove(&id);
            self.set_owners(id, workers);
        }
        for port in ids.iter().filter_map(|port| self.open.get(port)) {
            for worker in &port.workers {
                workers.send(*worker, Command::StartPort(port.id()));
            }
        }
    }

    /// Takes a port from the workers and waits until it is closed.
    pub(super) fn close_port(&mut self, id: PortId, context: &mut Context<'_>) -> Result<(), OpenError> {
        let Some(state) = self.open.get(&id) else { return Ok(()) };
        context.workers.send_all(|_| Command::SetOwner(id, None));
        for worker in &state.workers {
            context.workers.send(*worker, Command::RemovePort(id));
        }
        let mut left = state.workers.clone();
        let take = |worker: WorkerId, event: Event| match event {
            Event::PortRetired(port, queue) if port == id => {
                drop(queue);
                left.retain(|other| *other != worker);
                if left.is_empty() { ControlFlow::Break(()) } else { ControlFlow::Continue(None) }
            }
            other => ControlFlow::Continue(Some(other)),
        };
        // A port without a device has no queues.
        let has_queues = !state.workers.is_empty();
        if has_queues && context.workers.wait_for(CLOSE_TIMEOUT, take).is_none() {
            return Err(state.error(OpenProblem::NotReturned { within: CLOSE_TIMEOUT }));
        }
        let fault = self.open.remove(&id).and_then(|state| state.control.close());
        if let Some(fault) = fault {
            context.notices.push(Notice::PortFault { port: id, fault });
        }
        Ok(())
    }
}

/// Opens a port. `xsk` applies to AF_XDP.
fn open(opening: &Opening<'_>, xsk: XskMemory) -> Result<Opened, OpenError> {
    let config = opening.config;
    let fail = |problem| OpenError { name: config.name.clone(), problem };
    let opened = interface::open(opening, xsk).map_err(fail)?;
    if config.socket != SocketRights::default() {
        give_socket(&config.kind, &config.socket).map_err(fail)?;
    }
    let mut by_worker: Vec<(WorkerId, Vec<Box<dyn Device>>)> = Vec::new();
    for (worker, device) in opened.queues {
        match by_worker.iter_mut().find(|(other, _)| *other == worker) {
            Some((_, devices)) => devices.push(device),
            None => by_worker.push((worker, vec![device])),
        }
    }
    if by_worker.is_empty() && config.has_queues() {
        // Only for the shaper.
        by_worker.push((opening.queue(0).0, Vec::new()));
    }
    let state = PortState {
        config: config.clone(),
        mode: opened.mode,
        memories: opening.memories.iter().map(|memory| memory.id).collect(),
        workers: by_worker.iter().map(|(worker, _)| *worker).collect(),
        queues: Arc::default(),
        control: opened.control,
    };
    let waits_for_room = config.kind.info().waits_for_room;
    let queue = |(worker, devices): (WorkerId, _)| {
        let memory = opening.memories[worker.index()].id;
        (worker, PortQueue::new(config.id, memory, waits_for_room, devices).with_gro(config.gro))
    };
    Ok((state, by_worker.into_iter().map(queue).collect()))
}

/// Creates the shaper of a port.
pub(super) fn new_shaper(config: &PortConfig) -> Result<Option<Box<Shaper>>, OpenError> {
    let fail = |problem: QosError| OpenError { name: config.name.clone(), problem: problem.into() };
    let shaper = config.policy.qos.as_ref().map(|qos| Shaper::new(qos).map(Box::new));
    shaper.transpose().map_err(fail)
}
