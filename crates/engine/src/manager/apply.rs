//! Applying a configuration to the running engine, as a whole or not at all.
//!
//! The manager first creates everything that can fail (memory, ports), beside the running objects. Then the workers get
//! the new objects and a new snapshot, and the manager removes what is no longer configured. A port that changes must
//! be closed before it can be opened again ([`Engine::change_ports`]).

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use netvm_model::{Host, PortConfig};

use super::nfs::group::GroupState;
use super::placement::request::Request;
use super::ports::{self, Opened, PortState, Tolerance};
use super::{Engine, GroupError, Notice};
use crate::ids::{GroupId, PortId, WorkerId};
use crate::interface::{OpenError, Opening, PortQueue, Shaper, XskQueues};
use crate::memory::Memory;
use crate::policy::{Policy, PolicyError};
use crate::worker::{Command, Event};

/// Time limit for workers to return a port's queues.
const CLOSING: Duration = Duration::from_secs(10);

/// Why a host was not applied. The engine is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// A change that needs a restart.
    #[error("{what} cannot be changed while netvm runs: restart netvmd, or leave it as it is")]
    NeedsRestart {
        /// The changed part.
        what: String,
    },
    /// A group's memory.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// A port.
    #[error(transparent)]
    Port(#[from] OpenError),
    /// The rules.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A worker does not return a queue.
    #[error("port {port}: a worker has not returned its queue within {} s", CLOSING.as_secs())]
    Stuck {
        /// The port.
        port: String,
    },
}

/// A port and its new shaper.
type NewShaper = (PortId, Option<Box<Shaper>>);

impl Engine {
    /// Applies a host. NFs whose role is removed or changes its group are dismissed.
    ///
    /// # Errors
    /// [`ApplyError`]; the engine is then unchanged.
    pub fn apply(&mut self, host: &Host) -> Result<(), ApplyError> {
        let policy = self.rules.compiler().policy_for(host, &self.host, self.rules.policy())?;
        self.apply_with(host.clone(), policy)
    }

    /// As [`Engine::apply`], with a policy that another thread has compiled for `host`.
    ///
    /// # Errors
    /// [`ApplyError`]; the engine is then unchanged.
    pub fn apply_with(&mut self, host: impl Into<Arc<Host>>, policy: Arc<Policy>) -> Result<(), ApplyError> {
        self.change(&host.into(), policy, Tolerance::None)
    }

    /// As [`Engine::apply_with`], but ports that lack something that may come stay closed, and do not make it fail.
    ///
    /// # Errors
    /// [`ApplyError`]; the engine is then unchanged.
    pub fn apply_tolerant(
        &mut self,
        host: impl Into<Arc<Host>>,
        policy: Arc<Policy>,
    ) -> Result<(), ApplyError> {
        self.change(&host.into(), policy, Tolerance::Absent)
    }

    /// As [`Engine::apply_with`], for the first configuration: no port that cannot be opened makes it fail.
    ///
    /// # Errors
    /// [`ApplyError`]; the engine is then unchanged.
    pub fn apply_first(&mut self, host: impl Into<Arc<Host>>, policy: Arc<Policy>) -> Result<(), ApplyError> {
        self.change(&host.into(), policy, Tolerance::All)
    }

    fn change(
        &mut self,
        shared: &Arc<Host>,
        policy: Arc<Policy>,
        tolerance: Tolerance,
    ) -> Result<(), ApplyError> {
        let host: &Host = shared;
        self.check_live(host)?;
        let quotas = self.routers.quotas(host).map_err(PolicyError::from)?;
        let shapers = self.changed_shapers(host)?;
        self.create_groups(host)?;
        let changed = self.change_sockets(host);
        let changed = changed.and_then(|()| self.change_ports((host, &policy), tolerance));
        let changed = match changed {
            Ok(changed) => changed,
            Err(error) => {
                let before = Arc::clone(&self.host);
                // It was so until now.
                let _ = self.change_sockets(&before);
                self.nfs.retire_removed(&before);
                return Err(error);
            }
        };
        let before = std::mem::replace(&mut self.host, Arc::clone(shared));
        self.closed_ports.retain(|port, _| host.port(*port).is_some() && !self.ports.contains_key(port));
        self.chains.follow(host);
        self.since.follow(&before, host, self.chains.shortened(), &self.workers);
        self.nfs.forget_removed_roles(host);
        self.reaper.free(before);
        self.routers.follow(host, quotas);
        self.nfs.dismiss_unconfigured(host, &mut self.notices);
        self.rules.adopt(policy, self.workers.len(), &self.reaper);
        self.publisher().publish_in_order();
        // After the snapshot, which decides what happens to their packets.
        self.install_all(changed.opened);
        self.move_ports(host, changed.moved);
        changed.closed.into_iter().for_each(|(port, fault)| self.note_closed(port, fault));
        self.set_shapers(host, shapers);
        self.move_to_named_workers();
        self.nfs.retire_removed(host);
        Ok(())
    }

    fn check_live(&self, host: &Host) -> Result<(), ApplyError> {
        let section = (host.engine != self.host.engine).then(|| "the [engine] section".to_owned());
        match section.or_else(|| self.nfs.needs_restart(host)) {
            Some(what) => Err(ApplyError::NeedsRestart { what }),
            None => Ok(()),
        }
    }

    /// Creates the groups that are new in `host`, and announces their memories to ports and workers.
    fn create_groups(&mut self, host: &Host) -> Result<(), ApplyError> {
        let created = self.nfs.make_new(host, &mut self.memory, &self.workers)?;
        for memory in created.iter().flat_map(GroupState::memories) {
            for port in self.ports.values() {
                port.register_memory(memory)?;
            }
        }
        for group in created {
            self.workers.announce_memories(group.memories(), Some(group.id()));
            self.nfs.add_group(group);
        }
        Ok(())
    }

    /// Gives groups whose memory an NF has damaged new memory.
    pub(super) fn reset_damaged(&mut self) {
        for group in self.nfs.damaged() {
            if let Err(error) = self.reset(group) {
                self.notices.push(Notice::GroupNotReset { group, error: error.to_string() });
                self.nfs.pause_resets();
            }
        }
    }

    /// Gives a group new memory and evicts its NFs.
    fn reset(&mut self, id: GroupId) -> Result<(), GroupError> {
        let Some(new) = self.nfs.remake(id, &mut self.memory, &self.workers)? else { return Ok(()) };
        let memories = new.memories().to_vec();
        let ports = self.ports_over(id);
        for memory in &memories {
            for port in self.ports.values() {
                if let Err(error) = port.register_memory(memory) {
                    self.notices.push(Notice::PortFault { port: port.id(), fault: error.to_string() });
                }
            }
        }
        let reset = self.nfs.replace(new, &self.host, &mut self.workers, &mut self.notices);
        let Some(reset) = reset else { return Ok(()) };
        self.publisher().publish();
        // Only after the links are removed: packets copied into the new memory must not reach links of the old one.
        self.workers.announce_memories(&memories, Some(id));
        self.nfs.reclaim(reset, &mut self.workers);
        self.renew_memory(&ports);
        Ok(())
    }

    /// The ports that receive into the memory of a group.
    fn ports_over(&self, group: GroupId) -> Vec<PortId> {
        let memories = self.nfs.group(group).map_or(&[][..], GroupState::memories);
        let is_over = |port: &&PortState| port.memories().any(|id| memories.iter().any(|own| own.id == id));
        self.ports.values().filter(is_over).map(PortState::id).collect()
    }

    /// Gives the sockets of ports that stay open their owners and modes in `host`.
    fn change_sockets(&mut self, host: &Host) -> Result<(), ApplyError> {
        for state in self.ports.values_mut() {
            if let Some(new) = host.port(state.id()).filter(|new| new.is_same_device(&state.config)) {
                state.set_socket_rights(&new.socket)?;
            }
        }
        Ok(())
    }

    /// Chooses the workers of ports that are about to open.
    pub(crate) fn place_ports<'a>(&mut self, host: &Host, ports: impl Iterator<Item = &'a PortConfig>) {
        let requests: Vec<Request> = ports.filter_map(|config| Request::of(host, config)).collect();
        self.placement.place(&requests, &self.loads);
    }

    pub(crate) fn open_port(
        &mut self,
        (host, queues): (&Host, &XskQueues),
        config: &PortConfig,
    ) -> Result<Opened, ApplyError> {
        self.placement.check(config)?;
        let memories = match config.has_queues() {
            true => self.memories_for((host, queues), config)?,
            false => Vec::new(),
        };
        let buffers = memories.first().map_or(0, |memory| memory.region().geometry().buffers);
        let xsk = queues.memory(host, config, buffers);
        let workers = self.placement.workers_of(config.id).to_vec();
        let opening = Opening { eal: self.memory.eal, config, memories, workers };
        let (mut state, mut queues) = ports::open(&opening, xsk)?;
        if let (Some(shaper), Some((_, queue))) = (ports::new_shaper(config)?, queues.first_mut()) {
            state.queues = shaper.counters();
            drop(queue.set_shaper(Some(shaper)));
        }
        let groups = self.nfs.groups().flat_map(GroupState::memories);
        for memory in groups.chain(&self.memory.own) {
            memory.forget_stamps(config.id);
            state.register_memory(memory)?;
        }
        Ok((state, queues))
    }

    /// The shapers of open ports that differ in `host`.
    fn changed_shapers(&self, host: &Host) -> Result<Vec<NewShaper>, ApplyError> {
        let mut changed = Vec::new();
        for state in self.ports.values() {
            let Some(new) = host.port(state.id()) else { continue };
            if new.is_same_device(&state.config) && new.policy.qos != state.config.policy.qos {
                changed.push((new.id, ports::new_shaper(new)?));
            }
        }
        Ok(changed)
    }

    /// Hands shapers to the workers of ports that are still open.
    fn set_shapers(&mut self, host: &Host, shapers: Vec<NewShaper>) {
        for (port, shaper) in shapers {
            let (Some(state), Some(new)) = (self.ports.get_mut(&port), host.port(port)) else { continue };
            if new.policy.qos == state.config.policy.qos {
                // The port was reopened with its new shaper.
                continue;
            }
            state.config.policy.qos.clone_from(&new.policy.qos);
            state.queues = shaper.as_ref().map(|shaper| shaper.counters()).unwrap_or_default();
            if let Some(worker) = state.workers.first() {
                self.workers.send(*worker, Command::SetShaper(port, shaper));
            }
            self.set_owners(port);
        }
    }

    /// Tells each worker who sends its packets to a port: the shaper's worker; without a shaper, each worker with a
    /// queue.
    pub(crate) fn set_owners(&mut self, port: PortId) {
        let Some(state) = self.ports.get(&port) else { return };
        let count = if state.config.policy.qos.is_some() { 1 } else { state.workers.len() };
        let senders: Vec<WorkerId> = state.workers.iter().copied().take(count).collect();
        let regions = self.workers.regions().to_vec();
        self.workers.send_all(|worker| {
            let is_local = |sender: &&WorkerId| regions[sender.index()] == regions[worker.index()];
            let local: Vec<&WorkerId> = senders.iter().filter(is_local).collect();
            let near = if local.is_empty() { senders.iter().collect() } else { local };
            let next = near.get(worker.index() % near.len().max(1)).copied().copied();
            Command::SetOwner(port, next.filter(|_| !senders.contains(&worker)))
        });
    }

    /// For each worker, the memory into which a port receives.
    pub(crate) fn memories_for(
        &mut self,
        (host, queues): (&Host, &XskQueues),
        config: &PortConfig,
    ) -> Result<Vec<Arc<Memory>>, ApplyError> {
        if let Some(group) = host.landing_group(config).and_then(|group| self.nfs.group(group)) {
            return Ok(self.workers.local(group.memories()));
        }
        if let Some(created) = self.memory.create_own(queues.own_buffers())? {
            let created = created.to_vec();
            self.workers.announce_memories(&created, None);
        }
        Ok(self.workers.local(&self.memory.own))
    }

    /// Hands ports to the workers. Every port can send before the first one receives.
    pub(crate) fn install_all(&mut self, opened: Vec<Opened>) {
        let ports: Vec<PortId> = opened.iter().map(|(state, _)| state.id()).collect();
        for (state, queues) in opened {
            self.install(state, queues);
        }
        for port in ports.iter().filter_map(|port| self.ports.get(port)) {
            for worker in &port.workers {
                self.workers.send(*worker, Command::StartPort(port.id()));
            }
        }
    }

    fn install(&mut self, state: PortState, queues: Vec<(WorkerId, PortQueue)>) {
        let id = state.id();
        for (worker, queue) in queues {
            self.workers.send(worker, Command::AddPort(Box::new(queue)));
        }
        self.ports.insert(id, state);
        self.closed_ports.remove(&id);
        self.set_owners(id);
    }

    /// Takes a port from the workers and waits until it is closed.
    pub(crate) fn close_port(&mut self, id: PortId) -> Result<(), ApplyError> {
        let Some(state) = self.ports.get(&id) else { return Ok(()) };
        self.workers.send_all(|_| Command::SetOwner(id, None));
        for worker in &state.workers {
            self.workers.send(*worker, Command::RemovePort(id));
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
        if has_queues && self.workers.wait_for(CLOSING, take).is_none() {
            return Err(ApplyError::Stuck { port: state.config.name.clone() });
        }
        let fault = self.ports.remove(&id).and_then(|state| state.control.close());
        if let Some(fault) = fault {
            self.notices.push(Notice::PortFault { port: id, fault });
        }
        Ok(())
    }
}
