// SPDX-License-Identifier: Apache-2.0
//! Looks up programs, users and cores of managed NFs.

use std::collections::BTreeMap;
use std::sync::Arc;

use netvm_model::{GroupId, Host, MAX_GROUP_THREADS, NfConfig, NfStart};

use super::{Role, Scaling, Supervisor};
use crate::account::Account;
use crate::process::cores::CoreSet;
use crate::process::program::Program;
use crate::process::spawn::{ProcessSpec, ProcessSpecError, ProcessSpecProblem};
use crate::runtime::{blocking, lock};

/// The managed NFs of a configuration, with programs, users and cores looked up.
#[derive(Debug)]
pub struct Prepared {
    pub(super) nfs: Vec<PreparedNf>,
    /// The NFs that this machine cannot start now.
    pub(super) waiting: Waiting,
}

/// NFs that wait for something that this machine lacks, by role: how they would start, and the problem.
pub(super) type Waiting = BTreeMap<String, (NfStart, String)>;

#[derive(Debug)]
pub(super) struct PreparedNf {
    pub(super) identity: Identity,
    pub(super) spec: Arc<ProcessSpec>,
    pub(super) count: u16,
    pub(super) may_surge: bool,
}

/// The settings of an NF whose change requires a new process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) group: GroupId,
    start: NfStart,
}

/// Input of a lookup.
struct Finder {
    /// The cores that netvmd may use.
    cores: Vec<u32>,
    /// Whether netvmd can start NFs as other users.
    is_root: bool,
    /// The running roles.
    running: BTreeMap<String, (Identity, Arc<ProcessSpec>)>,
    /// The roles that wait already.
    waiting: Waiting,
    /// Whether all may wait.
    may_wait: bool,
    scaling: BTreeMap<String, Scaling>,
}

impl Supervisor {
    /// Looks up programs, users and cores of all managed NFs, on another thread, because user databases may be slow.
    /// Starts nothing. If a lookup fails for an NF that runs, or waits, and has not changed, the NF keeps the earlier
    /// result, so that it does not prevent other changes. If they `may_wait`, NFs that cannot be started do so, and are
    /// looked up again later.
    ///
    /// # Errors
    /// [`ProcessSpecError`] names the first NF that cannot be started, and the reason.
    pub async fn prepare(&self, host: &Host, may_wait: bool) -> Result<Prepared, ProcessSpecError> {
        let (running, waiting) = (self.specs(), lock(&self.waiting).clone());
        let (cores, is_root, scaling) = (self.cores.clone(), self.is_root, lock(&self.scaling).clone());
        let finder = Finder { cores, is_root, running, waiting, may_wait, scaling };
        let host = host.clone();
        blocking(move || finder.all(&host)).await
    }

    /// The NFs that wait for something that this machine lacks, and what it is.
    pub fn waiting(&self) -> Vec<(String, String)> {
        lock(&self.waiting).iter().map(|(role, (_, problem))| (role.clone(), problem.clone())).collect()
    }

    fn specs(&self) -> BTreeMap<String, (Identity, Arc<ProcessSpec>)> {
        let spec = |role: &Role| (role.identity.clone(), Arc::clone(&role.spec));
        lock(&self.roles).iter().map(|(name, role)| (name.clone(), spec(role))).collect()
    }
}

impl Finder {
    fn all(&self, host: &Host) -> Result<Prepared, ProcessSpecError> {
        let mut prepared = Prepared { nfs: Vec::new(), waiting: Waiting::new() };
        for nf in host.nfs.iter().filter(|nf| matches!(nf.start, NfStart::Managed { .. })) {
            match self.one(host, nf) {
                Ok(nf) => prepared.nfs.push(nf),
                Err(error) if self.may_wait || self.waits(nf) => {
                    prepared.waiting.insert(nf.role.clone(), (nf.start.clone(), error.problem.to_string()));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(prepared)
    }

    /// Whether an NF waits already, and would start in the same way.
    fn waits(&self, nf: &NfConfig) -> bool {
        self.waiting.get(&nf.role).is_some_and(|(start, _)| *start == nf.start)
    }

    fn one(&self, host: &Host, nf: &NfConfig) -> Result<PreparedNf, ProcessSpecError> {
        let failed = |problem| ProcessSpecError { role: nf.role.clone(), problem };
        let NfStart::Managed { replicas, scale, standby, threads, .. } = &nf.start else {
            return Err(failed(ProcessSpecProblem::NoCommand));
        };
        let mut start = nf.start.clone();
        if let NfStart::Managed { replicas, scale, standby, .. } = &mut start {
            (*replicas, *scale, *standby) = (0, None, 0);
        }
        let identity = Identity { group: nf.group, start };
        let spec = match (self.spec(host, nf), self.running.get(&nf.role)) {
            (Ok(spec), _) => Arc::new(spec),
            (Err(_), Some((running, spec))) if *running == identity => Arc::clone(spec),
            (Err(problem), _) => return Err(failed(problem)),
        };
        // With a standby, the additional process would also be a standby and not take over.
        let may_surge =
            *standby == 0 && threads_of(host, nf.group) + usize::from(*threads) <= MAX_GROUP_THREADS;
        let replicas = scale.map_or(*replicas, |scale| {
            self.scaling.get(&nf.role).copied().unwrap_or_default().count(*replicas, scale)
        });
        let count = replicas.saturating_add(*standby);
        Ok(PreparedNf { identity, spec, count, may_surge })
    }

    fn spec(&self, host: &Host, nf: &NfConfig) -> Result<ProcessSpec, ProcessSpecProblem> {
        let NfStart::Managed { command, user, cores, environment, threads, limits, .. } = &nf.start else {
            return Err(ProcessSpecProblem::NoCommand);
        };
        let account = if self.is_root { Some(Account::find(user)?) } else { None };
        let name = command.first().ok_or(ProcessSpecProblem::NoCommand)?;
        let workers = host.engine.workers(&self.cores);
        Ok(ProcessSpec {
            role: nf.role.clone(),
            program: Program::find(name, account)?,
            command: command.clone(),
            account,
            environment: environment.clone(),
            threads: *threads,
            cores: CoreSet::choose(cores, workers, &self.cores)?,
            limits: limits.clone(),
        })
    }
}

/// The threads of all managed NFs in a trust group.
fn threads_of(host: &Host, group: GroupId) -> usize {
    let threads = |nf: &NfConfig| match nf.start {
        NfStart::Managed { replicas, scale, standby, threads, .. } => {
            let replicas = scale.map_or(replicas, |scale| scale.most);
            (usize::from(replicas) + usize::from(standby)) * usize::from(threads)
        }
        NfStart::External { .. } | NfStart::Ports(_) => 0,
    };
    host.nfs.iter().filter(|nf| nf.group == group).map(threads).sum()
}
