//! NFs that netvmd starts: as many processes of each as the configuration says, each in its sandbox, each started again
//! when it ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use netvm_config::model::{GroupId, Host, MAX_GROUP_THREADS, NfConfig, NfStart};
use tokio::time::timeout;

mod account;
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

pub use account::{Account, AccountError};
pub use cores::allowed as allowed_cores;
pub use replica::{News, Phase, Status};
pub use sandbox::Confinement;
pub use seccomp::FilterError;
pub use spawn::RecipeError;

use crate::engine_thread::EngineHandle;
use cores::CoreSet;
use program::Program;
use replica::Replica;
use spawn::{Recipe, RecipeProblem};

/// How long an NF may take to attach before it is taken for one that does not.
pub const COMING_UP: Duration = Duration::from_secs(7);
/// How long all NFs together may take to end.
const SHUTDOWN: Duration = Duration::from_secs(6);

/// What the managed NFs of a host need, checked and found.
#[derive(Debug)]
pub struct Prepared(Vec<PreparedNf>);

#[derive(Debug)]
struct PreparedNf {
    identity: Identity,
    recipe: Arc<Recipe>,
    count: u16,
    may_surge: bool,
}

/// What, when it differs, makes a running process the wrong one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    group: GroupId,
    start: NfStart,
}

#[derive(Debug)]
struct Role {
    identity: Identity,
    recipe: Arc<Recipe>,
    /// Whether there may be one process more than there should be, while one takes another's place.
    may_surge: bool,
    replicas: Vec<Replica>,
}

/// The supervisor.
#[derive(Debug)]
pub struct Supervisor {
    engine: EngineHandle,
    confinement: Arc<Confinement>,
    /// Cores that this process may use.
    cores: Vec<u32>,
    /// Whether NFs can be given users of their own.
    is_root: bool,
    roles: Mutex<BTreeMap<String, Role>>,
}

impl Supervisor {
    /// A supervisor with nothing to supervise.
    #[must_use]
    pub fn new(engine: EngineHandle, confinement: Arc<Confinement>, cores: Vec<u32>) -> Self {
        let is_root = rustix::process::geteuid().is_root();
        Self { engine, confinement, cores, is_root, roles: Mutex::default() }
    }

    /// Finds programs, users and cores of all NFs that netvmd is to start. Starts nothing.
    ///
    /// # Errors
    /// [`RecipeError`] names the first NF that cannot be started, and why.
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
        // With a standby the third process would be one, too, and not take over from the first.
        let may_surge =
            *standby == 0 && threads_of(host, nf.group) + usize::from(*threads) <= MAX_GROUP_THREADS;
        let count = replicas.saturating_add(*standby);
        Ok(PreparedNf { identity, recipe: Arc::new(recipe), count, may_surge })
    }

    /// What is known of every process, by role and replica.
    #[must_use]
    pub fn status(&self) -> Vec<Status> {
        let replicas =
            |role: &Role| role.replicas.iter().map(|r| r.status.borrow().clone()).collect::<Vec<_>>();
        self.lock().values().flat_map(replicas).collect()
    }

    /// How many processes netvmd cares for in a role.
    #[must_use]
    pub fn count(&self, role: &str) -> usize {
        self.lock().get(role).map_or(0, |role| role.replicas.len())
    }

    /// Starts the processes of a role anew, one after another, as after a change of the configuration.
    pub async fn restart(&self, role: &str) {
        for n in 0..self.count(role) {
            let renewal = {
                let mut roles = self.lock();
                roles.get_mut(role).and_then(|known| known.renew(n, role, self))
            };
            let Some(mut renewal) = renewal else { return };
            let came_up =
                timeout(COMING_UP, renewal.news.outcome()).await.is_ok_and(|outcome| outcome.is_ok());
            if !came_up {
                tracing::warn!("nf {role}: a new process does not come up");
            }
            self.settle(renewal, came_up);
        }
    }

    /// Ends all processes, in order, and returns when they have gone.
    pub async fn shut_down(&self) {
        let roles = std::mem::take(&mut *self.lock());
        let replicas: Vec<Replica> = roles.into_values().flat_map(|role| role.replicas).collect();
        replicas.iter().for_each(Replica::stop);
        let all = async {
            for replica in replicas {
                // Its task ended some other way: there is nothing to wait for.
                let _ = replica.task.await;
            }
        };
        if timeout(SHUTDOWN, all).await.is_err() {
            tracing::warn!("some NFs have not ended in time: killed");
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Role>> {
        // What a panic left half done is still a list of replicas.
        self.roles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Threads of all processes that netvmd starts in a trust group.
fn threads_of(host: &Host, group: GroupId) -> usize {
    let threads = |nf: &NfConfig| match nf.start {
        NfStart::Managed { replicas, standby, threads, .. } => {
            (usize::from(replicas) + usize::from(standby)) * usize::from(threads)
        }
        NfStart::External { .. } => 0,
    };
    host.nfs.iter().filter(|nf| nf.group == group).map(threads).sum()
}
