// SPDX-License-Identifier: Apache-2.0
//! netvmd from its start to its end.

mod adapt;
mod lock;
mod reconcile;
mod rundir;
mod running;
mod service;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use netvm_api::Role;
use netvm_config::ConfigError;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, umask};

use crate::api::ServeError;
use crate::attach::ListenError;
use crate::daemon::{ApplyError, Configuration, First, Options};
use crate::engine_thread::{EngineGone, EngineThreadError};
use crate::fleet::{self, FleetError};
use crate::lookup::Lookup;
use crate::process::FilterError;
use rundir::{RunDir, RunDirError, check_owner};
use running::RunningDaemon;
use service::Signals;

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
    /// The host cannot follow etcd.
    #[error(transparent)]
    Fleet(#[from] FleetError),
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
        source: io::Error,
    },
    /// Signals or the CPU affinity cannot be used.
    #[error("{what}: {source}")]
    System {
        /// The step that failed.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl DaemonError {
    /// The error of a step.
    fn of(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }

    /// The configuration's error, if that is the reason.
    #[must_use]
    pub const fn configuration(&self) -> Option<&ConfigError> {
        match self {
            Self::Apply(ApplyError::Config(error)) | Self::Fleet(FleetError::Config(error)) => Some(error),
            _ => None,
        }
    }
}

impl From<ConfigError> for DaemonError {
    fn from(error: ConfigError) -> Self {
        Self::Apply(error.into())
    }
}

/// How long files are kept without a netvmd. QEMU waits 5 s for a register before it takes the card for dead, and
/// systemd starts netvmd again after 1 s.
const KEEP_FILES_FOR: Duration = Duration::from_secs(10);

/// What the process does that keeps the files of guests' e1000 cards for the next netvmd.
///
/// # Errors
/// Standard input is no listening socket.
pub fn keep_files() -> Result<(), Errno> {
    netvm_fd_store::serve(io::stdin(), KEEP_FILES_FOR)
}

/// From now on, only owner and group may write to files and connect to sockets that this process creates, unless netvmd
/// permits more, whatever the umask of the process that started netvmd.
pub fn protect_new_files() {
    let before = umask(Mode::WOTH);
    umask(before | Mode::WOTH);
}

/// Arenas of the C library's allocator. Each keeps what was freed in it, and by default there are eight for each core:
/// changes of the configuration, which need some MB on whichever thread, would leave these MB in each. Two are enough,
/// as workers do not allocate.
#[cfg(target_env = "gnu")]
const ARENAS: libc::c_int = 2;

/// Bounds the memory that the allocator keeps.
fn bound_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: this sets a number of the allocator, which any thread may do at any time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
    }
}

/// Enough open files for all peers.
const OPEN_FILES: u64 = 65_536;

/// Raises the limit of open files as far as the kernel permits, up to [`OPEN_FILES`]: peers must not use up the
/// descriptors that the API needs.
fn allow_many_files() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(OPEN_FILES).min(OPEN_FILES);
    if limit.current.is_none_or(|current| current >= most) {
        return Ok(());
    }
    Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit })?)
}

/// Runs the daemon until a signal or the API stops it. What starts is a value that owns or needs what started before
/// it, so that it stops earlier, also if a step fails.
///
/// Call on the main thread's current-thread runtime: NF processes die with the thread that started them.
///
/// # Errors
/// [`DaemonError`] if it cannot start or loses its engine.
pub async fn run(mut options: Options) -> Result<(), DaemonError> {
    bound_arenas();
    // Absolute, for clients in other folders.
    options.config = std::path::absolute(&options.config)
        .map_err(DaemonError::of("cannot resolve the path of the configuration"))?;
    if let Err(error) = allow_many_files() {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
    let mut signals = Signals::listen().map_err(DaemonError::of("cannot handle signals"))?;
    let lookup = Lookup::new().map_err(DaemonError::of("cannot read the CPU affinity"))?;
    let state_dir = options.state_dir();
    if state_dir.exists() {
        check_owner(&state_dir, "--state-dir")?;
    }
    fleet::prepare(&options).await?;
    let first = First::read(&options, &lookup)?;
    let mut run_dir = RunDir::take(&options.run_dir)?;
    let of_groups = [Role::View, Role::Capture, Role::Operate].map(|role| options.group_socket(role));
    for socket in [options.api_socket(), options.attach_socket()].iter().chain(&of_groups) {
        run_dir.claim(socket)?;
    }
    let configuration = Configuration::open(options, lookup, first.warning.clone())
        .map_err(|source| DaemonError::State { path: state_dir, source })?;
    configuration.live().set_problems(first.live.clone());
    let mut daemon = RunningDaemon::start(run_dir, configuration, &first.host).await?;
    let ended = daemon.serve(&first, &mut signals).await;
    daemon.stop().await;
    ended
}
