// SPDX-License-Identifier: Apache-2.0
//! Applying a configuration to the running engine, as a whole or not at all.
//!
//! The manager first creates everything that can fail (memory, ports), beside the running objects. Then the workers get
//! the new objects and a new snapshot, and the manager removes what is no longer configured. A port that changes must
//! be closed before it can be opened again ([`Ports::change`](super::ports::Ports::change)).

use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_conntrack::NoMemory;
use netvm_model::{EngineConfig, Host};

use super::cores::{Cores, CoresError, StartError};
use super::nfs::group::GroupState;
use super::ports::{Changed, Configured, Tolerance};
use super::publish;
use super::resize::{self, Phase, Resize, connections::move_connections, flows::move_verdicts};
use super::{Engine, GroupError, Notice};
use crate::ids::{GroupId, WorkerId};
use crate::interface::{OpenError, XskQueues};
use crate::policy::{Policy, PolicyError};
use crate::worker::Command;

/// Why a host was not applied. The engine is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// A change that needs a restart.
    #[error("{what} cannot be changed while netvm runs: restart netvmd, or leave it as it is")]
    NeedsRestart {
        /// The changed part.
        what: String,
    },
    /// The workers' cores.
    #[error(transparent)]
    Cores(#[from] CoresError),
    /// A group's memory.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// A port.
    #[error(transparent)]
    Port(#[from] OpenError),
    /// The rules.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The tables of connections.
    #[error("tracking connections needs more memory: {0}; lower `limit` of [engine.connections]")]
    Connections(#[from] NoMemory),
}

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
        let cores = self.check_live(host)?;
        let quotas = self.routers.quotas(host).map_err(PolicyError::from)?;
        self.workers.set_hops([&*self.host, host]);
        let before_resize = self.workers.len();
        if let Some(cores) = &cores {
            self.await_resize()?;
            self.add_workers(cores)?;
        }
        let after = Configured { host, policy: &policy };
        let tables = self.connections.missing_for(host, &self.workers).map_err(ApplyError::from);
        let created = tables.and_then(|tables| self.create_groups(host).map(|()| tables));
        let changed = created.and_then(|tables| Ok((tables, self.change_ports(after, tolerance)?)));
        let (tables, changed) = match changed {
            Ok(changed) => changed,
            Err(error) => {
                self.nfs.retire_removed(&self.host);
                self.drop_workers(before_resize);
                return Err(error);
            }
        };
        let before = std::mem::replace(&mut self.host, Arc::clone(shared));
        self.chains.follow(host);
        self.bonds.follow(host);
        self.pairs.follow(host, &self.workers);
        self.baselines.follow(&before, host, self.chains.shortened(), &self.workers);
        self.nfs.forget_removed_roles(host);
        self.reaper.free(before);
        self.routers.follow(host, quotas);
        self.targets.follow(host);
        self.nfs.dismiss_unconfigured(host, &mut self.notices);
        self.adopt(policy);
        self.follow_switching();
        self.connections.follow(host, tables, &mut self.workers);
        self.publisher().publish_in_order();
        let (ports, mut context) = self.ports_in_context();
        ports.complete(changed, &mut context);
        self.nfs.retire_removed(host);
        if let Some(cores) = cores {
            self.follow_cores(cores, before_resize);
        }
        Ok(())
    }

    /// Adapts the switch's database to what EVPN says.
    fn follow_switching(&mut self) {
        if let Some(switching) = &self.rules.policy().switching {
            self.routers.follow_switching(switching, publish::policy::now());
        }
    }

    /// Refuses a change of the workers' cores that cannot be made while the engine runs; [`Engine::apply`] would, too.
    ///
    /// # Errors
    /// [`CoresError`].
    pub fn check_cores(&self, config: &EngineConfig) -> Result<(), CoresError> {
        self.changed_cores(config).map(drop)
    }

    /// The workers' cores in a configuration, if it names others.
    fn changed_cores(&self, config: &EngineConfig) -> Result<Option<Cores>, CoresError> {
        (config.cores != self.host.engine.cores).then(|| self.resizes.cores().changed(config)).transpose()
    }

    /// Refuses what cannot change while the engine runs. Returns the workers' cores, if they change.
    fn check_live(&self, host: &Host) -> Result<Option<Cores>, ApplyError> {
        let same_cores = EngineConfig { cores: self.host.engine.cores.clone(), ..host.engine.clone() };
        let is_other = same_cores != self.host.engine;
        let section = is_other.then(|| "the [engine] section, but for `cores`,".to_owned());
        match section.or_else(|| self.nfs.needs_restart(host)) {
            Some(what) => Err(ApplyError::NeedsRestart { what }),
            None => Ok(self.changed_cores(&host.engine)?),
        }
    }

    /// Creates the groups that are new in `host`, and announces their memories to ports and workers.
    fn create_groups(&mut self, host: &Host) -> Result<(), ApplyError> {
        let created = self.nfs.make_new(host, &mut self.memory, &self.workers)?;
        let memories = created.iter().flat_map(GroupState::memories);
        let mut failed = memories.flat_map(|memory| self.ports.register_memory(memory));
        if let Some((_, error)) = failed.next() {
            return Err(error.into());
        }
        drop(failed);
        for group in created {
            self.workers.announce_memories(group.memories(), Some(group.id()));
            self.nfs.add_group(group);
        }
        Ok(())
    }

    /// Closes and opens ports. On an error, they are as before.
    fn change_ports(&mut self, after: Configured<'_>, tolerance: Tolerance) -> Result<Changed, ApplyError> {
        self.create_own_memory(after.host)?;
        let (ports, mut context) = self.ports_in_context();
        Ok(ports.change(after, tolerance, &mut context)?)
    }

    /// Creates the engine's own memory, if a port of `host` receives into it.
    fn create_own_memory(&mut self, host: &Host) -> Result<(), GroupError> {
        let has_group = |port| host.landing_group(port).is_some_and(|group| self.nfs.group(group).is_some());
        if host.ports.iter().filter(|port| port.has_queues()).all(has_group) {
            return Ok(());
        }
        if let Some(created) = self.memory.create_own(XskQueues::of(host).own_buffers())? {
            self.workers.announce_memories(created, None);
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
        let ports = self.ports.over(self.nfs.group(id).map_or(&[][..], GroupState::memories));
        let memories = new.memories().to_vec();
        for (port, error) in memories.iter().flat_map(|memory| self.ports.register_memory(memory)) {
            self.notices.push(Notice::PortFault { port, fault: error.to_string() });
        }
        let reset = self.nfs.replace(new, &self.host, &mut self.workers, &mut self.notices);
        let Some(reset) = reset else { return Ok(()) };
        self.publisher().publish();
        // Only after the links are removed: packets copied into the new memory must not reach links of the old one.
        self.workers.announce_memories(&memories, Some(id));
        self.nfs.reclaim(reset, &mut self.workers);
        let (all, mut context) = self.ports_in_context();
        all.renew_memory(&ports, &mut context);
        Ok(())
    }

    /// Adds the workers for the cores beyond those that have one. On an error, those that were added before end.
    fn add_workers(&mut self, cores: &Cores) -> Result<(), CoresError> {
        let before = self.workers.len();
        for (core, region) in cores.cores.iter().zip(&cores.regions).skip(before) {
            if let Err(error) = self.add_worker(*core, *region) {
                self.drop_workers(before);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Adds a worker that has what the others have, but no queues and no flows yet. What can fail comes first.
    fn add_worker(&mut self, core: u32, region: u8) -> Result<(), CoresError> {
        let links = self.nfs.links_for_worker()?;
        self.captures.allocate(WorkerId(self.workers.len() as u8))?;
        let connections = self.connections.of_new_worker(WorkerId(self.workers.len() as u8))?;
        let worker = self.workers.add(core, region)?;
        if connections.is_some() {
            self.workers.send(worker, Command::SetConnections(connections));
        }
        if let Err(error) = self.nfs.watch(worker, &self.workers) {
            self.workers.end_last();
            return Err(StartError::System(error.into()).into());
        }
        self.rules.add_worker(worker);
        // Other workers may hand it packets of any group, also of one that is gone.
        let of_groups = self.nfs.memories();
        for (memories, group) in of_groups.chain([(self.memory.own(), None)]) {
            self.workers.announce_memories_to(worker, memories, group);
        }
        self.nfs.add_worker(worker, links, &mut self.workers);
        let node = self.memory.nodes().get(usize::from(region)).copied().unwrap_or_default();
        let (ports, mut context) = self.ports_in_context();
        ports.add_worker(worker, node, &mut context);
        self.captures.add_captures(worker, &mut self.workers);
        self.latencies.go_on(&self.workers);
        self.publisher().send_snapshots();
        self.notices.push(Notice::WorkerAdded { worker, core });
        Ok(())
    }

    /// Gives work to workers from number `before` on, or takes that of workers beyond the cores away. Waits for it, but
    /// not for long.
    fn follow_cores(&mut self, cores: Cores, before: usize) {
        let (now, target) = (self.workers.len(), cores.cores.len());
        self.resizes.set_cores(cores);
        if target < now {
            self.end_workers_from(target);
        } else {
            self.pin_workers();
            let moves = self.ports.spread(before..now, &self.host);
            self.resizes.run(Resize::of_added(&self.workers, moves));
            self.serve_until_resized(resize::FOLLOW_TIMEOUT);
        }
    }

    /// Ends workers that were added for a change that failed.
    fn drop_workers(&mut self, before: usize) {
        if self.workers.len() > before {
            self.end_workers_from(before);
        }
    }

    fn end_workers_from(&mut self, target: usize) {
        self.ports.keep_workers(target);
        self.resizes.run(Resize::of_leaving(&self.workers, target));
        self.serve_until_resized(resize::FOLLOW_TIMEOUT);
    }

    /// Waits until the workers of an earlier change have ended.
    fn await_resize(&mut self) -> Result<(), CoresError> {
        match self.serve_until_resized(resize::END_TIMEOUT) {
            true => Ok(()),
            false => Err(self.resizes.busy(&self.nfs, &self.memory)),
        }
    }

    /// Serves the engine until all workers are what they are to be; at most for `limit`. Returns whether they are.
    fn serve_until_resized(&mut self, limit: Duration) -> bool {
        let start = Instant::now();
        while self.resizes.is_running() || !self.workers.have_ended() {
            if start.elapsed() > limit {
                return false;
            }
            self.service();
            std::thread::sleep(Duration::from_micros(200));
        }
        true
    }

    /// Does the next step of a change of the number of workers.
    pub(super) fn service_resize(&mut self) {
        let have_ended = self.workers.have_ended();
        let Some(mut resize) = self.resizes.take() else { return };
        match resize.phase() {
            Phase::Queues => {
                let (ports, mut context) = self.ports_in_context();
                resize.move_next_queue(ports, &mut context);
            }
            Phase::Flows => self.divide_flows(&mut resize),
            Phase::Draining if !resize.is_drained(&self.nfs, &self.memory, &mut self.workers) => {}
            // A port may have been opened on workers that are to end.
            Phase::Draining if self.ports.next_off(&self.host, &self.workers).is_some() => {
                resize.go_on(Phase::Queues);
            }
            Phase::Draining => {
                self.end_workers(resize.leaving());
                resize.go_on(Phase::Ending);
            }
            Phase::Ending if have_ended => resize.go_on(Phase::Done),
            Phase::Ending | Phase::Done => {}
        }
        if resize.phase() != Phase::Done {
            return self.resizes.run(resize);
        }
        self.pin_workers();
        for (worker, core) in resize.leaving() {
            self.notices.push(Notice::WorkerRemoved { worker: *worker, core: *core });
        }
    }

    /// Divides the flows among the workers that are to stay, if NFs return the packets that they have.
    fn divide_flows(&mut self, resize: &mut Resize) {
        if !resize.leaving().is_empty() {
            self.nfs.announce_staying(resize.target());
        }
        let Some(owners) = resize.new_owners(self.resizes.owners()) else { return resize.flows_divided() };
        let owned = self.publisher().view().snapshot(0).owned;
        let stopped = self.ports.stop(&owned, &mut self.workers);
        if stopped.settle(resize.attempt(), &mut self.workers) || resize.is_last_attempt() {
            // What NFs returned leaves before what the new owners send.
            self.workers.finish_handed_over();
            self.resizes.set_owners(Arc::clone(&owners));
            self.publisher().send_snapshots();
            move_verdicts(&owners, &self.nfs, &mut self.workers);
            move_connections(&owners, &mut self.workers);
            resize.flows_divided();
        } else {
            resize.try_again();
        }
        stopped.start(&mut self.workers);
    }

    /// Ends workers that have no queues, no flows, and no packets with NFs.
    fn end_workers(&mut self, leaving: &[(WorkerId, u32)]) {
        // The last packets that they took from NFs are with other workers.
        self.workers.finish_handed_over();
        for (worker, _) in leaving {
            self.ports.remove_worker(*worker, &mut self.workers);
            self.nfs.remove_links_of(*worker, &mut self.workers);
            self.captures.remove_captures(*worker, &mut self.workers);
        }
        self.workers.wait_for_all();
        for (worker, _) in leaving.iter().rev() {
            self.nfs.remove_worker(*worker, &self.workers);
            self.workers.end_last();
        }
        self.nfs.announce_workers(&self.workers);
    }

    /// Moves workers that are to run on other cores.
    fn pin_workers(&mut self) {
        for (worker, from, to) in self.workers.pin(&self.resizes.cores().cores) {
            self.notices.push(Notice::WorkerMoved { worker, from, to });
        }
    }
}
