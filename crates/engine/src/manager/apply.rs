//! Making the engine be what a host says: live, and as a whole or not at all.
//!
//! Everything that can fail (memory, ports) is made first, beside what runs. Then the workers get the new things and a
//! new snapshot, and what is no longer wanted is taken away. A port that changes must be closed before it can be opened
//! anew; if that fails, it is opened as it was.

use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_config::model::{EngineConfig, Group, Host, PortConfig};

use super::nfs::group::GroupState;
use super::nfs::instance::Instance;
use super::ports::{self, OpenError, PortState};
use super::{Engine, GroupError, Notice};
use crate::ids::{GroupId, InstanceId, PortId, WorkerId};
use crate::memory::Memory;
use crate::policy::{Policy, PolicyError};
use crate::port::PortQueue;
use crate::worker::Command;

/// How long to wait for workers to give a port's queues back.
const CLOSING: Duration = Duration::from_secs(10);

/// A port that is open, and its queues, which no worker has yet.
type Opened = (PortState, Vec<(WorkerId, PortQueue)>);

/// Why a host was not applied. The engine is then as it was.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Something that only a restart can change.
    #[error("{what} cannot be changed while netvm runs: restart netvmd, or leave it as it is")]
    NeedsRestart {
        /// What.
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
    /// A worker does not give a queue back.
    #[error("port {port}: a worker has not given its queue back after {} s", CLOSING.as_secs())]
    Stuck {
        /// The port.
        port: String,
    },
}

impl Engine {
    /// Makes the engine be what `host` says. NFs of roles that are gone or whose group changed are asked to leave.
    ///
    /// # Errors
    /// [`ApplyError`]; everything is then as it was.
    pub fn apply(&mut self, host: &Host) -> Result<(), ApplyError> {
        let policy = self.compiled(host)?;
        self.apply_with(host.clone(), policy)
    }

    /// [`Engine::apply`] with a policy that was compiled for `host` elsewhere, which spares this thread the time.
    ///
    /// # Errors
    /// [`ApplyError`]; everything is then as it was.
    pub fn apply_with(&mut self, host: impl Into<Arc<Host>>, policy: Arc<Policy>) -> Result<(), ApplyError> {
        let shared = host.into();
        let host: &Host = &shared;
        self.check_live(host)?;
        let quotas = self.routers.quotas(host).map_err(PolicyError::from)?;
        let new_groups = self.make_groups(host)?;
        for memory in new_groups.iter().flat_map(|group| &group.memories) {
            for port in self.ports.values() {
                port.reach(memory)?;
            }
        }
        for group in &new_groups {
            self.announce_memories(&group.memories, Some(group.id()));
        }
        let ids: Vec<GroupId> = new_groups.iter().map(GroupState::id).collect();
        self.nfs.groups.extend(new_groups.into_iter().map(|group| (group.id(), group)));
        let opened = match self.change_ports(host, &policy) {
            Ok(opened) => opened,
            Err(error) => {
                for id in ids {
                    self.nfs.retiring.extend(self.nfs.groups.remove(&id));
                }
                return Err(error);
            }
        };
        let before = std::mem::replace(&mut self.host, Arc::clone(&shared));
        self.reaper.free(before);
        self.routers.follow(&shared, quotas);
        self.forget_shortened();
        self.follow_sticky();
        let gone: Vec<GroupId> =
            self.nfs.groups.keys().filter(|id| host.group(**id).is_none()).copied().collect();
        self.dismiss_unwanted(host);
        self.adopt(policy);
        self.rebuild_in_order();
        // After the snapshot that knows what to do with their packets.
        self.install_all(opened);
        for id in gone {
            self.nfs.retiring.extend(self.nfs.groups.remove(&id));
        }
        Ok(())
    }

    fn check_live(&self, host: &Host) -> Result<(), ApplyError> {
        let needs_restart = |what: String| Err(ApplyError::NeedsRestart { what });
        let idle_may_differ = EngineConfig { idle: self.host.engine.idle, ..host.engine.clone() };
        if idle_may_differ != self.host.engine || host.engine.idle != self.host.engine.idle {
            return needs_restart("the [engine] section".to_owned());
        }
        for group in &host.groups {
            let Some(old) = self.nfs.groups.get(&group.id) else { continue };
            let memory = |g: &Group| (g.buffers, g.buffer_size, g.headroom);
            if memory(&old.config) != memory(group) {
                return needs_restart(format!(
                    "the memory of group {} (buffers, buffer_size, headroom)",
                    group.name
                ));
            }
            if !self.nfs.instances.values().all(|i| i.group != group.id) && old.config.name != group.name {
                return needs_restart(format!("the name of group {}", group.name));
            }
        }
        Ok(())
    }

    fn make_groups(&mut self, host: &Host) -> Result<Vec<GroupState>, ApplyError> {
        let mut made = Vec::new();
        for config in host.groups.iter().filter(|config| !self.nfs.groups.contains_key(&config.id)) {
            let memories = self.memory.create(config)?;
            made.push(GroupState::create(config.clone(), memories, &self.workers)?);
        }
        Ok(made)
    }

    fn announce_memories(&mut self, memories: &[Arc<Memory>], group: Option<GroupId>) {
        let regions = self.workers.regions().to_vec();
        for (n, memory) in memories.iter().enumerate() {
            self.workers.send_all(|worker| {
                let home = group.filter(|_| n == usize::from(regions[worker.index()]));
                Command::AddMemory { memory: Arc::clone(memory), home }
            });
        }
    }

    /// Closes ports and opens others, so that with these they are those of `host`; on an error they are those of
    /// before.
    fn change_ports(&mut self, host: &Host, policy: &Policy) -> Result<Vec<Opened>, ApplyError> {
        let landing = |config: &PortConfig| host.landing_by(&policy.leading, config);
        let old: Vec<PortConfig> = self.ports.values().map(|port| port.config.clone()).collect();
        let same = |a: &PortConfig, b: &PortConfig, engine: &Self| {
            a.is_same_device(b) && engine.host.landing_by(&engine.rules.policy.leading, a) == landing(b)
        };
        let closed: Vec<PortConfig> =
            old.iter().filter(|a| host.port(a.id).is_none_or(|b| !same(a, b, self))).cloned().collect();
        let opened: Vec<PortConfig> = host
            .ports
            .iter()
            .filter(|b| self.ports.get(&b.id).is_none_or(|a| !same(&a.config, b, self)))
            .cloned()
            .collect();
        for config in &closed {
            self.close_port(config.id)?;
        }
        let mut done = Vec::new();
        for config in &opened {
            match self.open_port(host, config) {
                Ok(port) => done.push(port),
                Err(error) => {
                    drop(done);
                    for config in &closed {
                        // It was open a moment ago; if it cannot be opened again, that is the graver news.
                        let before = Arc::clone(&self.host);
                        let port = self.open_port(&before, config)?;
                        self.install_all(vec![port]);
                    }
                    return Err(error);
                }
            }
        }
        Ok(done)
    }

    fn open_port(&mut self, host: &Host, config: &PortConfig) -> Result<Opened, ApplyError> {
        let memories = self.memories_for(host, host.landing_group(config))?;
        let buffers = memories.first().map_or(0, |memory| memory.region().geometry().buffers);
        let (state, queues) =
            ports::open(self.memory.eal, config, &memories, ports::rings(host, config, buffers))?;
        let all = self.nfs.groups.values().flat_map(|group| &group.memories).chain(&self.memory.own);
        for memory in all {
            memory.forget_stamps(config.id);
            state.reach(memory)?;
        }
        Ok((state, queues))
    }

    /// For each worker, the memory in which packets of a port land.
    fn memories_for(&mut self, host: &Host, group: Option<GroupId>) -> Result<Vec<Arc<Memory>>, ApplyError> {
        if let Some(state) = group.and_then(|group| self.nfs.groups.get(&group)) {
            return Ok(self.workers.local(&state.memories));
        }
        if let Some(created) = self.memory.create_own(ports::own_buffers(host))? {
            let created = created.to_vec();
            self.announce_memories(&created, None);
        }
        Ok(self.workers.local(&self.memory.own))
    }

    /// All ports can send before packets come in by any of them.
    fn install_all(&mut self, opened: Vec<Opened>) {
        let ports: Vec<PortId> = opened.iter().map(|(state, _)| state.id()).collect();
        for (state, queues) in opened {
            self.install(state, queues);
        }
        for port in ports {
            for worker in self.ports.get(&port).map_or_else(Vec::new, |state| state.workers.clone()) {
                self.workers.send(worker, Command::StartPort(port));
            }
        }
    }

    fn install(&mut self, state: PortState, queues: Vec<(WorkerId, PortQueue)>) {
        let id = state.id();
        let senders = state.workers.clone();
        for (worker, queue) in queues {
            self.workers.send(worker, Command::AddPort(Box::new(queue)));
        }
        self.workers.send_all(|worker| {
            let owner = (!senders.contains(&worker))
                .then(|| senders.get(worker.index() % senders.len().max(1)).copied())
                .flatten();
            Command::SetOwner(id, owner)
        });
        self.ports.insert(id, state);
    }

    /// Takes a port from the workers and waits until it is closed.
    fn close_port(&mut self, id: PortId) -> Result<(), ApplyError> {
        let Some(state) = self.ports.get_mut(&id) else { return Ok(()) };
        state.closing = state.workers.clone();
        let name = state.config.name.clone();
        self.workers.send_all(|_| Command::SetOwner(id, None));
        for worker in self.ports[&id].workers.clone() {
            self.workers.send(worker, Command::RemovePort(id));
        }
        let start = Instant::now();
        while self.ports.get(&id).is_some_and(|state| !state.closing.is_empty()) {
            if start.elapsed() > CLOSING {
                return Err(ApplyError::Stuck { port: name });
            }
            self.service();
            std::thread::sleep(Duration::from_micros(200));
        }
        let progress = self.ports.remove(&id).and_then(|state| state.progress);
        if let Some(fault) = progress.and_then(|progress| progress.fault.lock().ok()?.take()) {
            self.notices.push(Notice::PortFault { port: id, fault });
        }
        Ok(())
    }

    pub(crate) fn port_retired(&mut self, id: PortId, worker: WorkerId) {
        if let Some(state) = self.ports.get_mut(&id) {
            state.closing.retain(|other| *other != worker);
        }
    }

    fn dismiss_unwanted(&mut self, host: &Host) {
        let wanted =
            |instance: &Instance| host.nf(instance.role).is_some_and(|nf| nf.group == instance.group);
        let gone: Vec<InstanceId> =
            self.nfs.instances.values().filter(|i| !wanted(i)).map(|i| i.id).collect();
        for id in gone {
            self.dismiss(id);
        }
    }
}
