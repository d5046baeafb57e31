//! The running daemon's state, and the changes that its API and signals make to it.

mod apply;
mod confirm;
mod drift;
mod flows;
mod history;
mod rules;
mod saving;
pub(crate) mod stats;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use netvm_flowmon::export::View;
use netvm_model::Host;
use tokio::sync::Notify;

pub(crate) use apply::{ApplyError, VM_START_TIMEOUT};
pub(crate) use confirm::{Confirmations, first_text};
pub(crate) use drift::DriftCache;
pub(crate) use flows::FlowExport;
pub(crate) use history::History;
pub(crate) use rules::{Changed, RuleError};
pub(crate) use stats::{LastScrape, Load, Reclaims};

use crate::attach::{AttachServer, Externals};
use crate::engine_thread::{EngineGone, EngineHandle};
use crate::grace::GracePeriods;
use crate::lookup::Lookup;
use crate::routers::Routers;
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
}

impl Options {
    /// Folder of the history.
    #[must_use]
    pub(crate) fn state_dir(&self) -> PathBuf {
        // systemd may name several folders, separated by colons.
        let of_service = || {
            let given = std::env::var("STATE_DIRECTORY").ok().filter(|given| !given.is_empty())?;
            given.split(':').next().map(PathBuf::from)
        };
        self.state_dir.clone().or_else(of_service).unwrap_or_else(|| self.run_dir.join("state"))
    }
}

impl Options {
    /// The path of the API's socket.
    pub(crate) fn api_socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| self.run_dir.join("api.sock"))
    }
}

/// The running daemon's parts.
#[derive(Debug)]
pub struct Daemon {
    pub(crate) options: Options,
    pub(crate) engine: EngineHandle,
    pub(crate) lookup: Lookup,
    pub(crate) supervisor: Supervisor,
    pub(crate) machines: Machines,
    pub(crate) routers: Routers,
    pub(crate) grace_periods: GracePeriods,
    pub(crate) attach: Arc<AttachServer>,
    /// The exporter of flows, if flows are counted.
    pub(crate) flows: Option<View>,
    /// Held while a configuration is applied.
    pub(crate) changing: tokio::sync::Mutex<()>,
    /// The configurations that were applied.
    pub(crate) history: History,
    /// The change that waits for its confirmation.
    pub(crate) confirmations: Confirmations,
    pub(crate) drift: DriftCache,
    /// Why netvmd started with another configuration than that of the file.
    pub(crate) start_warning: Option<String>,
    /// Coordinates changes of single rules.
    pub(crate) rules: RuleChanges,
    pub(crate) reclaims: Reclaims,
    pub(crate) load: Load,
    /// Signalled when a configuration has come into force.
    pub(crate) applied: Notify,
    pub(crate) last_scrape: LastScrape,
    /// Why the web page is not served.
    pub(crate) web_problem: Mutex<Option<String>>,
    pub(crate) started: Instant,
    pub(crate) end: End,
}

impl Daemon {
    /// The configuration that the engine runs.
    pub(crate) async fn running(&self) -> Result<Arc<Host>, EngineGone> {
        self.engine.call(|engine| engine.shared_host()).await
    }

    /// NFs that netvmd does not start as processes: external ones and those in VMs.
    pub(crate) fn externals(&self) -> Externals {
        self.machines.attached(self.attach.externals())
    }

    /// Requests an orderly shutdown.
    pub(crate) fn end(&self, purges: bool) {
        self.end.purges.store(purges, Ordering::Relaxed);
        self.end.requested.notify_one();
    }
}

/// The request of an orderly shutdown.
#[derive(Debug, Default)]
pub(crate) struct End {
    pub(crate) requested: Notify,
    purges: AtomicBool,
}

impl End {
    /// Whether to remove also routers and guests that the next netvmd would take over.
    pub(crate) fn purges(&self) -> bool {
        self.purges.load(Ordering::Relaxed)
    }
}

/// Events between changes of single rules and the background compiler.
#[derive(Debug, Default)]
pub(crate) struct RuleChanges {
    /// Rules have changed since the last compilation.
    pub(super) changed: Notify,
    /// Compile at once: the overlay is filling up.
    pub(super) urgent: Notify,
    /// A compilation has ended, successful or not.
    pub(super) compiled: Notify,
    /// Id of the last added rule.
    pub(super) last_id: AtomicU32,
}
