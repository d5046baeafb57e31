//! The daemon as a whole: what it consists of, in which order that comes up, and in which it ends.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_config::model::{Host, NfStart};
use netvm_config::{ConfigError, Finding};
use netvm_engine::{Engine, InstanceId};
use tokio::sync::Notify;

use crate::api::{self, ServeError};
use crate::apply::ApplyError;
use crate::attach_server::{AttachServer, Externals, ListenError};
use crate::engine_thread::{EngineGone, EngineHandle, EngineThread, EngineThreadError};
use crate::load::Load;
use crate::notices::Reclaims;
use crate::notify;
use crate::policy::RuleChanges;
use crate::routers::Routers;
use crate::rundir::{RunDir, RunDirError};
use crate::signals::{Request, Signals};
use crate::supervisor::{Confinement, FilterError, Supervisor, allowed_cores};
use crate::vms::Machines;

/// How long NFs that attached by themselves may take to leave when netvmd ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// Where everything is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The configuration file.
    pub config: PathBuf,
    /// Folder of the lock and, unless said otherwise, of the sockets.
    pub run_dir: PathBuf,
    /// The API's socket; `None`: `api.sock` in the run directory.
    pub socket: Option<PathBuf>,
    /// The attach socket; `None`: `attach.sock` in the run directory.
    pub attach: Option<PathBuf>,
}

/// Why the daemon could not start, or had to end.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The first configuration.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The run directory.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// The engine did not start.
    #[error(transparent)]
    Start(#[from] EngineThreadError),
    /// The engine's thread has ended.
    #[error(transparent)]
    Gone(#[from] EngineGone),
    /// The attach socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The API's socket.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The filter of system calls.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// Signals, or the cores of this process.
    #[error("{what}: {source}")]
    System {
        /// What was asked of the kernel.
        what: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
}

impl DaemonError {
    /// What is wrong in the configuration, where that is the reason.
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

/// The running daemon, as its parts see each other.
#[derive(Debug)]
pub struct Daemon {
    pub(crate) options: Options,
    pub(crate) engine: EngineHandle,
    pub(crate) supervisor: Supervisor,
    pub(crate) machines: Machines,
    pub(crate) routers: Routers,
    pub(crate) attach: Arc<AttachServer>,
    /// Held while a configuration is applied.
    pub(crate) changing: tokio::sync::Mutex<()>,
    /// What changes single rules.
    pub(crate) rules: RuleChanges,
    pub(crate) reclaims: Reclaims,
    pub(crate) load: Load,
    pub(crate) started: Instant,
    pub(crate) end: Notify,
}

impl Daemon {
    /// What the engine is now.
    pub(crate) async fn running(&self) -> Result<Arc<Host>, EngineGone> {
        self.engine.call(|engine| engine.shared_host()).await
    }

    /// NFs that netvmd does not start as processes: those that have attached by themselves, and those in VMs.
    pub(crate) fn externals(&self) -> Externals {
        self.machines.attached(self.attach.externals())
    }

    /// Asks the daemon to end in order.
    pub(crate) fn end(&self) {
        self.end.notify_one();
    }

    async fn shut_down(&self) {
        let externals: Vec<InstanceId> = self.attach.externals().into_keys().collect();
        self.engine.tell(move |engine| externals.into_iter().for_each(|id| engine.dismiss(id)));
        let gone = async {
            while !self.attach.externals().is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let others = tokio::time::timeout(SHUTDOWN_TIMEOUT, gone);
        let all = tokio::join!(self.supervisor.shut_down(), self.machines.say_farewell(), others);
        if all.2.is_err() {
            tracing::warn!(
                "some NFs that attached by themselves have not left: they will see that netvmd has gone"
            );
        }
    }
}

/// Runs the daemon until it is told to end.
///
/// To be called on the main thread's own current-thread runtime: processes of NFs live as long as the thread that
/// starts them.
///
/// # Errors
/// [`DaemonError`] when it could not start, or lost its engine.
pub async fn run(mut options: Options) -> Result<(), DaemonError> {
    let system = |what| move |source| DaemonError::System { what, source };
    // For clients, which are elsewhere.
    options.config = std::path::absolute(&options.config).map_err(system("finding the configuration"))?;
    let mut signals = Signals::listen().map_err(system("listening to signals"))?;
    let loaded = netvm_config::load(&options.config)?;
    for warning in &loaded.warnings {
        tracing::warn!("{}", in_one_line(warning));
    }
    let mut host = loaded.host;
    netvm_config::assign_ids(&mut host, None);
    let mut run_dir = RunDir::take(&options.run_dir)?;
    let socket = options.socket.clone().unwrap_or_else(|| run_dir.path().join("api.sock"));
    let attach_socket = options.attach.clone().unwrap_or_else(|| run_dir.path().join("attach.sock"));
    run_dir.claim(&socket)?;
    run_dir.claim(&attach_socket)?;

    let cores = allowed_cores().map_err(system("asking for the cores that netvmd may use"))?;
    let confinement = Arc::new(Confinement::prepare()?);
    say_what_is_missing(&host, &confinement);
    let reclaims = Reclaims::default();
    let heard = reclaims.clone();
    let on_notice = move |engine: &Engine, notice| heard.hear(engine, notice);
    let (engine, mut thread) = EngineThread::start(host.engine.clone(), may_have_nics(), on_notice).await?;
    let machines =
        Machines::new(engine.clone(), run_dir.path().to_owned(), Arc::clone(&confinement), cores.clone());
    let supervisor = Supervisor::new(engine.clone(), confinement, cores);
    let routers =
        Routers::new(engine.clone(), run_dir.path()).map_err(system("starting to follow routers"))?;
    let attach = AttachServer::start(engine.clone(), &attach_socket)?;
    let daemon = Arc::new(Daemon {
        load: Load::start(&engine).await?,
        options,
        engine: engine.clone(),
        supervisor,
        machines,
        routers,
        attach,
        changing: tokio::sync::Mutex::default(),
        rules: RuleChanges::default(),
        reclaims,
        started: Instant::now(),
        end: Notify::new(),
    });
    let ended = match daemon.apply_first(&host).await {
        Ok(()) => serve(&daemon, &socket, &mut signals, &mut thread).await,
        Err(error) => Err(error.into()),
    };
    notify::tell(notify::STOPPING);
    daemon.shut_down().await;
    engine.end();
    thread.join();
    daemon.routers.remove();
    drop(run_dir);
    ended
}

async fn serve(
    daemon: &Arc<Daemon>,
    socket: &std::path::Path,
    signals: &mut Signals,
    thread: &mut EngineThread,
) -> Result<(), DaemonError> {
    let server = api::serve(Arc::clone(daemon), socket)?;
    tracing::info!("netvmd {} serves on {}", env!("CARGO_PKG_VERSION"), socket.display());
    notify::tell(notify::READY);
    let compiling = daemon.keep_compiled();
    tokio::pin!(compiling);
    let outcome = loop {
        tokio::select! {
            () = &mut compiling => {}
            request = signals.next() => match request {
                Request::End => break Ok(()),
                Request::Reload => {
                    let daemon = Arc::clone(daemon);
                    tokio::spawn(async move { reload(&daemon).await });
                }
            },
            () = daemon.end.notified() => break Ok(()),
            () = thread.ended() => break Err(EngineGone.into()),
        }
    };
    tracing::info!("netvmd ends");
    server.stop().await;
    outcome
}

async fn reload(daemon: &Daemon) {
    match daemon.reload(&daemon.options.config).await {
        Ok(done) => tracing::info!(
            "{} applied again: {} changes",
            daemon.options.config.display(),
            done.plan.changes.len()
        ),
        Err(ApplyError::Config(error)) => {
            error.findings().iter().for_each(|finding| tracing::error!("{}", in_one_line(finding)));
            tracing::error!("not applied: {error}");
        }
        Err(error) => tracing::error!("{}: {error}", daemon.options.config.display()),
    }
}

/// A finding for the log.
fn in_one_line(finding: &Finding) -> String {
    let remedy = finding.remedy().map_or(String::new(), |remedy| format!(" ({remedy})"));
    format!("{}:{}: {}{remedy}", finding.file(), finding.position().0, finding.message())
}

fn say_what_is_missing(host: &Host, confinement: &Confinement) {
    let managed = |start: &NfStart| matches!(start, NfStart::Managed { .. });
    if !host.nfs.iter().any(|nf| managed(&nf.start)) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        tracing::warn!("netvmd is not root: NFs run as the same user as netvmd, whatever `user` says");
    }
    if !confinement.has_landlock() {
        tracing::info!("this kernel has no Landlock: give NFs of different trust groups different users");
    }
}

/// Whether looking for NICs makes sense.
fn may_have_nics() -> bool {
    rustix::process::geteuid().is_root() && std::path::Path::new("/sys/bus/pci/devices").is_dir()
}
