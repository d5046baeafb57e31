// SPDX-License-Identifier: Apache-2.0
//! Supervises the NFs that netvmd starts: the configured number of processes of each, in sandboxes, restarted when they
//! end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::timeout;

mod prepare;
mod reconcile;
mod replica;
mod scale;

pub use prepare::Prepared;
pub use replica::{Phase, Startup, Status};

use crate::engine_thread::EngineHandle;
use crate::process::Confinement;
use crate::process::spawn::ProcessSpec;
use crate::runtime::lock;
use prepare::{Identity, PreparedNf, Waiting};
use replica::Replica;
use scale::Scaling;

/// Time limit for a started NF to attach.
pub const START_TIMEOUT: Duration = Duration::from_secs(7);
/// Time limit for all NFs to end.
const SHUTDOWN: Duration = Duration::from_secs(6);

#[derive(Debug)]
struct Role {
    identity: Identity,
    spec: Arc<ProcessSpec>,
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
    waiting: Mutex<Waiting>,
    /// By role: how its number of replicas follows its load.
    scaling: Mutex<BTreeMap<String, Scaling>>,
}

impl Supervisor {
    /// A supervisor without NFs.
    #[must_use]
    pub fn new(engine: EngineHandle, confinement: Arc<Confinement>, cores: Vec<u32>) -> Self {
        let is_root = rustix::process::geteuid().is_root();
        let (roles, waiting, scaling) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { engine, confinement, cores, is_root, roles, waiting, scaling }
    }

    /// The state of every process, by role and slot.
    #[must_use]
    pub fn status(&self) -> Vec<Status> {
        let replicas =
            |role: &Role| role.replicas.iter().map(|r| r.status.borrow().clone()).collect::<Vec<_>>();
        lock(&self.roles).values().flat_map(replicas).collect()
    }

    /// The number of processes of a role.
    #[must_use]
    pub fn count(&self, role: &str) -> usize {
        lock(&self.roles).get(role).map_or(0, |role| role.replicas.len())
    }

    /// Restarts the processes of a role one after another, as after a change of the configuration.
    pub async fn restart(&self, role: &str) {
        for n in 0..self.count(role) {
            let renewal = {
                let mut roles = lock(&self.roles);
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
        let roles = std::mem::take(&mut *lock(&self.roles));
        let replicas: Vec<Replica> = roles.into_values().flat_map(|role| role.replicas).collect();
        replicas.iter().for_each(Replica::stop);
        let all = async {
            for replica in replicas {
                // An error means that the task has ended already.
                let _ = replica.task.await;
            }
        };
        if timeout(SHUTDOWN, all).await.is_err() {
            tracing::warn!("some NFs did not end in time; killed them");
        }
    }
}
