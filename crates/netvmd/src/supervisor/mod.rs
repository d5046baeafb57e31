//! Supervises the NFs that netvmd starts: the configured number of processes of each, in sandboxes, restarted when they
//! end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use netvm_config::model::{GroupId, Host, MAX_GROUP_THREADS, NfConfig, NfStart};
use tokio::time::timeout;

pub(crate) mod backoff;
pub(crate) mod cores;
mod landlock;
mod output;
pub(crate) mod process;
pub(crate) mod program;
mod reconcile;
mod replica;
pub(crate) mod sandbox;
mod seccomp;
pub(crate) mod spawn;

pub use cores::allowed as allowed_cores;
pub use replica::{Phase, Startup, Status};
pub use sandbox::Confinement;
pub use seccomp::FilterError;
pub use spawn::RecipeError;

use crate::account::Account;
use crate::engine_thread::EngineHandle;
use cores::CoreSet;
use program::Program;
use replica::Replica;
use spawn::{Recipe, RecipeProblem};

/// Limit for a started NF to attach.
pub const START_TIMEOUT: Duration = Duration::from_secs(7);
/// Limit for all NFs to end.
const SHUTDOWN: Duration = Duration::from_secs(6);

/// The managed NFs of a configuration, with programs, users and cores looked up.
#[derive(Debug)]
pub struct Prepared(Vec<PreparedNf>);

#[derive(Debug)]
struct PreparedNf {
    identity: Identity,
    recipe: Arc<Recipe>,
    count: u16,
    may_surge: bool,
}

/// The settings whose change requires a new process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    group: GroupId,
    start: NfStart,
}

#[derive(Debug)]
struct Role {
    identity: Identity,
    recipe: Arc<Recipe>,
    /// Whether a replacement may start before the old process ends.
    may_surge: bool,
    replicas: Vec<Replica>,
}

/// The supervisor.
#[derive(Debug)]
pub struct Supervisor {
    engine: EngineHandle,
    confinement: Arc<Confinement>,
    /// The cores that netvmd may use.
    cores: Vec<u32>,
    /// Whether netvmd can start NFs as other users.
    is_root: bool,
    roles: Mutex<BTreeMap<String, Role>>,
}

impl Supervisor {
    /// A supervisor without NFs.
    #[must_use]
    pub fn new(engine: EngineHandle, confinement: Arc<Confinement>, cores: Vec<u32>) -> Self {
        let is_root = rustix::process::geteuid().is_root();
        Self { engine, confinement, cores, is_root, roles: Mutex::default() }
    }

    /// Looks up programs, users and cores of all managed NFs. Starts nothing.
    ///
    /// # Errors
    /// [`RecipeError`] names the first NF that cannot be started, and the reason.
    pub fn prepare(&self, host: &Host) -> Result<Prepared, RecipeError> {
        let workers = if host.engine.cores.is_empty() {
            self.cores.iter().take(1).copied().collect()
        } else {
            host.engine.cores.clone()
        };
        let managed = host.nfs.iter().filter(|nf| matches!(nf.start, NfStart::Managed { .. }));
        managed.map(|nf| self.prepare_nf(host, nf, &workers)).collect::<Result<_, _>>().map(Prepared)
    }

    fn prepare_nf(&self, host: &Host, nf: &NfConfig, workers: &[u32]) -> Result<PreparedNf, RecipeError> {
        let NfStart::Managed { command, user, replicas, standby, cores, environment, threads } = &nf.start
        else {
            return Err(RecipeError { role: nf.role.clone(), problem: RecipeProblem::NoCommand });
        };
        let recipe = || -> Result<Recipe, RecipeProblem> {
            let account = if self.is_root { Some(Account::find(user)?) } else { None };
            let name = command.first().ok_or(RecipeProblem::NoCommand)?;
            Ok(Recipe {
                role: nf.role.clone(),
                program: Program::find(name, account)?,
                command: command.clone(),
                account,
                environment: environment.clone(),
                threads: *threads,
                cores: CoreSet::choose(cores, workers, &self.cores)?,
            })
        };
        let recipe = recipe().map_err(|problem| RecipeError { role: nf.role.clone(), problem })?;
        let mut start = nf.start.clone();
        if let NfStart::Managed { replicas, standby, .. } = &mut start {
            (*replicas, *standby) = (0, 0);
        }
        let identity = Identity { group: nf.group, start };
        // With a standby, the additional process would also be a standby and not take over.
        let may_surge =
            *standby == 0 && threads_of(host, nf.group) + usize::from(*threads) <= MAX_GROUP_THREADS;
        let count = replicas.saturating_add(*standby);
        Ok(PreparedNf { identity, recipe: Arc::new(recipe), count, may_surge })
    }

    /// The state of every process, by role and slot.
    #[must_use]
    pub fn status(&self) -> Vec<Status> {
        let replicas =
            |role: &Role| role.replicas.iter().map(|r| r.status.borrow().clone()).collect::<Vec<_>>();
        self.lock().values().flat_map(replicas).collect()
    }

    /// The number of processes of a role.
    #[must_use]
    pub fn count(&self, role: &str) -> usize {
        self.lock().get(role).map_or(0, |role| role.replicas.len())
    }

    /// Restarts the processes of a role one after another, as after a change of the configuration.
    pub async fn restart(&self, role: &str) {
        for n in 0..self.count(role) {
            let renewal = {
                let mut roles = self.lock();
                roles.get_mut(role).and_then(|known| known.renew(n, role, self))
            };
            let Some(mut renewal) = renewal else { return };
            let came_up =
                timeout(START_TIMEOUT, renewal.startup.outcome()).await.is_ok_and(|outcome| outcome.is_ok());
            if !came_up {
                tracing::warn!("nf {role}: the new process failed to start");
            }
            self.settle(renewal, came_up);
        }
    }

    /// Stops all processes in order and returns when they have ended.
    pub async fn shut_down(&self) {
        let roles = std::mem::take(&mut *self.lock());
        let replicas: Vec<Replica> = roles.into_values().flat_map(|role| role.replicas).collect();
        replicas.iter().for_each(Replica::stop);
        let all = async {
            for replica in replicas {
                // An error: the task has ended already.
                let _ = replica.task.await;
            }
        };
        if timeout(SHUTDOWN, all).await.is_err() {
            tracing::warn!("some NFs did not end in time; killed them");
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Role>> {
        // After a panic, the map is still consistent.
        self.roles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The threads of all managed NFs in a trust group.
fn threads_of(host: &Host, group: GroupId) -> usize {
    let threads = |nf: &NfConfig| match nf.start {
        NfStart::Managed { replicas, standby, threads, .. } => {
            (usize::from(replicas) + usize::from(standby)) * usize::from(threads)
        }
        NfStart::External { .. } => 0,
    };
    host.nfs.iter().filter(|nf| nf.group == group).map(threads).sum()
}
