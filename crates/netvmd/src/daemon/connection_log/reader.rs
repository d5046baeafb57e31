//! The thread that reads events and makes lines of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use netvm_api::EventKind;
use netvm_conntrack::Event;
use netvm_model::Host;
use rtrb::Consumer;

use super::Shared;
use super::file::{Batch, LogFile};
use super::line::{TickTime, described, is_translated};
use crate::engine_thread::EngineHandle;
use crate::runtime::lock;

/// How often the configuration and the rings of new tables are looked for.
const REFRESH_INTERVAL: Duration = Duration::from_millis(250);
/// Pause after rings were empty. Workers fill them ten times a second.
const IDLE_INTERVAL: Duration = Duration::from_millis(20);
/// Interval between reports of lost lines.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Bytes of a batch of lines, about.
const BATCH: usize = 64 << 10;

pub(super) struct Reader {
    engine: EngineHandle,
    shared: Arc<Shared>,
    file: Option<LogFile>,
    /// The file gets all connections, not only translated ones.
    logs_all: bool,
    rings: Vec<Consumer<Event>>,
    host: Arc<Host>,
    batch: Batch,
    /// Lost lines that were reported, and when.
    reported: (u64, Option<Instant>),
}

impl Reader {
    pub(super) fn new(
        engine: EngineHandle,
        shared: Arc<Shared>,
        file: Option<LogFile>,
        logs_all: bool,
    ) -> Self {
        let (rings, host, batch) = (Vec::new(), Arc::default(), Batch::default());
        Self { engine, shared, file, logs_all, rings, host, batch, reported: (0, None) }
    }

    pub(super) fn run(&mut self) {
        let mut refreshed: Option<Instant> = None;
        loop {
            let is_ending = self.shared.is_ending.load(Ordering::Relaxed);
            let are_wanted = self.file.is_some() || self.shared.watchers.receiver_count() > 0;
            if refreshed.is_none_or(|at| at.elapsed() > REFRESH_INTERVAL) {
                self.refresh(are_wanted);
                self.report();
                refreshed = Some(Instant::now());
            }
            let passed = self.pass();
            match (passed, is_ending, are_wanted) {
                (0, true, _) => break,
                (0, false, true) => thread::sleep(IDLE_INTERVAL),
                (0, false, false) => {
                    self.refresh(false);
                    thread::park();
                    refreshed = None;
                }
                _ => {}
            }
        }
        if let Some(file) = self.file.take() {
            file.end();
        }
        self.report();
    }

    /// Gets the configuration, and the rings of tables that were made since.
    fn refresh(&mut self, are_wanted: bool) {
        let read = move |engine: &mut netvm_engine::Engine| {
            (engine.connections().take_events(are_wanted), engine.shared_host())
        };
        // Without an engine, what the rings have is left.
        if let Ok((rings, host)) = self.engine.call_blocking(read) {
            self.rings.extend(rings);
            self.host = host;
        }
    }

    /// Passes on what the rings have. Returns how many events that was.
    fn pass(&mut self) -> usize {
        let now = TickTime::now();
        let (mut passed, mut rings) = (0, std::mem::take(&mut self.rings));
        rings.retain_mut(|ring| {
            // Asked first: what a table that has gone had pushed is here then.
            let has_gone = ring.is_abandoned();
            let there = ring.slots();
            for event in std::iter::from_fn(|| ring.pop().ok()).take(there) {
                self.pass_one(&event, now);
                passed += 1;
            }
            !(has_gone && ring.is_empty())
        });
        self.rings = rings;
        self.write();
        passed
    }

    fn pass_one(&mut self, event: &Event, now: TickTime) {
        let is_logged = self.file.is_some() && (self.logs_all || is_translated(event));
        let is_watched = self.shared.watchers.receiver_count() > 0;
        if !is_logged && !is_watched {
            return;
        }
        // Names and numbers are always JSON.
        let Ok(mut line) = serde_json::to_vec(&described(event, &self.host, now)) else { return };
        line.push(b'\n');
        if is_logged {
            self.batch.text.extend_from_slice(&line);
            self.batch.lines += 1;
            if self.batch.text.len() >= BATCH {
                self.write();
            }
        }
        if is_watched {
            // Fails if the last watcher has just gone.
            let _ = self.shared.watchers.send(Bytes::from(line));
        }
    }

    fn write(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        if let Some(file) = self.file.as_ref().filter(|_| batch.lines > 0) {
            file.write(batch);
        }
    }

    /// Tells of lines that were lost since the last report.
    fn report(&mut self) {
        let lost = self.shared.lost.load(Ordering::Relaxed);
        let (before, at) = self.reported;
        if lost == before || at.is_some_and(|at| at.elapsed() < REPORT_INTERVAL) {
            return;
        }
        self.reported = (lost, Some(Instant::now()));
        let why = lock(&self.shared.fault).take().unwrap_or_else(|| "the disk is too slow".to_owned());
        let message = format!(
            "log of connections: {} lines were lost: {why}. Traffic goes on; `netvm conn stats` counts lost lines",
            lost - before
        );
        self.engine.events().push(EventKind::ConnectionLogLost, "", message);
    }
}
