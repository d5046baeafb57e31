//! What netvm promises, and whether it held.

use netvm_api::{NfInfo, Stats, Status};
use serde::Serialize;

use crate::crash::{Crash, VICTIM};
use crate::daemon::{CHAIN, FORBIDDING, GROUP, buffers_in_nfs, nf};
use crate::tables::{count, total};
use crate::traffic::{Connection, Download, FORBIDDEN_PORT, Pings};

/// Longest time in which the buffers of a dead NF are to be back, in milliseconds.
const RECLAIM_LIMIT_MS: f64 = 100.0;

/// Everything that was found out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// netvmd at the end.
    pub status: Status,
    /// A ping while nothing else went on.
    pub ping: Pings,
    /// The download.
    pub download: Download,
    /// The connection that the firewall was to stop.
    pub forbidden: Forbidden,
    /// The death of an NF.
    pub crash: Crash,
    /// What netvmd counted when it had just come up.
    pub at_start: Stats,
    /// Before an NF died: a new process counts from 0.
    pub before_crash: Stats,
    /// At the end, without traffic.
    pub at_end: Stats,
}

/// A connection that was tried, and must not come about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Forbidden {
    /// From the server itself, past netvm: there is somebody to connect to.
    pub beside_the_chain: Connection,
    /// From the client, through the chain.
    pub through_the_chain: Connection,
    /// Packets that the rule dropped meanwhile.
    pub denied: u64,
    /// How `netvm policy trace` explains it.
    pub trace: String,
}

/// A promise, and whether it held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// What was promised.
    pub promise: String,
    /// Whether it held.
    pub holds: bool,
    /// What was seen.
    pub seen: String,
}

impl Outcome {
    /// A verdict.
    pub fn new(promise: &str, holds: bool, seen: String) -> Self {
        Self { promise: promise.to_owned(), holds, seen }
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = if self.holds { "ok" } else { "FAILED" };
        write!(f, "{word:6} {}: {}", self.promise, self.seen)
    }
}

/// Judges everything.
pub fn outcomes(summary: &Summary) -> Vec<Outcome> {
    let Summary { ping, download, forbidden, .. } = summary;
    let copies: u64 = summary.at_end.workers.iter().map(|worker| worker.copies).sum();
    let violations: u64 = summary.at_end.nfs.iter().flat_map(|nf| nf.violations.values()).sum();
    let through = forbidden.through_the_chain == Connection::Made;
    let mut outcomes = vec![
        Outcome::new(
            "pings reach the server and come back",
            ping.sent > 0 && ping.lost() == 0,
            format!("{} of {} came back", ping.received, ping.sent),
        ),
        Outcome::new(
            "a download is what the server sent",
            download.intact && download.complaint.is_none(),
            format!(
                "{} of {} bytes compared and equal",
                count(download.bytes),
                count(download.expected_bytes)
            ),
        ),
        Outcome::new(
            "a rule stops what is forbidden, and trace names it",
            !through
                && forbidden.beside_the_chain == Connection::Made
                && forbidden.denied > 0
                && forbidden.trace.contains(&format!("decides: {FORBIDDING}:")),
            format!(
                "port {FORBIDDEN_PORT} {}, {} packets dropped by rule {FORBIDDING}",
                if through { "answered" } else { "did not answer" },
                forbidden.denied
            ),
        ),
        every_hop(&summary.before_crash),
        Outcome::new(
            "no packet is copied between NFs",
            copies == 0,
            format!("{copies} copies; three processes map the memory of group {GROUP}"),
        ),
        Outcome::new("no NF did what it may not", violations == 0, format!("{violations} violations")),
    ];
    outcomes.extend(after_a_crash(&summary.crash));
    outcomes.push(no_leak(summary));
    outcomes
}

/// What one hop hands on is what the next one gets, or is counted as dropped between them.
fn every_hop(stats: &Stats) -> Outcome {
    let promise = "every packet passes every hop, and each that does not is counted";
    let chain: Option<Vec<&NfInfo>> = CHAIN.into_iter().map(|role| nf(stats, role)).collect();
    let Some(&[firewall, monitor, forward]) = chain.as_deref() else {
        return Outcome::new(promise, false, "an NF is missing".to_owned());
    };
    let received = |nf| total(nf, |thread| thread.received);
    let next = |nf| total(nf, |thread| thread.next);
    let entered: u64 = stats.chains.iter().map(|chain| chain.entered).sum();
    let left: u64 = stats.chains.iter().map(|chain| chain.left).sum();
    let steps = [
        (entered, received(firewall)),
        (next(firewall), received(monitor)),
        (next(monitor), received(forward)),
        (total(forward, |thread| thread.port), left),
    ];
    let lost: u64 = steps.iter().map(|(given, got)| given.saturating_sub(*got)).sum();
    let denied: u64 = [firewall, monitor, forward].map(|nf| total(nf, |thread| thread.dropped)).iter().sum();
    let inside: u64 = stats.chains.iter().map(|chain| chain.dropped_inside).sum();
    let none_appears = steps.iter().all(|(given, got)| given >= got);
    let took = chain.iter().flatten().map(|nf| format!("{} {}", nf.role, count(received(nf))));
    Outcome::new(
        promise,
        entered > 0 && left > 0 && none_appears && lost + denied == inside,
        format!(
            "in {}, {}, out {}; {} dropped by NFs, {} between them",
            count(entered),
            took.collect::<Vec<_>>().join(", "),
            count(left),
            count(denied),
            count(lost)
        ),
    )
}

fn after_a_crash(crash: &Crash) -> [Outcome; 2] {
    [
        Outcome::new(
            "an NF that dies is started again, and traffic goes on",
            crash.pid_after != crash.pid_before && crash.restarts == 1 && crash.replies_after > 0,
            format!(
                "{VICTIM} {} became {} within {:.0} ms; {} of {} pings lost, {} came back after it",
                crash.pid_before,
                crash.pid_after,
                crash.restart_ms,
                crash.pings.lost(),
                crash.pings.sent,
                crash.replies_after
            ),
        ),
        Outcome::new(
            "what a dead NF held is taken back within 100 ms",
            crash.reclaimed > 0 && crash.reclaim_ms <= RECLAIM_LIMIT_MS,
            format!("{} buffers in {:.1} ms", crash.reclaimed, crash.reclaim_ms),
        ),
    ]
}

/// What is neither free nor with an NF counts as the engine's: a lost buffer would, too. The engine has most when its ports
/// have just been filled, as at the start.
fn no_leak(summary: &Summary) -> Outcome {
    let engine = |stats: &Stats| {
        let regions = stats.groups.iter().flat_map(|group| &group.regions);
        regions.map(|region| u64::from(region.in_engine)).sum::<u64>()
    };
    let out = buffers_in_nfs(&summary.at_end);
    let (start, end) = (engine(&summary.at_start), engine(&summary.at_end));
    Outcome::new(
        "no buffer is lost",
        out == 0 && end <= start,
        format!(
            "{out} with NFs at rest; with the engine and its ports {} at the start, {} at the end",
            count(start),
            count(end)
        ),
    )
}
