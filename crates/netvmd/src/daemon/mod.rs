// SPDX-License-Identifier: Apache-2.0
//! The running daemon: parts that own their state, and the changes of the configuration, which concern all of them.

mod apply;
mod conditions;
mod configuration;
mod connection_log;
mod flows;
mod kept_number;
mod live;
mod refusals;
mod rules;
pub(crate) mod stats;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use netvm_api::{Role, group_socket};
use netvm_fleet::{EtcdArgs, HostName};
use netvm_model::Host;
use tokio::sync::{MutexGuard, Notify};

pub(crate) use apply::VM_START_TIMEOUT;
pub(crate) use conditions::{Conditions, Measured};
pub(crate) use configuration::{ApplyError, BadRevision, Configuration, EtcdStore, First};
pub(crate) use connection_log::{ConnectionEvents, ConnectionLog, LogCounts};
pub(crate) use flows::FlowExport;
pub(crate) use kept_number::{LACP_SYSTEM, MAPPING_KEY, kept_number};
pub(crate) use live::LivePortError;
pub(crate) use rules::{Changed, RuleError, Rules};
pub(crate) use stats::{Reclaims, Statistics};

use crate::attach::{AttachServer, Externals};
use crate::audit::Audit;
use crate::engine_thread::{EngineGone, EngineHandle, PortsClosed};
use crate::programs::Programs;
use crate::routers::Routers;
use crate::runtime::lock;
use crate::supervisor::Supervisor;
use crate::vms::Machines;

/// Paths that netvmd uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The configuration file.
    pub config: PathBuf,
    /// Folder of the lock and, by default, of the sockets.
    pub run_dir: PathBuf,
    /// Folder of the history; `None`: `$STATE_DIRECTORY` of the service manager, else `state` in the run directory.
    pub state_dir: Option<PathBuf>,
    /// The API's socket; `None`: `api.sock` in the run directory.
    pub socket: Option<PathBuf>,
    /// The attach socket; `None`: `attach.sock` in the run directory.
    pub attach: Option<PathBuf>,
    /// The host that this netvmd is in etcd; `None`: it follows no etcd. If it does, the configuration file is the last
    /// good configuration.
    pub fleet: Option<FleetOptions>,
}

/// Which host of a fleet this is, and how its etcd is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetOptions {
    /// How etcd is reached.
    pub etcd: EtcdArgs,
    /// The host's name there.
    pub host: HostName,
}

impl Options {
    /// Folder of the history.
    pub(crate) fn state_dir(&self) -> PathBuf {
        // systemd may name several folders, separated by colons.
        let of_service = || {
            let given = std::env::var("STATE_DIRECTORY").ok().filter(|given| !given.is_empty())?;
            given.split(':').next().map(PathBuf::from)
        };
        self.state_dir.clone().or_else(of_service).unwrap_or_else(|| self.run_dir.join("state"))
    }

    /// The configuration file of a host that follows etcd, unless it has another one.
    #[must_use]
    pub fn last_good(&self) -> PathBuf {
        self.state_dir().join("etcd.toml")
    }

    /// The path of the API's socket.
    pub(crate) fn api_socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| self.run_dir.join("api.sock"))
    }

    /// The path of the socket for the group whose members have a role.
    pub(crate) fn group_socket(&self, role: Role) -> PathBuf {
        self.run_dir.join(group_socket(role))
    }

    /// The path of the attach socket.
    pub(crate) fn attach_socket(&self) -> PathBuf {
        self.attach.clone().unwrap_or_else(|| self.run_dir.join("attach.sock"))
    }
}

/// Held while the configuration changes.
type ChangeLock = Arc<tokio::sync::Mutex<()>>;

/// The services for NFs, VMs and routers, which use the engine.
#[derive(Debug)]
pub(crate) struct Services {
    pub(crate) supervisor: Supervisor,
    pub(crate) attach: Arc<AttachServer>,
    pub(crate) machines: Machines,
    pub(crate) routers: Routers,
    pub(crate) programs: Programs,
}

/// The running daemon.
#[derive(Debug)]
pub struct Daemon {
    engine: EngineHandle,
    changing: ChangeLock,
    configuration: Arc<Configuration>,
    rules: Rules,
    services: Services,
    statistics: Statistics,
    /// Signalled when a configuration has come into force.
    applied: Notify,
    audit: Audit,
    /// Why the web page is not served.
    web_problem: Mutex<Option<String>>,
    /// Why the API is not served to other machines as configured.
    remote_problem: Mutex<Option<String>>,
    /// Why etcd is not followed.
    fleet_problem: Mutex<Option<String>>,
    /// Signalled when a client requests the end.
    end_requested: Notify,
    /// Whether the end removes also routers and guests that the next netvmd would take over.
    purges: AtomicBool,
}

impl Daemon {
    /// A daemon with an engine that runs no configuration yet.
    pub(crate) fn new(
        engine: EngineHandle,
        configuration: Configuration,
        services: Services,
        statistics: Statistics,
    ) -> Self {
        let changing = ChangeLock::default();
        Self {
            audit: Audit::new(engine.events().clone()),
            rules: Rules::new(engine.clone(), Arc::clone(&changing)),
            engine,
            changing,
            configuration: Arc::new(configuration),
            services,
            statistics,
            applied: Notify::new(),
            web_problem: Mutex::default(),
            remote_problem: Mutex::default(),
            fleet_problem: Mutex::default(),
            end_requested: Notify::new(),
            purges: AtomicBool::new(false),
        }
    }

    pub(crate) const fn engine(&self) -> &EngineHandle {
        &self.engine
    }

    pub(crate) const fn configuration(&self) -> &Arc<Configuration> {
        &self.configuration
    }

    pub(crate) const fn rules(&self) -> &Rules {
        &self.rules
    }

    pub(crate) const fn supervisor(&self) -> &Supervisor {
        &self.services.supervisor
    }

    pub(crate) const fn machines(&self) -> &Machines {
        &self.services.machines
    }

    pub(crate) const fn routers(&self) -> &Routers {
        &self.services.routers
    }

    pub(crate) const fn programs(&self) -> &Programs {
        &self.services.programs
    }

    pub(crate) const fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    pub(crate) const fn audit(&self) -> &Audit {
        &self.audit
    }

    /// The configuration that the engine runs.
    pub(crate) async fn running(&self) -> Result<Arc<Host>, EngineGone> {
        self.engine.call(|engine| engine.shared_host()).await
    }

    /// NFs that netvmd does not start as processes: external ones and those in VMs.
    pub(crate) fn externals(&self) -> Externals {
        self.services.machines.attached(self.services.attach.externals())
    }

    /// Excludes changes of the configuration until the result is dropped; `None` if one is in progress.
    pub(crate) fn try_change(&self) -> Option<MutexGuard<'_, ()>> {
        self.changing.try_lock().ok()
    }

    /// Waits until a configuration comes into force.
    pub(crate) async fn applied(&self) {
        self.applied.notified().await;
    }

    /// Restarts the processes of a role one after another, not beside a change, which may restart the same ones.
    pub(crate) async fn restart(&self, role: &str) {
        let _changing = self.changing.lock().await;
        self.services.supervisor.restart(role).await;
    }

    /// Why the web page is not served.
    pub(crate) fn web_problem(&self) -> Option<String> {
        lock(&self.web_problem).clone()
    }

    /// Logs and stores why the web page is not served.
    pub(crate) fn note_web_problem(&self, problem: Option<String>) {
        note(&self.web_problem, problem);
    }

    /// Why the API is not served to other machines as configured.
    pub(crate) fn remote_problem(&self) -> Option<String> {
        lock(&self.remote_problem).clone()
    }

    /// Logs and stores it.
    pub(crate) fn note_remote_problem(&self, problem: Option<String>) {
        note(&self.remote_problem, problem);
    }

    /// Why etcd is not followed.
    pub(crate) fn fleet_problem(&self) -> Option<String> {
        lock(&self.fleet_problem).clone()
    }

    /// Logs and stores it.
    pub(crate) fn note_fleet_problem(&self, problem: Option<String>) {
        note(&self.fleet_problem, problem);
    }

    /// Requests an orderly shutdown.
    pub(crate) fn end(&self, purges: bool) {
        self.purges.store(purges, Ordering::Relaxed);
        self.end_requested.notify_one();
    }

    /// Whether nothing is to be left to the next netvmd.
    pub(crate) fn purges(&self) -> bool {
        self.purges.load(Ordering::Relaxed)
    }

    /// Waits until a client requests the end.
    pub(crate) async fn end_requested(&self) {
        self.end_requested.notified().await;
    }

    /// Tells all NFs to end, and returns when they have ended, or their time is over. Ordinary guests keep running.
    pub(crate) async fn end_nfs(&self) {
        let Services { supervisor, attach, machines, programs, .. } = &self.services;
        tokio::join!(supervisor.shut_down(), machines.shut_down(), attach.shut_down(), programs.shut_down());
    }

    /// Removes the namespaces of programs, and the routers, or leaves these to the next netvmd.
    pub(crate) fn end_routers(&self, closed: PortsClosed) {
        self.services.programs.remove_places();
        self.services.routers.end(closed, self.purges());
    }
}

/// Stores a problem, and logs it if it is new.
fn note(known: &Mutex<Option<String>>, problem: Option<String>) {
    let mut known = lock(known);
    if let Some(problem) = problem.as_ref().filter(|_| *known != problem) {
        tracing::warn!("{problem}");
    }
    *known = problem;
}
