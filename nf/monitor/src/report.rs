// SPDX-License-Identifier: Apache-2.0
//! Reports: packet threads make snapshots in parts; a separate thread combines and writes them.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use netlib::clock;
use netvm_flowmon::export::{Talker, Totals as ExportTotals, View};
use netvm_nf_common::{Failure, FastMap};
use netvm_wire::FiveTuple;
use serde::Serialize;

use crate::Rank;
use crate::flows::{Amount, Flow, FlowScan, Flows, Snapshot, Totals};

/// The sender of a packet thread's snapshots.
#[derive(Debug)]
pub struct Sink {
    sender: Sender<Snapshot>,
    thread: u16,
    interval: Duration,
    due: Instant,
    scan: Option<FlowScan>,
}

impl Sink {
    /// For the snapshots of `thread`, one each `interval`.
    #[must_use]
    pub fn new(sender: Sender<Snapshot>, thread: u16, interval: Duration) -> Self {
        Self { sender, thread, interval, due: Instant::now() + interval, scan: None }
    }

    /// Begins a snapshot if one is due.
    pub(crate) fn begin_if_due(&mut self, top: usize, by: Rank) {
        let now = Instant::now();
        if self.scan.is_none() && now >= self.due {
            self.due = now + self.interval;
            self.scan = Some(FlowScan::new(candidates(top), by));
        }
    }

    /// Continues a snapshot.
    #[inline]
    pub(crate) fn gather(&mut self, flows: &Flows, slots: usize) {
        let Some(scan) = &mut self.scan else { return };
        if scan.step(flows, slots)
            && let Some(scan) = self.scan.take()
        {
            self.send(scan.finish(flows, self.thread));
        }
    }

    /// Makes the last snapshot at once.
    pub(crate) fn finish(&mut self, flows: &Flows, top: usize, by: Rank) {
        let mut scan = FlowScan::new(candidates(top), by);
        while !scan.step(flows, usize::MAX) {}
        self.send(scan.finish(flows, self.thread));
    }

    fn send(&self, snapshot: Snapshot) {
        // If the writer has ended, it has printed the error.
        let _ = self.sender.send(snapshot);
    }
}

/// Number of flows in a thread's snapshot for a report of `top`: more, as threads may share a flow.
const fn candidates(top: usize) -> usize {
    top * 4
}

/// Combines snapshots and writes reports.
#[derive(Debug)]
pub struct Reporter {
    path: PathBuf,
    top: usize,
    by: Rank,
    export: Option<View>,
    started: Instant,
}

/// The thread of a [`Reporter`].
#[derive(Debug)]
pub struct Writer {
    sender: Sender<Snapshot>,
    thread: JoinHandle<Result<(), Failure>>,
}

impl Writer {
    /// For a [`Sink`].
    #[must_use]
    pub fn sender(&self) -> Sender<Snapshot> {
        self.sender.clone()
    }

    /// Waits until the last report is written; drop all sinks first.
    ///
    /// # Errors
    /// [`Failure::Io`] if it cannot be written.
    pub fn finish(self) -> Result<(), Failure> {
        drop(self.sender);
        self.thread.join().unwrap_or(Err(Failure::Usage("the thread that writes reports panicked")))
    }
}

impl Reporter {
    /// Reports the `top` largest flows, ranked `by`, to `path`; `-` is standard output.
    #[must_use]
    pub fn new(path: PathBuf, top: usize, by: Rank) -> Self {
        Self { path, top, by, export: None, started: Instant::now() }
    }

    /// Reports what the exporter does too.
    #[must_use]
    pub fn with_export(self, export: Option<View>) -> Self {
        Self { export, ..self }
    }

    /// Starts the writer for `threads` packet threads. Writes an empty report before it returns, to find an unwritable
    /// path at once.
    ///
    /// # Errors
    /// [`Failure::Io`] if the report cannot be written or the thread cannot be started.
    pub fn start(self, threads: u16) -> Result<Writer, Failure> {
        self.write(&[])?;
        let (sender, receiver) = channel();
        let thread =
            thread::Builder::new().name("report".into()).spawn(move || self.serve(&receiver, threads));
        let thread =
            thread.map_err(|source| Failure::Io { what: "thread for reports".to_owned(), source })?;
        Ok(Writer { sender, thread })
    }

    fn serve(&self, receiver: &Receiver<Snapshot>, threads: u16) -> Result<(), Failure> {
        let mut latest = vec![Snapshot::default(); usize::from(threads)];
        let mut last = Ok(());
        while let Ok(snapshot) = receiver.recv() {
            // Includes what other threads have sent for the same report so far.
            for snapshot in std::iter::once(snapshot).chain(receiver.try_iter()) {
                if let Some(slot) = latest.get_mut(usize::from(snapshot.thread)) {
                    *slot = snapshot;
                }
            }
            let written = self.write(&latest);
            if let (Ok(()), Err(error)) = (&last, &written) {
                eprintln!("{error}; retrying with the next report");
            }
            last = written;
        }
        last
    }

    fn write(&self, snapshots: &[Snapshot]) -> Result<(), Failure> {
        let mut report = Report::new(snapshots, self.top, self.by, self.started.elapsed());
        report.export = self.export.as_ref().map(View::totals);
        report.talkers = self.export.as_ref().map(|export| export.talkers(self.top));
        let written = serde_json::to_string_pretty(&report).map_err(io::Error::from).and_then(|text| {
            if self.path == Path::new("-") {
                writeln!(io::stdout(), "{text}")
            } else {
                replace(&self.path, &text)
            }
        });
        written.map_err(|source| Failure::Io { what: format!("report {}", self.path.display()), source })
    }
}

/// Replaces a file atomically.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    fs::write(&beside, format!("{text}\n"))?;
    fs::rename(&beside, path)
}

#[derive(Debug, Serialize)]
struct Report {
    /// Unix time.
    time: f64,
    /// Seconds since the NF started.
    seconds: f64,
    total: Amount,
    protocols: Totals,
    flows: FlowCounts,
    top: Vec<FlowReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    export: Option<ExportTotals>,
    /// Of the records made so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    talkers: Option<Vec<Talker>>,
}

#[derive(Debug, Serialize)]
struct FlowCounts {
    tracked: u64,
    evicted: u64,
    evicted_packets: u64,
    evicted_bytes: u64,
}

#[derive(Debug, Serialize)]
struct FlowReport {
    protocol: String,
    source: String,
    source_port: u16,
    destination: String,
    destination_port: u16,
    packets: u64,
    bytes: u64,
    /// From the first packet to the last.
    seconds: f64,
    /// Since the last packet.
    idle_seconds: f64,
}

impl Report {
    fn new(snapshots: &[Snapshot], top: usize, by: Rank, seconds: Duration) -> Self {
        let (mut protocols, mut total) = (Totals::default(), Amount::default());
        let mut flows = FlowCounts { tracked: 0, evicted: 0, evicted_packets: 0, evicted_bytes: 0 };
        let mut largest: FastMap<FiveTuple, Flow> = FastMap::default();
        for snapshot in snapshots {
            protocols.add_all(&snapshot.totals);
            flows.tracked += snapshot.tracked;
            flows.evicted += snapshot.evicted;
            flows.evicted_packets += snapshot.evicted_amount.packets;
            flows.evicted_bytes += snapshot.evicted_amount.bytes;
            for (tuple, flow) in &snapshot.largest {
                largest.entry(*tuple).and_modify(|known| known.add(flow)).or_insert(*flow);
            }
        }
        protocols.parts().into_iter().for_each(|part| total.add_all(part));
        let mut largest: Vec<_> = largest.into_iter().collect();
        largest.sort_unstable_by_key(|(tuple, flow)| {
            (std::cmp::Reverse(by.of(flow.amount.packets, flow.amount.bytes)), *tuple)
        });
        largest.truncate(top);
        let now = clock::cycles();
        Self {
            time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            seconds: seconds.as_secs_f64(),
            total,
            protocols,
            flows,
            top: largest.iter().map(|(tuple, flow)| FlowReport::new(tuple, flow, now)).collect(),
            export: None,
            talkers: None,
        }
    }
}

impl Flow {
    /// Adds another thread's counts of the same flow.
    fn add(&mut self, other: &Self) {
        self.amount.add_all(other.amount);
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
    }
}

impl FlowReport {
    fn new(tuple: &FiveTuple, flow: &Flow, now: u64) -> Self {
        let seconds = |cycles: u64| cycles as f64 / clock::cycles_per_second() as f64;
        Self {
            protocol: tuple.protocol.to_string(),
            source: tuple.source.to_ip().to_string(),
            source_port: tuple.source_port,
            destination: tuple.destination.to_ip().to_string(),
            destination_port: tuple.destination_port,
            packets: flow.amount.packets,
            bytes: flow.amount.bytes,
            seconds: seconds(flow.last.saturating_sub(flow.first)),
            idle_seconds: seconds(now.saturating_sub(flow.last)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm_wire::IpProto;
    use serde_json::Value;
    use std::net::IpAddr;

    fn tuple(port: u16) -> FiveTuple {
        let address = |last: u8| IpAddr::from([10, 0, 0, last]);
        FiveTuple::new((address(1), port), (address(2), 53), IpProto::UDP)
    }

    fn snapshot(thread: u16, flows: &[(u16, u64, u64)]) -> Snapshot {
        let flow = |packets, bytes| Flow { amount: Amount { packets, bytes }, first: 0, last: 0 };
        let largest: Vec<_> =
            flows.iter().map(|(port, packets, bytes)| (tuple(*port), flow(*packets, *bytes))).collect();
        let mut totals = Totals::default();
        largest.iter().for_each(|(_, flow)| totals.udp.add_all(flow.amount));
        Snapshot { thread, totals, tracked: largest.len() as u64, evicted: 1, largest, ..Snapshot::default() }
    }

    fn ports(report: &Value) -> Vec<(u64, u64)> {
        let number = |flow: &Value, name: &str| flow[name].as_u64().unwrap();
        report["top"]
            .as_array()
            .unwrap()
            .iter()
            .map(|f| (number(f, "source_port"), number(f, "bytes")))
            .collect()
    }

    #[test]
    fn a_report_sums_the_threads_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        let read = || serde_json::from_str::<Value>(&fs::read_to_string(&path).unwrap()).unwrap();
        let writer = Reporter::new(path.clone(), 2, Rank::Bytes).start(2).unwrap();
        assert_eq!(read()["total"]["packets"], 0);
        let sender = writer.sender();
        sender.send(snapshot(0, &[(1, 1, 100), (2, 9, 10)])).unwrap();
        sender.send(snapshot(1, &[(3, 1, 70), (2, 1, 80)])).unwrap();
        // Replaces the thread's previous snapshot.
        sender.send(snapshot(0, &[(1, 1, 100), (2, 9, 30)])).unwrap();
        drop(sender);
        writer.finish().unwrap();
        let report = read();
        assert_eq!(ports(&report), [(2, 110), (1, 100)]);
        assert_eq!(report["total"], serde_json::json!({"packets": 12, "bytes": 280}));
        assert_eq!(report["protocols"]["udp"], report["total"]);
        assert_eq!((&report["flows"]["tracked"], &report["flows"]["evicted"]), (&4.into(), &2.into()));
        assert_eq!(report["top"][0]["source"], "10.0.0.1");
        assert_eq!(report["top"][0]["protocol"], "udp");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file remains");
    }

    #[test]
    fn an_unwritable_path_is_refused_at_once() {
        let error = Reporter::new("/nonexistent/report.json".into(), 2, Rank::Packets).start(1).unwrap_err();
        assert!(error.to_string().starts_with("report /nonexistent/report.json: No such file"), "{error}");
    }
}
