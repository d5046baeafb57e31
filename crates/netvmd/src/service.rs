//! netvmd as a system service: log lines on standard error, signals, and sd_notify(3) messages to the service manager.

use std::io::{self, IsTerminal, stderr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::Metadata;
use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::filter::{FilterExt, LevelFilter, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::telemetry::{TRACED, Traces};

/// Writes what is left of log lines and traces when it is dropped: keep it until the program ends.
#[derive(Debug)]
pub struct Logging {
    _traces: Option<Traces>,
    _lines: WorkerGuard,
}

/// Starts logging, and traces of changes if the environment names a collector. Each line begins with the UTC time, except
/// under systemd, whose journal adds it. A thread of its own writes the lines, because a full pipe would block the daemon;
/// lines that do not fit its queue are lost.
pub fn start_logging(level: LevelFilter) -> Logging {
    let (writer, guard) = tracing_appender::non_blocking(stderr());
    let lines =
        fmt::layer().compact().with_target(false).with_ansi(stderr().is_terminal()).with_writer(writer);
    let lines = if std::env::var_os("JOURNAL_STREAM").is_some() {
        lines.without_time().boxed()
    } else {
        lines.boxed()
    };
    // A line says by itself what it is about.
    #[allow(clippy::redundant_closure_for_method_calls, reason = "the method is for one lifetime only")]
    let lines = lines.with_filter(level.and(filter_fn(|metadata| metadata.is_event())));
    let (traces, problem) = match Traces::from_environment() {
        Ok(traces) => (traces, None),
        Err(error) => (None, Some(error)),
    };
    let spans = traces.as_ref().map(|traces| {
        let own = |metadata: &Metadata<'_>| metadata.is_span() && metadata.target() == TRACED;
        tracing_opentelemetry::layer()
            .with_tracer(traces.tracer())
            .with_location(false)
            .with_threads(false)
            .with_filter(filter_fn(own))
    });
    // Fails if a logger exists already; that one stays.
    let _ = tracing_subscriber::registry().with(lines).with(spans).try_init();
    if let Some(error) = problem {
        tracing::warn!("no traces are sent: {error}");
    }
    Logging { _traces: traces, _lines: guard }
}

/// A request by signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Shut down (SIGTERM, SIGINT).
    End,
    /// Apply the configuration file again (SIGHUP).
    Reload,
}

/// The signals that netvmd handles.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    /// Installs the handlers; these signals no longer end the process.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// The next request.
    pub async fn next(&mut self) -> Request {
        tokio::select! {
            _ = self.terminate.recv() => Request::End,
            _ = self.interrupt.recv() => Request::End,
            _ = self.hang_up.recv() => Request::Reload,
        }
    }
}

/// State: netvmd serves requests.
pub const READY: &str = "READY=1";
/// State: netvmd shuts down.
pub const STOPPING: &str = "STOPPING=1";

/// Sends a state to the service manager, if `NOTIFY_SOCKET` names one.
pub fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes().split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::warn!("cannot send {state} to the service manager: {error}");
    }
}
