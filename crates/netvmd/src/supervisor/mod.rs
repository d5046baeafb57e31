//! NFs that netvmd starts: as many processes of each as the configuration says, each in its sandbox, each started again
//! when it ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use netvm_config::model::{GroupId, Host, NfConfig, NfStart};
use tokio::time::timeout;

mod account;
mod backoff;
mod cores;
mod landlock;
mod output;
mod program;
mod reconcile;
mod replica;
mod sandbox;
mod seccomp;
mod spawn;

pub use account::Account;
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
    pub fn new(engine: EngineHandle, confinement: Confinement, cores: Vec<u32>) -> Self {
        let is_root = rustix::process::geteuid().is_root();
        Self { engine, confinement: Arc::new(confinement), cores, is_root, roles: Mutex::default() }
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
        managed.map(|nf| self.prepare_nf(nf, &workers)).collect::<Result<_, _>>().map(Prepared)
    }

    fn prepare_nf(&self, nf: &NfConfig, workers: &[u32]) -> Result<PreparedNf, RecipeError> {
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
        Ok(PreparedNf { identity, recipe: Arc::new(recipe), count: replicas.saturating_add(*standby) })
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

    /// Ends the processes of a role and starts them anew, one after another. One that does not come up does not keep the
    /// others from their turn.
    pub async fn restart(&self, role: &str) {
        for n in 0..self.count(role) {
            let news = self.lock().get(role).and_then(|role| Some(role.replicas.get(n)?.restart()));
            if let Some(mut news) = news {
                // Its failures are in the log.
                let _ = timeout(COMING_UP, news.outcome()).await;
            }
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
