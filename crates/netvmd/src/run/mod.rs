//! Starts the daemon's parts in order, runs its main loop, and shuts everything down.

mod absent;
mod closed_ports;
mod folders;
mod interfaces;
mod kept_files;
mod lock;
mod rundir;
mod service;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use netvm_api::EventKind;
use netvm_config::ConfigError;
use netvm_engine::{Engine, keep_cards_in};
use netvm_model::{Host, NfStart};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::api::{self, ServeError};
use crate::attach::{AttachServer, ListenError};
use crate::daemon::{
    ApplyError, Configuration, Daemon, First, FlowExport, Options, Reclaims, Services, Statistics,
};
use crate::engine_thread::{EngineGone, EngineThread, EngineThreadError};
use crate::events::Events;
use crate::lookup::Lookup;
use crate::process::cores::allowed;
use crate::process::{Confinement, FilterError};
use crate::routers::Routers;
use crate::supervisor::Supervisor;
use crate::vms::Machines;
use kept_files::store_in;
use rundir::{RunDir, RunDirError, check_owner};
use service::{Request, Signals};

pub use kept_files::{keep_files, protect_new_files};
pub use service::{Logging, start_logging};

/// The daemon cannot start, or cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The first configuration failed.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The run directory cannot be used.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// The engine did not start.
    #[error(transparent)]
    Start(#[from] EngineThreadError),
    /// The engine's thread has ended.
    #[error(transparent)]
    Gone(#[from] EngineGone),
    /// The attach socket cannot be served.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The API cannot be served.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The system call filter cannot be compiled.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// The state directory cannot be used.
    #[error("cannot use the state directory {}: {source} (choose another with --state-dir)", path.display())]
    State {
        /// The directory.
        path: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// Signals or the CPU affinity cannot be used.
    #[error("{what}: {source}")]
    System {
        /// The step that failed.
        what: &'static str,
        /// The kernel's error.
        source: std::io::Error,
    },
}

impl DaemonError {
    /// The configuration's error, if that is the reason.
    #[must_use]
    pub const fn configuration(&self) -> Option<&ConfigError> {
        match self {
            Self::Apply(ApplyError::Config(error)) => Some(error),
            _ => None,
        }
    }
}

impl From<ConfigError> for DaemonError {
    fn from(error: ConfigError) -> Self {
        Self::Apply(error.into())
    }
}

/// Enough open files for all peers.
const OPEN_FILES: u64 = 65_536;

/// Raises the limit of open files as far as the kernel permits, up to [`OPEN_FILES`]: peers must not use up the descriptors
/// that the API needs.
fn allow_many_files() -> std::io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(OPEN_FILES).min(OPEN_FILES);
    if limit.current.is_none_or(|current| current >= most) {
        return Ok(());
    }
    Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit })?)
}

/// Runs the daemon until a signal or the API stops it.
///
/// Call on the main thread's current-thread runtime: NF processes die with the thread that started them.
///
/// # Errors
/// [`DaemonError`] if it cannot start or loses its engine.
pub async fn run(mut options: Options) -> Result<(), DaemonError> {
    let system = |what| move |source| DaemonError::System { what, source };
    // Absolute, for clients in other folders.
    options.config = std::path::absolute(&options.config)
        .map_err(system("cannot resolve the path of the configuration"))?;
    if let Err(error) = allow_many_files() {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
    let mut signals = Signals::listen().map_err(system("cannot handle signals"))?;
    let lookup = Lookup::new().map_err(system("cannot read the CPU affinity"))?;
    let state_dir = options.state_dir();
    if state_dir.exists() {
        check_owner(&state_dir, "--state-dir")?;
    }
    // Before anything is created.
    let first = First::read(&options, &lookup)?;
    let host = &first.host;
    let mut run_dir = RunDir::take(&options.run_dir)?;
    let (socket, attach_socket) = (options.api_socket(), options.attach_socket());
    run_dir.claim(&socket)?;
    run_dir.claim(&attach_socket)?;
    keep_cards_in(store_in(run_dir.path()));
    let configuration = Configuration::open(options, lookup, first.warning.clone())
        .map_err(|source| DaemonError::State { path: state_dir, source })?;

    let cores = allowed().map_err(system("cannot read the CPU affinity"))?;
    let confinement = Arc::new(Confinement::prepare()?);
    warn_about_isolation(host, &confinement);
    let (events, reclaims) = (Events::default(), Reclaims::default());
    tokio::spawn(events.clone().keep_flushing());
    let (noted, recorder) = (events.clone(), reclaims.clone());
    let on_notice = move |engine: &Engine, notice| recorder.record(&noted, engine, notice);
    let mut thread = EngineThread::start(host.engine.clone(), may_have_nics(), events, on_notice).await?;
    let engine = thread.handle().clone();
    let flows = FlowExport::start(host.engine.flow_monitor.as_ref(), &engine).await?;
    let machines =
        Machines::new(engine.clone(), run_dir.path().to_owned(), Arc::clone(&confinement), cores.clone());
    let supervisor = Supervisor::new(engine.clone(), confinement, cores);
    let routers = Routers::new(engine.clone(), run_dir.path(), run_dir.record_lock())
        .map_err(system("cannot start the thread that follows routers"))?;
    let attach = AttachServer::start(engine.clone(), &attach_socket)?;
    let services = Services { supervisor, attach, machines, routers };
    let statistics = Statistics::start(&engine, reclaims, flows.view()).await?;
    let daemon = Arc::new(Daemon::new(engine, configuration, services, statistics));
    let ended = match daemon.apply_first(&first).await {
        Ok(()) => serve((&daemon, &flows), &socket, &mut signals, &mut thread).await,
        Err(error) => Err(error.into()),
    };
    service::notify(service::STOPPING);
    // The engine closes its ports.
    let _expedited = daemon.routers().expedite(&[]);
    daemon.end_nfs().await;
    drop(thread);
    flows.end().await;
    daemon.end_routers();
    drop(run_dir);
    ended
}

async fn serve(
    (daemon, flows): (&Arc<Daemon>, &FlowExport),
    socket: &Path,
    signals: &mut Signals,
    thread: &mut EngineThread,
) -> Result<(), DaemonError> {
    let server = api::serve(Arc::clone(daemon), socket)?;
    let message = format!("netvmd {} serves its API on {}", env!("CARGO_PKG_VERSION"), socket.display());
    daemon.engine().events().push(EventKind::Started, "", message);
    service::notify(service::READY);
    let compiling = daemon.rules().keep_compiled();
    let following = interfaces::follow(daemon);
    let retrying = absent::retry(daemon);
    let web = api::follow(daemon);
    tokio::pin!(compiling, following, retrying, web);
    let outcome = loop {
        tokio::select! {
            () = &mut compiling => {}
            () = &mut following => {}
            () = &mut retrying => {}
            () = &mut web => {}
            request = signals.next() => match request {
                Request::End => break Ok(()),
                Request::Reload => {
                    flows.reopen();
                    let daemon = Arc::clone(daemon);
                    tokio::spawn(async move { daemon.reload().await });
                }
            },
            () = daemon.end_requested() => break Ok(()),
            () = thread.ended() => break Err(EngineGone.into()),
        }
    };
    tracing::info!("netvmd stops");
    server.stop().await;
    outcome
}

fn warn_about_isolation(host: &Host, confinement: &Confinement) {
    let managed = |start: &NfStart| matches!(start, NfStart::Managed { .. });
    if !host.nfs.iter().any(|nf| managed(&nf.start)) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        tracing::warn!("netvmd is not root: it ignores `user` and runs NFs as its own user");
    }
    if !confinement.without_cgroups().is_empty() {
        let why = confinement.without_cgroups().join("; ");
        tracing::info!("cannot limit NFs by cgroups, so weaker resource limits (setrlimit) apply: {why}");
    }
    if !confinement.has_landlock() {
        tracing::info!("this kernel has no Landlock: run NFs of different trust groups as different users");
    }
}

/// Whether the EAL should probe PCI devices.
fn may_have_nics() -> bool {
    rustix::process::geteuid().is_root() && Path::new("/sys/bus/pci/devices").is_dir()
}
