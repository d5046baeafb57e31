//! Applying a configuration to the running engine, as a whole or not at all.
//!
//! The manager first creates everything that can fail (memory, ports), beside the running objects. Then the workers get
//! the new objects and a new snapshot, and the manager removes what is no longer configured. A port that changes must
//! be closed before it can be opened again ([`Ports::change`](super::ports::Ports::change)).

use std::sync::Arc;

use netvm_model::Host;

use super::nfs::group::GroupState;
use super::ports::{Changed, Configured, Tolerance};
use super::{Engine, GroupError, Notice};
use crate::ids::GroupId;
use crate::interface::{OpenError, XskQueues};
use crate::policy::{Policy, PolicyError};

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
        self.check_live(host)?;
        let quotas = self.routers.quotas(host).map_err(PolicyError::from)?;
        self.create_groups(host)?;
        let changed = match self.change_ports(Configured { host, policy: &policy }, tolerance) {
            Ok(changed) => changed,
            Err(error) => {
                self.nfs.retire_removed(&self.host);
                return Err(error);
            }
        };
        let before = std::mem::replace(&mut self.host, Arc::clone(shared));
        self.chains.follow(host);
        self.since.follow(&before, host, self.chains.shortened(), &self.workers);
        self.nfs.forget_removed_roles(host);
        self.reaper.free(before);
        self.routers.follow(host, quotas);
        self.nfs.dismiss_unconfigured(host, &mut self.notices);
        self.rules.adopt(policy, self.workers.len(), &self.reaper);
        self.publisher().publish_in_order();
        let (ports, mut context) = self.ports_in_context();
        ports.complete(changed, &mut context);
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
}
