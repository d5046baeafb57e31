// SPDX-License-Identifier: Apache-2.0
//! The thread that reads events, and makes lines and IPFIX records of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use netvm_api::EventKind;
use netvm_engine::LogEvent;
use netvm_model::Host;
use rtrb::Consumer;

use super::Shared;
use super::collector::Collector;
use super::file::{Batch, LogFile};
use super::line::{TickTime, described, is_translated};
use super::nat::nat_event;
use crate::engine_thread::EngineHandle;
use crate::runtime::lock;

/// How often the configuration and the rings of new tables are looked for.
const REFRESH_INTERVAL: Duration = Duration::from_millis(250);
/// Pause after rings were empty. Workers fill them ten times a second.
const IDLE_INTERVAL: Duration = Duration::from_millis(20);
/// Interval between reports of what was lost.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Bytes of a batch of lines, about.
const BATCH: usize = 64 << 10;

/// Where events go, besides clients that watch.
pub(super) struct Outputs {
    pub(super) file: Option<LogFile>,
    pub(super) collector: Option<Collector>,
    /// All connections are logged, not only translated ones, and also those that have a port of a block.
    pub(super) all_connections: bool,
}

impl Outputs {
    const fn are_none(&self) -> bool {
        self.file.is_none() && self.collector.is_none()
    }

    /// Whether an event is logged: one of a block stands for those of the connections that have its ports.
    fn want(&self, event: &LogEvent) -> bool {
        match event {
            LogEvent::Connection(event) => self.all_connections || is_translated(event) && !event.is_of_block,
            LogEvent::Block { .. } | LogEvent::NoPort(_) => true,
        }
    }
}

pub(super) struct Reader {
    engine: EngineHandle,
    shared: Arc<Shared>,
    outputs: Outputs,
    rings: Vec<Consumer<LogEvent>>,
    host: Arc<Host>,
    batch: Batch,
    /// Lost lines and events of NAT that were reported,
    reported: [u64; 2],
    /// and when.
    reported_at: Option<Instant>,
}

impl Reader {
    pub(super) fn new(engine: EngineHandle, shared: Arc<Shared>, outputs: Outputs) -> Self {
        let (rings, host, batch) = (Vec::new(), Arc::default(), Batch::default());
        Self { engine, shared, outputs, rings, host, batch, reported: [0; 2], reported_at: None }
    }

    pub(super) fn run(&mut self) {
        let mut refreshed: Option<Instant> = None;
        loop {
            let is_ending = self.shared.is_ending.load(Ordering::Relaxed);
            let are_wanted = !self.outputs.are_none() || self.shared.watchers.receiver_count() > 0;
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
        if let Some(file) = self.outputs.file.take() {
            file.end();
        }
        if let Some(collector) = self.outputs.collector.take() {
            collector.end();
        }
        self.reported_at = None;
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

    fn pass_one(&mut self, event: &LogEvent, now: TickTime) {
        let is_logged = self.outputs.want(event);
        if is_logged && let Some(collector) = &mut self.outputs.collector {
            let is_lost = nat_event(event, now).is_some_and(|event| !collector.push(event));
            self.shared.unqueued.fetch_add(is_lost.into(), Ordering::Relaxed);
        }
        let is_written = is_logged && self.outputs.file.is_some();
        let is_watched = self.shared.watchers.receiver_count() > 0;
        if !is_written && !is_watched {
            return;
        }
        // Names and numbers are always JSON.
        let Ok(mut line) = serde_json::to_vec(&described(event, &self.host, now)) else { return };
        line.push(b'\n');
        if is_written {
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
        if let Some(file) = self.outputs.file.as_ref().filter(|_| batch.lines > 0) {
            file.write(batch);
        }
    }

    /// Tells of lines and events of NAT that were lost since the last report.
    fn report(&mut self) {
        let counts = self.shared.counts();
        let lost = [counts.lost, counts.nat_events_lost];
        if lost == self.reported || self.reported_at.is_some_and(|at| at.elapsed() < REPORT_INTERVAL) {
            return;
        }
        self.reported_at = Some(Instant::now());
        let before = std::mem::replace(&mut self.reported, lost);
        let [lines, nat_events] = [0, 1].map(|n| lost[n].saturating_sub(before[n]));
        let push = |lost: String, why: String| {
            let message = format!(
                "log of connections: {lost} were lost: {why}. Traffic goes on; `netvm conn stats` counts what is lost"
            );
            self.engine.events().push(EventKind::ConnectionLogLost, "", message);
        };
        if lines > 0 {
            let why = lock(&self.shared.fault).take();
            push(format!("{lines} lines"), why.unwrap_or_else(|| "the disk is too slow".to_owned()));
        }
        if nat_events > 0 {
            push(format!("{nat_events} events of NAT"), "the `collector` is away or too slow".to_owned());
        }
    }
}
