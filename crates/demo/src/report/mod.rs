// SPDX-License-Identifier: Apache-2.0
//! netvm's promises, and whether they held.

pub mod tables;

use netvm_api::{NfInfo, Stats, Status};
use serde::Serialize;

use crate::crash::{Crash, VICTIM};
use crate::daemon::{CHAIN, FORBIDDING, GROUP, lost_buffers, nf};
use crate::report::tables::{count, total};
use crate::traffic::{Connection, Download, FORBIDDEN_PORT, Pings};

/// Limit for reclaiming the buffers of a killed NF, in milliseconds.
const RECLAIM_LIMIT_MS: f64 = 100.0;

/// All results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// netvmd's status at the end.
    pub status: Status,
    /// A ping without other traffic.
    pub ping: Pings,
    /// The download through the chain.
    pub download_by_chain: Download,
    /// The same through the kernel's bridge.
    pub download_by_bridge: Download,
    /// The forbidden connection.
    pub forbidden: Forbidden,
    /// The crash of an NF.
    pub crash: Crash,
    /// Statistics after the start.
    pub at_start: Stats,
    /// Statistics before the crash, as a new process counts from 0.
    pub before_crash: Stats,
    /// Statistics at the end, without traffic.
    pub at_end: Stats,
    /// Statistics after the ports were removed.
    pub without_ports: Stats,
}

/// An attempt to open a forbidden connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Forbidden {
    /// From the server's namespace, without netvm: shows that the server listens.
    pub beside_the_chain: Connection,
    /// From the client, through the chain.
    pub through_the_chain: Connection,
    /// Packets that the rule dropped.
    pub denied: u64,
    /// The explanation of `netvm policy trace`.
    pub trace: String,
}

/// A promise and its check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The promise.
    pub promise: String,
    /// Whether it held.
    pub holds: bool,
    /// The observation.
    pub seen: String,
}

impl Check {
    /// A check.
    pub fn new(promise: &str, holds: bool, seen: String) -> Self {
        Self { promise: promise.to_owned(), holds, seen }
    }
}

impl std::fmt::Display for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = if self.holds { "ok" } else { "FAILED" };
        write!(f, "{word:6} {}: {}", self.promise, self.seen)
    }
}

/// Checks all promises.
pub fn checks(summary: &Summary) -> Vec<Check> {
    let Summary { ping, download_by_chain: download, forbidden, .. } = summary;
    let copies: u64 = summary.at_end.workers.iter().map(|worker| worker.copies).sum();
    let violations: u64 = summary.at_end.nfs.iter().flat_map(|nf| nf.violations.values()).sum();
    let through = forbidden.through_the_chain == Connection::Made;
    let mut checks = vec![
        Check::new(
            "the server answers pings",
            ping.sent > 0 && ping.lost() == 0,
            format!("{} of {} answered", ping.received, ping.sent),
        ),
        Check::new(
            "a download arrives intact",
            download.intact && download.complaint.is_none(),
            format!("{} of {} bytes equal", count(download.bytes), count(download.expected_bytes)),
        ),
        Check::new(
            "a rule blocks a forbidden connection, and trace names it",
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
        Check::new(
            "no packet is copied between NFs",
            copies == 0,
            format!("{copies} copies; three processes map the memory of group {GROUP}"),
        ),
        Check::new("no NF violated its permissions", violations == 0, format!("{violations} violations")),
    ];
    checks.extend(after_a_crash(&summary.crash));
    checks.push(no_leak(summary));
    checks
}

/// Checks that each hop receives what the previous one sent, less the counted drops.
fn every_hop(stats: &Stats) -> Check {
    let promise = "every packet passes every hop or is counted as dropped";
    let chain: Option<Vec<&NfInfo>> = CHAIN.into_iter().map(|role| nf(stats, role)).collect();
    let Some(&[firewall, monitor, forward]) = chain.as_deref() else {
        return Check::new(promise, false, "an NF is missing".to_owned());
    };
    let received = |nf| total(nf, |thread| thread.packets.received);
    let next = |nf| total(nf, |thread| thread.packets.next);
    let entered: u64 = stats.chains.iter().map(|chain| chain.entered).sum();
    let left: u64 = stats.chains.iter().map(|chain| chain.left).sum();
    let steps = [
        (entered, received(firewall)),
        (next(firewall), received(monitor)),
        (next(monitor), received(forward)),
        (total(forward, |thread| thread.packets.to_port), left),
    ];
    let lost: u64 = steps.iter().map(|(given, got)| given.saturating_sub(*got)).sum();
    let denied: u64 =
        [firewall, monitor, forward].map(|nf| total(nf, |thread| thread.packets.dropped)).iter().sum();
    let inside: u64 = stats.chains.iter().map(|chain| chain.dropped_inside).sum();
    let none_appears = steps.iter().all(|(given, got)| given >= got);
    let took = chain.iter().flatten().map(|nf| format!("{} {}", nf.role, count(received(nf))));
    Check::new(
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

fn after_a_crash(crash: &Crash) -> [Check; 2] {
    [
        Check::new(
            "a killed NF restarts, and traffic continues",
            crash.pid_after != crash.pid_before && crash.restarts == 1 && crash.replies_after > 0,
            format!(
                "process {1} replaced {VICTIM} {0} within {2:.0} ms; {3} of {4} pings lost, {5} answered after it",
                crash.pid_before,
                crash.pid_after,
                crash.restart_ms,
                crash.pings.lost(),
                crash.pings.sent,
                crash.replies_after
            ),
        ),
        Check::new(
            "the buffers of a killed NF are reclaimed within 100 ms",
            crash.reclaimed > 0 && crash.reclaim_ms <= RECLAIM_LIMIT_MS,
            format!("{} buffers in {:.1} ms", crash.reclaimed, crash.reclaim_ms),
        ),
    ]
}

/// Ports keep buffers to receive into, so the check is made without ports.
fn no_leak(summary: &Summary) -> Check {
    let regions = summary.without_ports.groups.iter().flat_map(|group| &group.regions);
    let all: u64 = regions.map(|region| u64::from(region.buffers)).sum();
    let lost = u64::from(lost_buffers(&summary.without_ports));
    Check::new(
        "no buffer is lost",
        all > 0 && lost == 0,
        format!("{} of {} are free once the ports are removed", count(all - lost), count(all)),
    )
}
