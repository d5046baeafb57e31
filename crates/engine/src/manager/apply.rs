//! Applying a configuration to the running engine, as a whole or not at all.
//!
//! The manager first creates everything that can fail (memory, ports), beside the running objects. Then the workers get
//! the new objects and a new snapshot, and the manager removes what is no longer configured. A port that changes must
//! be closed before it can be opened again ([`Engine::change_ports`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_model::{Group, Host, PortConfig};

use super::nfs::group::GroupState;
use super::placement::request::Request;
use super::ports::{self, Opened, PortState, Tolerance};
use super::{Engine, GroupError, Notice};
use crate::ids::{GroupId, InstanceId, PortId, WorkerId};
use crate::interface::{OpenError, Opening, PortQueue, Shaper, XskQueues};
use crate::memory::Memory;
use crate::policy::{Policy, PolicyError};
use crate::worker::Command;

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
        let new_groups = self.create_groups(host)?;
        let changed = self.change_sockets(host);
        let changed = changed.and_then(|()| self.change_ports((host, &policy), tolerance));
        let changed = match changed {
            Ok(changed) => changed,
            Err(error) => {
                let before = Arc::clone(&self.host);
                // It was so until now.
                let _ = self.change_sockets(&before);
                for group in new_groups {
                    self.nfs.retire(group);
                }
                return Err(error);
            }
        };
        let before = std::mem::replace(&mut self.host, Arc::clone(shared));
        self.closed_ports.retain(|port, _| host.port(*port).is_some() && !self.ports.contains_key(port));
        self.chains.follow(host);
        self.since.follow(&before, host, self.chains.shortened(), &self.workers);
        self.forget_removed_roles();
        self.reaper.free(before);
        self.routers.follow(host, quotas);
        let removed: Vec<GroupId> =
            self.nfs.groups.keys().filter(|id| host.group(**id).is_none()).copied().collect();
        self.dismiss_unconfigured(host);
        self.rules.adopt(policy, self.workers.len(), &self.reaper);
        self.publisher().publish_in_order();
        // After the snapshot, which decides what happens to their packets.
        self.install_all(changed.opened);
        self.move_ports(host, changed.moved);
        changed.closed.into_iter().for_each(|(port, fault)| self.note_closed(port, fault));
        self.set_shapers(host, shapers);
        self.move_to_named_workers();
        for group in removed {
            self.nfs.retire(group);
        }
        Ok(())
    }

    fn check_live(&self, host: &Host) -> Result<(), ApplyError> {
        let needs_restart = |what: String| Err(ApplyError::NeedsRestart { what });
        if host.engine != self.host.engine {
            return needs_restart("the [engine] section".to_owned());
        }
        for group in &host.groups {
            let Some(old) = self.nfs.groups.get(&group.id) else { continue };
            let memory = |g: &Group| (g.buffers, g.buffer_size, g.headroom, g.large_buffers);
            if memory(&old.config) != memory(group) {
                return needs_restart(format!(
                    "the memory of group {} (buffers, buffer_size, headroom, large_buffers)",
                    group.name
                ));
            }
            let has_nfs = self.nfs.instances.values().any(|nf| nf.group == group.id);
            if has_nfs && old.config.name != group.name {
                return needs_restart(format!("the name of group {}", group.name));
            }
        }
        Ok(())
    }

    /// Creates the groups that are new in `host`, and announces their memories to ports and workers.
    fn create_groups(&mut self, host: &Host) -> Result<Vec<GroupId>, ApplyError> {
        let mut created = Vec::new();
        for config in host.groups.iter().filter(|config| !self.nfs.groups.contains_key(&config.id)) {
            let memories = self.memory.create(config)?;
            created.push(GroupState::create(config.clone(), memories, &self.workers)?);
        }
        for memory in created.iter().flat_map(|group| &group.memories) {
            for port in self.ports.values() {
                port.register_memory(memory)?;
            }
        }
        let ids = created.iter().map(GroupState::id).collect();
        for group in created {
            self.announce_memories(&group.memories, Some(group.id()));
            self.nfs.groups.insert(group.id(), group);
        }
        Ok(ids)
    }

    pub(crate) fn announce_memories(&mut self, memories: &[Arc<Memory>], group: Option<GroupId>) {
        let local = self.workers.local(memories);
        for memory in memories {
            self.workers.send_all(|worker| {
                let home = group.filter(|_| local[worker.index()].id == memory.id);
                Command::AddMemory { memory: Arc::clone(memory), home }
            });
        }
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
        let groups = self.nfs.groups.values().flat_map(|group| &group.memories);
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
        if let Some(group) = host.landing_group(config).and_then(|group| self.nfs.groups.get(&group)) {
            return Ok(self.workers.local(&group.memories));
        }
        if let Some(created) = self.memory.create_own(queues.own_buffers())? {
            let created = created.to_vec();
            self.announce_memories(&created, None);
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
        let Some(state) = self.ports.get_mut(&id) else { return Ok(()) };
        state.closing.clone_from(&state.workers);
        let name = state.config.name.clone();
        self.workers.send_all(|_| Command::SetOwner(id, None));
        for worker in &state.workers {
            self.workers.send(*worker, Command::RemovePort(id));
        }
        let start = Instant::now();
        while self.ports.get(&id).is_some_and(|state| !state.closing.is_empty()) {
            if start.elapsed() > CLOSING {
                return Err(ApplyError::Stuck { port: name });
            }
            self.service();
            std::thread::sleep(Duration::from_micros(200));
        }
        let fault = self.ports.remove(&id).and_then(|state| state.control.close());
        if let Some(fault) = fault {
            self.notices.push(Notice::PortFault { port: id, fault });
        }
        Ok(())
    }

    fn dismiss_unconfigured(&mut self, host: &Host) {
        let is_configured = |role, group| host.nf(role).is_some_and(|nf| nf.group == group);
        let instances = self.nfs.instances.values();
        let dismissed = instances.filter(|nf| !is_configured(nf.role, nf.group)).map(|nf| nf.id);
        for id in dismissed.collect::<Vec<InstanceId>>() {
            self.dismiss(id);
        }
    }
}
