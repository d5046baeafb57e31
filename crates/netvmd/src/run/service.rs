// SPDX-License-Identifier: Apache-2.0
//! netvmd as a system service: log lines on standard error, signals, and sd_notify(3) messages to the service manager.

use std::io::{self, IsTerminal, Write, stderr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::Metadata;
use tracing_subscriber::filter::{FilterExt, LevelFilter, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::telemetry::{TRACED, Traces};

/// Most lines that are queued for a slow reader of the log.
const QUEUED_LINES: usize = 16_384;
/// Time limit for writing the last lines when netvmd ends.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The queue of lines to the thread that writes them.
#[derive(Clone, Debug)]
struct LineQueue(SyncSender<Option<Vec<u8>>>);

impl Write for LineQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // A line that does not fit is lost.
        let _ = self.0.try_send(Some(line.to_vec()));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Waits on drop until the queued lines are written.
#[derive(Debug)]
struct LastLines {
    queue: LineQueue,
    /// Closed when all lines are written.
    written: Receiver<()>,
}

impl Drop for LastLines {
    fn drop(&mut self) {
        // Fails if the queue is full, because the reader has stalled.
        if self.queue.0.try_send(None).is_ok() {
            let _ = self.written.recv_timeout(LAST_LINES);
        }
    }
}

/// Starts the thread that writes lines.
fn write_lines(mut to: impl Write + Send + 'static) -> LastLines {
    let (queue, lines) = sync_channel::<Option<Vec<u8>>>(QUEUED_LINES);
    let (end, written) = sync_channel(0);
    let write = move || {
        while let Ok(Some(line)) = lines.recv() {
            // Standard error is gone, so this error cannot be reported either.
            let _ = to.write_all(in_one_line(&line).as_bytes());
        }
        drop(end);
    };
    if let Err(error) = thread::Builder::new().name("netvm-log".into()).spawn(write) {
        eprintln!("netvmd: cannot start the thread that writes the log: {error}");
    }
    LastLines { queue: LineQueue(queue), written }
}

/// A log line, whatever names and texts of others it has. The colours are those of the logger.
fn in_one_line(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let text = text.strip_suffix('\n').unwrap_or(&text);
    netvm_text::styled(text).replace('\n', "\u{fffd}") + "\n"
}

/// Writes the remaining log lines and traces on drop: keep it until the program ends.
#[derive(Debug)]
pub struct Logging {
    _traces: Option<Traces>,
    _lines: LastLines,
}

/// Starts logging, and traces of changes if the environment names a collector. Each line begins with the UTC time,
/// except under systemd, whose journal adds it. A separate thread writes the lines, because a full pipe would block the
/// daemon. Lines that do not fit into its queue are lost.
pub fn start_logging(level: LevelFilter) -> Logging {
    let last_lines = write_lines(stderr());
    let queue = last_lines.queue.clone();
    let lines = fmt::layer()
        .compact()
        .with_target(false)
        .with_ansi(stderr().is_terminal())
        .with_writer(move || queue.clone());
    let lines = if std::env::var_os("JOURNAL_STREAM").is_some() {
        lines.without_time().boxed()
    } else {
        lines.boxed()
    };
    // A line names its subject itself, so it needs no target.
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
        tracing::warn!("cannot send traces: {error}");
    }
    Logging { _traces: traces, _lines: last_lines }
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Blocks writes until the other end of `gate` is dropped.
    struct Pipe {
        gate: Receiver<()>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Pipe {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let _ = self.gate.recv();
            self.written.lock().unwrap().write(line)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_pipe_loses_lines_and_delays_nobody() {
        let (open, gate) = sync_channel(0);
        let written = Arc::new(Mutex::new(Vec::new()));
        let last_lines = write_lines(Pipe { gate, written: Arc::clone(&written) });
        let mut queue = last_lines.queue.clone();
        for line in 0..QUEUED_LINES + 100 {
            queue.write_all(format!("{line}\n").as_bytes()).unwrap();
        }
        drop(open);
        let count = || written.lock().unwrap().iter().filter(|byte| **byte == b'\n').count();
        netvm_testing::until("the lines are written", || count() >= QUEUED_LINES);
        // The thread may have taken one line out of the queue.
        assert!(count() <= QUEUED_LINES + 1, "{} lines", count());
        queue.write_all(b"the end\n").unwrap();
        drop(last_lines);
        assert!(written.lock().unwrap().ends_with(b"the end\n"), "the last line was not waited for");
    }
}
