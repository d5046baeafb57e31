// SPDX-License-Identifier: Apache-2.0
//! The sequence of the demo's steps.

use std::io::Write;
use std::time::Duration;

use serde_json::json;

use crate::Options;
use crate::crash::{Setup, VICTIM, crash};
use crate::daemon::{CHAIN, FORBIDDING, GROUP, PortKind, nf, programs};
use crate::failure::{Failure, io};
use crate::host::cleanup;
use crate::host::interrupt::Interrupt;
use crate::host::names::{Names, Side};
use crate::host::namespaces::Bridge;
use crate::log::ProgressLog;
use crate::report::tables;
use crate::report::{Check, Forbidden, Summary, checks};
use crate::stage::{Stage, Testbed};
use crate::traffic::{self, Connection, Download, FORBIDDEN_PORT, Ping, Pings, Servers};

/// Requests of the first ping, and their interval.
const PINGS: u32 = 50;
const PING_INTERVAL: Duration = Duration::from_millis(20);

/// Runs all steps; true if every promise held.
///
/// # Errors
/// [`Failure`] if a step fails. Everything created is removed in any case.
pub fn show(options: Options, interrupt: &Interrupt) -> Result<bool, Failure> {
    let (names, mut log) = (Names::own(), ProgressLog::new(options.json));
    for dead in cleanup::dead_runs() {
        log.say(&format!("removed the remains of demo {}, which was killed", dead.0));
    }
    let stage = build(options, names, &log, interrupt)?;
    let summary = act(&stage, names, &mut log, interrupt)?;
    let mut checks = checks(&summary);
    let until = format!("until the {VICTIM} is killed");
    for (title, table) in [
        (format!("Packets per hop, {until}"), tables::hops(&summary.before_crash)),
        (
            "Drops by reason (an NF's drops count for its chain, too)".to_owned(),
            tables::drops(&summary.at_end),
        ),
        (
            "Buffers at the start and at the end".to_owned(),
            tables::buffers(&summary.at_start, &summary.at_end),
        ),
        (
            format!("Cost of each stage (as in NetVM's Table 1), {until}"),
            tables::stages(&summary.before_crash, summary.status.clock_hz),
        ),
    ] {
        log.add(&format!("\n{title}\n{table}"));
    }
    log.add("`engine to port` is mostly the kernel here: sending to a veth runs the other host's TCP.");
    log.add("Costs are wall-clock time: they include other processes on a shared core.");
    log.add("");
    checks.iter().for_each(|check| log.add(&check.to_string()));
    if options.keep {
        stage.daemon.restore()?;
        keep(&stage, names, &log, interrupt)?;
    }
    let last = take_down(stage, names);
    log.add(&last.to_string());
    checks.push(last);
    let holds = checks.iter().all(|check| check.holds);
    log.say(if holds { "every promise held" } else { "NOT every promise held" });
    if options.json {
        let seconds = log.elapsed().as_secs_f64();
        let all = json!({ "ok": holds, "seconds": seconds, "checks": checks, "summary": summary });
        writeln!(std::io::stdout(), "{all}").map_err(io("cannot write to standard output"))?;
    }
    Ok(holds)
}

fn build(options: Options, names: Names, log: &ProgressLog, interrupt: &Interrupt) -> Result<Stage, Failure> {
    let testbed = Testbed::make(names, interrupt)?;
    log.say(&format!(
        "two hosts: client {} and server {}, network namespaces joined only by netvm",
        Side::Client.address(),
        Side::Server.address()
    ));
    let kind = if options.af_xdp { PortKind::AfXdp } else { PortKind::AfPacket };
    let stage = testbed.connect(names, kind, interrupt)?;
    let (status, stats) = (stage.daemon.status()?, stage.daemon.stats()?);
    log.say(&format!("netvmd {} is up, process {}, {}", status.version, status.pid, status.dpdk));
    for port in &stats.ports {
        log.add(&format!("port {}: {}", port.name, port.driver_mode));
    }
    let processes: Vec<String> = CHAIN
        .into_iter()
        .map(|role| {
            let pid = nf(&stats, role).and_then(|nf| nf.pid);
            pid.map_or_else(|| role.to_owned(), |pid| format!("{role} (process {pid})"))
        })
        .collect();
    log.add(&format!("chain:  {}, all in trust group {GROUP}", processes.join(" > ")));
    Ok(stage)
}

fn act(
    stage: &Stage,
    names: Names,
    log: &mut ProgressLog,
    interrupt: &Interrupt,
) -> Result<Summary, Failure> {
    let (daemon, folder) = (&stage.daemon, stage.testbed.folder.path());
    let at_start = daemon.stats_at_rest(interrupt)?;
    let ping = Ping::start(names, folder, PINGS, PING_INTERVAL)?.finish(interrupt)?;
    log.say(&format!("ping, client to server through the chain: {}", in_words(&ping)));
    let servers = &stage.testbed.servers;
    let chain =
        DownloadSource { servers, address: Side::Server.address(), label: "HTTP download through the chain" };
    let download_by_chain = download(names, &chain, log, interrupt)?;
    let download_by_bridge = {
        let _bridge = Bridge::make(names)?;
        let address = Side::Server.bridge_address();
        let label = "the same through the kernel's bridge, without NFs";
        download(names, &DownloadSource { servers, address, label }, log, interrupt)?
    };
    let forbidden = forbidden(stage, names, interrupt)?;
    log.say(&format!(
        "TCP port {FORBIDDEN_PORT} answers without netvm; through netvm {}, and a rule dropped {} packets",
        match forbidden.through_the_chain {
            Connection::Made => "it answers, too",
            Connection::Failed => "it does not answer",
        },
        forbidden.denied
    ));
    log.add(&forbidden.trace);
    let before_crash = daemon.stats_at_rest(interrupt)?;
    let crash = crash(Setup { names, daemon, folder }, log, interrupt)?;
    log.add(&format!(
        "netvmd reclaimed {} buffers in {:.1} ms and started process {}: ready after {:.0} ms",
        crash.reclaimed, crash.reclaim_ms, crash.pid_after, crash.restart_ms
    ));
    log.add(&format!("ping: {}", in_words(&crash.pings)));
    let (at_end, status) = (daemon.stats_at_rest(interrupt)?, daemon.status()?);
    Ok(Summary {
        status,
        ping,
        download_by_chain,
        download_by_bridge,
        forbidden,
        crash,
        at_start,
        before_crash,
        at_end,
        without_ports: daemon.remove_ports(interrupt)?,
    })
}

/// What is downloaded from.
struct DownloadSource<'a> {
    servers: &'a Servers,
    address: String,
    /// What is downloaded by, for the output.
    label: &'a str,
}

fn download(
    names: Names,
    source: &DownloadSource<'_>,
    log: &mut ProgressLog,
    interrupt: &Interrupt,
) -> Result<Download, Failure> {
    let megabits = |bytes: u64, time: Duration| bytes as f64 * 8.0 / 1e6 / time.as_secs_f64();
    let DownloadSource { servers, address, label } = source;
    let download = servers.download(names, address, interrupt, |bytes, time| {
        log.progress(|| format!("{} MB, {:.0} Mbit/s", bytes / 1_000_000, megabits(bytes, time)));
    });
    log.end_progress();
    let download = download?;
    log.say(&format!(
        "{label}: {} MB in {:.2} s, {:.0} Mbit/s, {}",
        download.bytes / 1_000_000,
        download.seconds,
        download.mbit_per_s,
        if download.intact { "intact" } else { "NOT intact" }
    ));
    download.complaint.iter().for_each(|complaint| log.add(complaint));
    Ok(download)
}

fn forbidden(stage: &Stage, names: Names, interrupt: &Interrupt) -> Result<Forbidden, Failure> {
    let before = stage.daemon.matched(FORBIDDING)?;
    let beside_the_chain = traffic::connect(names, Side::Server, FORBIDDEN_PORT, interrupt)?;
    let through_the_chain = traffic::connect(names, Side::Client, FORBIDDEN_PORT, interrupt)?;
    let denied = stage.daemon.matched(FORBIDDING)?.saturating_sub(before);
    let trace = stage.daemon.trace(&[
        "--from".to_owned(),
        Side::Client.name().to_owned(),
        "protocol=tcp".to_owned(),
        format!("source={}", Side::Client.address()),
        format!("destination={}", Side::Server.address()),
        format!("destination_port={FORBIDDEN_PORT}"),
    ])?;
    Ok(Forbidden { beside_the_chain, through_the_chain, denied, trace })
}

fn in_words(pings: &Pings) -> String {
    let times = pings.rtt_ms.map_or_else(String::new, |(least, mean, most)| {
        format!("; round trip {least:.3}/{mean:.3}/{most:.3} ms (min/mean/max)")
    });
    format!("{} sent, {} lost{times}", pings.sent, pings.lost())
}

/// Keeps everything running until a signal.
fn keep(stage: &Stage, names: Names, log: &ProgressLog, interrupt: &Interrupt) -> Result<(), Failure> {
    let programs = programs()?;
    let (client, server) = (names.namespace(Side::Client), Side::Server.address());
    log.add(&format!(
        "\nAll of it runs on until Ctrl-C. In another terminal, as root:\n\
         \x20 {netvm} --socket {socket} status\n\
         \x20 {netvm} --socket {socket} stats\n\
         \x20 ip netns exec {client} busybox ping {server}\n\
         \x20 ip netns exec {client} curl -o /dev/null http://{server}/file\n\
         \x20 tail -f {log}",
        netvm = programs.join("netvm").display(),
        socket = stage.daemon.socket().display(),
        log = stage.daemon.log().display(),
    ));
    while interrupt.sleep(Duration::from_secs(3600)).is_ok() {}
    Ok(())
}

/// Removes everything and checks that nothing remains.
fn take_down(mut stage: Stage, names: Names) -> Check {
    let ended = stage.daemon.end();
    drop(stage);
    let mut left = cleanup::found(names);
    if !ended {
        left.push("netvmd had to be killed".to_owned());
    }
    let seen = if left.is_empty() {
        "no process, namespace, interface or file remains".to_owned()
    } else {
        left.join(", ")
    };
    Check::new("the demo cleans up", left.is_empty(), seen)
}
