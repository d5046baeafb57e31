// SPDX-License-Identifier: Apache-2.0
//! What happens to connections and to ports of NAT, for a log and for clients that watch. In: events from the rings of
//! the workers' tables. Out: JSON lines, and IPFIX records of NAT (RFC 8158).
//!
//! ```text
//!  worker ══ ring ══▶ reader ──▶ clients that watch: each loses what it is too slow for
//!                       ├─ bounded queue ──▶ writer ──▶ file: what a full or slow disk does not take is lost
//!                       └─ bounded queue ──▶ exporter ──▶ collector: what it does not get, as it is away, is lost
//! ```
//!
//! Workers note events only while there is a log, or a client watches. What is lost is counted, and disturbs nothing
//! else: a ring that is full costs its worker nothing.

mod collector;
mod file;
mod line;
mod nat;
mod reader;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle, Thread};

use axum::body::Bytes;
use netvm_flowmon::export::View;
use netvm_model::{ConnectionsConfig, LogSubject};
use tokio::sync::broadcast;

use crate::engine_thread::{EngineHandle, PortsClosed};
use crate::runtime::lock;
use collector::Collector;
use file::LogFile;
use reader::{Outputs, Reader};

/// Lines that wait for a client that watches.
const MAX_QUEUED: usize = 4096;

/// What the threads and clients share.
#[derive(Debug)]
struct Shared {
    /// Gets each line.
    watchers: broadcast::Sender<Bytes>,
    /// Lines in the file.
    lines: AtomicU64,
    /// Lines that the file has not got.
    lost: AtomicU64,
    /// Why, if the kernel said so.
    fault: Mutex<Option<String>>,
    /// The file is to be opened again.
    reopens: AtomicBool,
    /// The exporter of events of NAT, if there is one.
    exporter: OnceLock<View>,
    /// Events of NAT that it was too slow for.
    unqueued: AtomicU64,
    is_ending: AtomicBool,
    reader: OnceLock<Thread>,
}

impl Shared {
    fn new() -> Self {
        Self {
            watchers: broadcast::Sender::new(MAX_QUEUED),
            lines: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            fault: Mutex::default(),
            reopens: AtomicBool::new(false),
            exporter: OnceLock::new(),
            unqueued: AtomicU64::new(0),
            is_ending: AtomicBool::new(false),
            reader: OnceLock::new(),
        }
    }

    fn wake(&self) {
        if let Some(reader) = self.reader.get() {
            reader.unpark();
        }
    }

    fn note_lost(&self, lines: u64, fault: Option<String>) {
        self.lost.fetch_add(lines, Ordering::Relaxed);
        *lock(&self.fault) = fault;
    }

    fn counts(&self) -> LogCounts {
        let exported = self.exporter.get().map(View::totals).unwrap_or_default();
        LogCounts {
            lines: self.lines.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            nat_events: exported.exported,
            nat_events_lost: exported.lost + self.unqueued.load(Ordering::Relaxed),
        }
    }
}

/// What became of the log so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogCounts {
    /// Lines in the file.
    pub(crate) lines: u64,
    /// Lines that it has not got.
    pub(crate) lost: u64,
    /// Events of NAT that were sent to the collector.
    pub(crate) nat_events: u64,
    /// Those that it has not got.
    pub(crate) nat_events_lost: u64,
}

/// What happens to connections, for clients.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionEvents(Arc<Shared>);

impl ConnectionEvents {
    /// The lines to come.
    pub(crate) fn watch(&self) -> broadcast::Receiver<Bytes> {
        let coming = self.0.watchers.subscribe();
        self.0.wake();
        coming
    }

    /// What became of the log so far.
    pub(crate) fn counts(&self) -> LogCounts {
        self.0.counts()
    }
}

/// The threads of the log.
#[derive(Debug)]
pub(crate) struct ConnectionLog {
    shared: Arc<Shared>,
    reader: JoinHandle<()>,
}

impl ConnectionLog {
    /// Starts them. A file that cannot be opened is tried again later.
    ///
    /// # Errors
    /// The kernel's, if there is no thread.
    pub(crate) fn start(config: &ConnectionsConfig, engine: &EngineHandle) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::new());
        let log = config.log.clone().unwrap_or_default();
        let file = log.file.as_deref().map(|path| LogFile::start(path, &shared)).transpose()?;
        let collector = log.collector.map(Collector::start).transpose().map_err(std::io::Error::other)?;
        if let Some(collector) = &collector {
            // Nobody else sets it.
            let _ = shared.exporter.set(collector.view());
        }
        let all_connections = log.what.contains(&LogSubject::Connections);
        let outputs = Outputs { file, collector, all_connections };
        let mut reader = Reader::new(engine.clone(), Arc::clone(&shared), outputs);
        let reader = thread::Builder::new().name("netvm-conn-log".into()).spawn(move || reader.run())?;
        // Nobody else sets it.
        let _ = shared.reader.set(reader.thread().clone());
        Ok(Self { shared, reader })
    }

    /// For clients.
    pub(crate) fn events(&self) -> ConnectionEvents {
        ConnectionEvents(Arc::clone(&self.shared))
    }

    /// Opens the file again, after it was moved away.
    pub(crate) fn reopen(&self) {
        self.shared.reopens.store(true, Ordering::Relaxed);
    }

    /// Writes what is left.
    pub(crate) fn end(self, _: PortsClosed) {
        self.shared.is_ending.store(true, Ordering::Relaxed);
        self.shared.wake();
        // A panic of the thread has been printed.
        let _ = self.reader.join();
    }
}
