// SPDX-License-Identifier: Apache-2.0
//! Starts and stops processes until they match the configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use netvm_engine::{InstanceId, InstanceState};
use netvm_model::{NfStart, RoleId};

use super::replica::{NewReplica, Phase, Replica, Startup};
use super::{Prepared, PreparedNf, Role, Supervisor};
use crate::engine_thread::{EngineGone, EngineHandle};
use crate::process::spawn::ProcessSpec;
use crate::runtime::lock;

/// The replacement of a replica's process.
#[derive(Debug)]
pub struct Renewal {
    role: String,
    /// The start of the new process.
    pub startup: Startup,
    /// The old process, which runs until the new one is up; `None` if it had to stop first.
    old: Option<Replica>,
}

impl Supervisor {
    /// Starts, restarts and stops processes to match `prepared`. Returns the starts to wait for.
    pub fn reconcile(&self, prepared: Prepared) -> Vec<Startup> {
        self.reconcile_sparing(prepared, &BTreeSet::new())
    }

    /// As [`Supervisor::reconcile`], but while traffic passes: stops surplus standbys first.
    ///
    /// # Errors
    /// [`EngineGone`]; nothing has changed.
    pub async fn reconcile_live(&self, prepared: Prepared) -> Result<Vec<Startup>, EngineGone> {
        let standbys = self.in_state(InstanceState::Standby).await?;
        Ok(self.reconcile_sparing(prepared, &standbys))
    }

    fn reconcile_sparing(&self, prepared: Prepared, standbys: &BTreeSet<InstanceId>) -> Vec<Startup> {
        let mut roles = lock(&self.roles);
        let mut startups = Vec::new();
        let mut wanted = BTreeMap::new();
        *lock(&self.waiting) = prepared.waiting;
        for nf in prepared.nfs {
            let name = nf.spec.role.clone();
            let mut role = roles.remove(&name).unwrap_or_else(|| Role {
                identity: nf.identity.clone(),
                spec: Arc::clone(&nf.spec),
                may_surge: nf.may_surge,
                replicas: Vec::new(),
            });
            role.remove_surplus(usize::from(nf.count), standbys);
            role.change(&nf, &mut startups);
            role.fill_up(usize::from(nf.count), self, &mut startups);
            wanted.insert(name, role);
        }
        for role in roles.values() {
            role.replicas.iter().for_each(Replica::stop);
        }
        *roles = wanted;
        startups
    }

    /// Replaces one outdated process of each role, so that the role's other processes carry its traffic in the
    /// meantime. If the trust group has room, the new process starts before the old one stops. Pass each result to
    /// [`Supervisor::settle`], and call this again until it returns nothing.
    pub fn renew_next(&self) -> Vec<Renewal> {
        let mut roles = lock(&self.roles);
        roles.iter_mut().filter_map(|(name, role)| role.renew_next(name, self)).collect()
    }

    /// Stops a replica's old process if the new one stays, else the new one.
    pub fn settle(&self, renewal: Renewal, stays: bool) {
        let Some(old) = renewal.old else { return };
        if stays {
            old.stop();
            return;
        }
        let mut roles = lock(&self.roles);
        let role = roles.get_mut(&renewal.role);
        let new = role.and_then(|role| role.replicas.iter_mut().find(|new| new.slot() == old.slot()));
        match new {
            Some(new) => std::mem::replace(new, old).stop(),
            None => old.stop(),
        }
    }

    /// Restarts surplus active replicas of roles that lack standbys, and surplus standbys of roles that lack active
    /// ones: a process becomes active or a standby when it attaches.
    ///
    /// # Errors
    /// [`EngineGone`].
    pub async fn rebalance(&self) -> Result<Vec<Startup>, EngineGone> {
        let too_many = surplus(&self.engine).await?;
        let roles = lock(&self.roles);
        let replicas = roles.values().flat_map(|role| &role.replicas);
        let wrong = replicas.filter(|replica| replica.instance().is_some_and(|id| too_many.contains(&id)));
        Ok(wrong.map(Replica::restart).collect())
    }

    async fn in_state(&self, state: InstanceState) -> Result<BTreeSet<InstanceId>, EngineGone> {
        let find = move |engine: &mut netvm_engine::Engine| {
            engine.instances().into_iter().filter(|i| i.state == state).map(|i| i.id).collect()
        };
        self.engine.call(find).await
    }
}

impl Replica {
    /// Adopts a specification that differs from the one before only in the cores that its threads may use.
    fn follow_cores(&self, spec: &Arc<ProcessSpec>) {
        let mut before = None;
        // Nobody is told: the process stays.
        self.desired.send_if_modified(|desired| {
            before = desired.spec.as_mut().map(|old| std::mem::replace(old, Arc::clone(spec)));
            false
        });
        let pid = self.status.borrow().pid;
        if let (Some(before), Some(pid)) = (before, pid)
            && let Err(error) = before.cores.replace_by(&spec.cores, pid)
        {
            tracing::warn!("nf {}: process {pid} keeps its cores: {error}", spec.role);
        }
    }
}

impl Role {
    fn remove_surplus(&mut self, count: usize, standbys: &BTreeSet<InstanceId>) {
        let stands_by = |replica: &Replica| replica.instance().is_some_and(|id| standbys.contains(&id));
        self.replicas.sort_by_key(|replica| (stands_by(replica), replica.slot()));
        for surplus in self.replicas.drain(count.min(self.replicas.len())..) {
            surplus.stop();
        }
        self.replicas.sort_by_key(Replica::slot);
    }

    /// Restarts an NF at once if its trust group changed, because the engine has dismissed it. Others wait for their
    /// turn.
    fn change(&mut self, nf: &PreparedNf, startups: &mut Vec<Startup>) {
        let leaves_group = self.identity.group != nf.identity.group;
        if self.spec.cores != nf.spec.cores {
            let stay = self.replicas.iter().filter(|replica| replica.identity == nf.identity);
            stay.for_each(|replica| replica.follow_cores(&nf.spec));
        }
        self.spec = Arc::clone(&nf.spec);
        self.identity = nf.identity.clone();
        self.may_surge = nf.may_surge;
        if leaves_group {
            let all = self.replicas.iter_mut();
            startups.extend(all.map(|replica| replica.renew(&nf.identity, &nf.spec)));
        }
    }

    fn renew_next(&mut self, name: &str, supervisor: &Supervisor) -> Option<Renewal> {
        let outdated = self.replicas.iter().position(|replica| replica.identity != self.identity)?;
        self.renew(outdated, name, supervisor)
    }

    /// Starts a new process for replica `n`, if that exists.
    pub(super) fn renew(&mut self, n: usize, name: &str, supervisor: &Supervisor) -> Option<Renewal> {
        let old = self.replicas.get_mut(n)?;
        let role = name.to_owned();
        if !self.may_surge {
            let startup = old.renew(&self.identity, &self.spec);
            return Some(Renewal { role, startup, old: None });
        }
        let (slot, restarts) = (old.slot(), old.status.borrow().restarts);
        let new = self.start(slot, restarts + 1, supervisor);
        let startup = new.startup();
        let old = std::mem::replace(self.replicas.get_mut(n)?, new);
        Some(Renewal { role, startup, old: Some(old) })
    }

    fn start(&self, slot: u16, restarts: u64, supervisor: &Supervisor) -> Replica {
        Replica::start(NewReplica {
            engine: supervisor.engine.clone(),
            confinement: Arc::clone(&supervisor.confinement),
            identity: self.identity.clone(),
            spec: Arc::clone(&self.spec),
            slot,
            restarts,
        })
    }

    pub(super) fn fill_up(&mut self, count: usize, supervisor: &Supervisor, startups: &mut Vec<Startup>) {
        while self.replicas.len() < count {
            let taken: BTreeSet<u16> = self.replicas.iter().map(Replica::slot).collect();
            let Some(slot) = (0..=u16::MAX).find(|slot| !taken.contains(slot)) else { return };
            let replica = self.start(slot, 0, supervisor);
            startups.push(replica.startup());
            self.replicas.push(replica);
        }
        self.replicas.sort_by_key(Replica::slot);
    }
}

impl Replica {
    pub(super) fn slot(&self) -> u16 {
        self.status.borrow().slot
    }

    /// The instance id in the engine, while the process is attached.
    pub(super) fn instance(&self) -> Option<InstanceId> {
        match self.status.borrow().phase {
            Phase::Attached(id) => Some(id),
            _ => None,
        }
    }
}

/// Managed instances that are active and should be standbys, or the reverse.
async fn surplus(engine: &EngineHandle) -> Result<BTreeSet<InstanceId>, EngineGone> {
    let find = |engine: &mut netvm_engine::Engine| {
        let instances = engine.instances();
        let mut surplus = BTreeSet::new();
        for nf in &engine.host().nfs {
            let NfStart::Managed { replicas, standby, .. } = &nf.start else { continue };
            let those = |role: RoleId, state| {
                instances.iter().filter(move |i| i.role == role && i.state == state).map(|i| i.id)
            };
            let (active, waiting) =
                (those(nf.id, InstanceState::Active).count(), those(nf.id, InstanceState::Standby).count());
            let (replicas, standby) = (usize::from(*replicas), usize::from(*standby));
            let missing_active = replicas.saturating_sub(active).min(waiting);
            let missing_standby = standby.saturating_sub(waiting).min(active.saturating_sub(replicas));
            surplus.extend(those(nf.id, InstanceState::Standby).take(missing_active));
            surplus.extend(those(nf.id, InstanceState::Active).take(missing_standby));
        }
        surplus
    };
    engine.call(find).await
}
