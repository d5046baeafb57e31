//! What happens to connections, for a log file and for clients that watch. In: events from the rings of the workers'
//! tables. Out: JSON lines.
//!
//! ```text
//!  worker ══ ring ══▶ reader ──▶ clients that watch: each loses what it is too slow for
//!                       └─ bounded queue ──▶ writer ──▶ file: what a full or slow disk does not take is lost
//! ```
//!
//! Workers note events only while there is a log, or a client watches. What is lost is counted, and disturbs nothing
//! else: a ring that is full costs its worker nothing.

mod file;
mod line;
mod reader;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle, Thread};

use axum::body::Bytes;
use netvm_model::{ConnectionsConfig, LogSubject};
use tokio::sync::broadcast;

use crate::engine_thread::{EngineHandle, PortsClosed};
use crate::runtime::lock;
use file::LogFile;
use reader::Reader;

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
    is_ending: AtomicBool,
    reader: OnceLock<Thread>,
}

impl Shared {
    fn wake(&self) {
        if let Some(reader) = self.reader.get() {
            reader.unpark();
        }
    }

    fn note_lost(&self, lines: u64, fault: Option<String>) {
        self.lost.fetch_add(lines, Ordering::Relaxed);
        *lock(&self.fault) = fault;
    }
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

    /// Lines in the file, and lines that it has not got.
    pub(crate) fn written_and_lost(&self) -> (u64, u64) {
        (self.0.lines.load(Ordering::Relaxed), self.0.lost.load(Ordering::Relaxed))
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
        let shared = Arc::new(Shared {
            watchers: broadcast::Sender::new(MAX_QUEUED),
            lines: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            fault: Mutex::default(),
            reopens: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            reader: OnceLock::new(),
        });
        let log = config.log.as_ref();
        let path = log.and_then(|log| log.file.as_deref());
        let file = path.map(|path: &Path| LogFile::start(path, &shared)).transpose()?;
        let logs_all = log.is_some_and(|log| log.what.contains(&LogSubject::Connections));
        let mut reader = Reader::new(engine.clone(), Arc::clone(&shared), file, logs_all);
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
