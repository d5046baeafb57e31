// SPDX-License-Identifier: Apache-2.0
//! Commands that go on: events, and the live view, also while netvmd starts again; `status --wait`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::Query;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router};
use netvm_api::{
    ApiError, Event, EventKind, EventQuery, EventSeverity, LiveTraceRequest, NfState, Status, StepKind,
    TracedPacket, TracedStep, path,
};

use super::answers;
use super::common::{Server, program};

fn event(number: u64, kind: EventKind) -> Event {
    Event {
        number,
        at: 1.5,
        severity: EventSeverity::Warning,
        kind,
        subject: "firewall".into(),
        message: "nf firewall/0: killed\x1b[2J\u{202e}".into(),
    }
}

#[test]
fn events_are_lines_and_come_as_they_happen() {
    let known = vec![event(1, EventKind::NfUp), event(2, EventKind::NfDown)];
    // A netvmd that ends the events at once, and then another one.
    let follows = Arc::new(AtomicU64::new(0));
    let pid = Arc::clone(&follows);
    let status = move || {
        let pid = u32::from(pid.load(Ordering::Relaxed) > 0) + 1;
        async move { Json(Status { pid, ..answers::status() }) }
    };
    let answer = move |Query(query): Query<EventQuery>| async move {
        let lines: String = known
            .iter()
            .filter(|event| event.number > query.after)
            .map(|event| serde_json::to_string(event).unwrap() + "\n")
            .collect();
        if !query.follow {
            return Json(known).into_response();
        }
        follows.fetch_add(1, Ordering::Relaxed);
        lines.into_response()
    };
    let server =
        Server::start(Router::new().route(path::EVENTS, get(answer)).route(path::STATUS, get(status)));
    let text = server.netvm(&["events", "--after", "1"]).good();
    let words: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(words[..5], ["1970-01-01", "00:00:01Z", "2", "warning", "nf_down"]);
    assert!(text.contains("nf firewall/0: killed\u{fffd}[2J\u{fffd}\n"), "{text:?}");
    assert_eq!(text.lines().count(), 1);
    let mut command = program();
    command.arg("--socket").arg(server.socket()).args(["events", "--follow", "--json", "--after", "1"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().take(3);
    let numbers: Vec<u64> =
        lines.map(|line| serde_json::from_str::<Event>(&line.unwrap()).unwrap().number).collect();
    // The other one's from the first on.
    assert_eq!(numbers, [2, 1, 2]);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A packet that worker 1 receives, and worker 2 drops.
fn traced(number: u64) -> TracedPacket {
    let step = |after_ns, worker, step, text: &str| TracedStep {
        after_ns,
        worker,
        ..TracedStep::new(step, text.to_owned())
    };
    let steps = vec![
        step(0, 1, StepKind::Received, "received on port client"),
        step(750, 1, StepKind::HandedOver, "handed over to worker 2"),
        step(12_345, 2, StepKind::Dropped, "dropped: rule\u{1b}"),
    ];
    TracedPacket { number, time: 1.5, worker: 1, port: Some("client".into()), nf: None, length: 60, steps }
}

/// Answers as netvmd does: with as many packets as are wanted, but one within a second, of port `b` alone.
async fn trace(Json(request): Json<LiveTraceRequest>) -> axum::response::Response {
    let refuse = |status, message| (status, Json(ApiError::new(message))).into_response();
    let count = match request {
        LiveTraceRequest { packets: 7, .. } => {
            return refuse(StatusCode::CONFLICT, "16 captures run already");
        }
        LiveTraceRequest { from: Some(port), .. } if port == "x" => {
            return refuse(StatusCode::NOT_FOUND, "no port `x`");
        }
        LiveTraceRequest { packets: 2, ref filter, .. } if filter.is_empty() => {
            return refuse(StatusCode::UNPROCESSABLE_ENTITY, "no filter");
        }
        LiveTraceRequest { packets: 6, .. } => 1,
        LiveTraceRequest { seconds: 1, from, .. } => {
            tokio::time::sleep(Duration::from_secs(1)).await;
            u64::from(from.as_deref() == Some("b"))
        }
        LiveTraceRequest { packets, .. } => packets,
    };
    let lines = (1..=count).map(|number| serde_json::to_string(&traced(number)).unwrap() + "\n");
    lines.collect::<String>().into_response()
}

#[test]
fn traced_packets_are_blocks_of_lines_or_json() {
    let server = Server::start(Router::new().route(path::LIVE_TRACE, post(trace)));
    let text = server.netvm(&["trace"]).good();
    let block = |number| {
        format!(
            "packet {number}, 1970-01-01 00:00:01Z, worker 1:\n      0 ns  received on port client\n    \
             750 ns  handed over to worker 2\n   12.3 µs  worker 2: dropped: rule\u{fffd}\n"
        )
    };
    assert_eq!(text, (1..=10).map(block).collect::<String>());
    let text = server.netvm(&["--json", "trace", "-n", "2", "udp", "port", "9"]).good();
    let packets = text.lines().map(|line| serde_json::from_str::<TracedPacket>(line).unwrap());
    assert!(packets.eq([traced(1), traced(2)]), "{text}");
    assert!(text.contains(r#""step":"handed-over""#) && !text.contains("\"chain\""), "{text}");
}

#[test]
fn a_trace_says_why_it_has_no_packets() {
    let server = Server::start(Router::new().route(path::LIVE_TRACE, post(trace)));
    let failed = |arguments: &[&str]| server.netvm(&[&["trace"][..], arguments].concat()).failed(1);
    assert!(failed(&["-n", "7"]).contains("16 captures run already"));
    assert!(failed(&["--from", "x"]).contains("no port `x`"));
    assert!(failed(&["udp", "prt"]).contains("does not compile"));
    let nothing = failed(&["--seconds", "1"]);
    assert!(nothing.contains("no packet within 1 s that the filter accepts"), "{nothing}");
    let ended = failed(&["-n", "6"]);
    assert!(ended.contains("netvmd has ended the trace after 1 packets"), "{ended}");
    server.netvm(&["trace", "-n", "0"]).failed(2);
    server.netvm(&["trace", "--seconds", "100000"]).failed(2);
    let some = server.netvm(&["trace", "--seconds", "1", "--from", "b"]).good();
    assert!(some.starts_with("packet 1, "), "{some}");
}

#[test]
fn the_commands_of_the_page_on_traces_are_right() {
    let server = Server::start(Router::new().route(path::LIVE_TRACE, post(trace)));
    let page = include_str!("../../../../docs/how-to/trace.md");
    let commands = page.lines().filter_map(|line| line.strip_prefix("$ netvm trace"));
    let mut count = 0;
    for command in commands {
        let command = command.split('#').next().unwrap();
        let words = command.replace('\'', "");
        let words: Vec<&str> = std::iter::once("trace").chain(words.split_whitespace()).collect();
        server.netvm(&words).good();
        count += 1;
    }
    assert!(count > 3, "{count}");
}

#[test]
fn the_live_view_goes_on_with_the_next_netvmd() {
    let folder = super::common::folder();
    let mut command = program();
    let socket = folder.path().join("api.sock");
    let router = || {
        let stats = get(|| async { Json(answers::stats(1)) });
        let status = get(|| async { Json(answers::status()) });
        Router::new().route(path::STATS, stats).route(path::STATUS, status)
    };
    let first = Server::start_in(folder.path().to_owned(), router());
    command.arg("--socket").arg(&socket).args(["--json", "top", "--interval", "0.1"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("firewall"));
    // Nothing listens there, until another one does.
    std::fs::rename(&socket, folder.path().join("old.sock")).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none());
    let second = Server::start_in(folder.path().to_owned(), router());
    (0..10).for_each(|_| assert!(lines.next().unwrap().unwrap().contains("firewall")));
    child.kill().unwrap();
    child.wait().unwrap();
    drop((first, second));
}

#[test]
fn status_waits_for_the_nfs_of_chains() {
    let asked = Arc::new(AtomicU64::new(0));
    let nfs = move || {
        let turn = asked.fetch_add(1, Ordering::Relaxed);
        let mut nfs = answers::stats(1).nfs;
        nfs[0].state = if turn < 5 { NfState::Starting } else { NfState::Running };
        nfs[0].managed = true;
        async move { Json(nfs) }
    };
    let router = Router::new()
        .route(path::STATUS, get(|| async { Json(answers::status()) }))
        .route(path::CHAINS, get(|| async { Json(answers::stats(1).chains) }))
        .route(path::NFS, get(nfs));
    let server = Server::start(router);
    let began = std::time::Instant::now();
    server.netvm(&["status", "--wait", "20"]).good();
    let waited = began.elapsed();
    assert!(waited >= std::time::Duration::from_millis(200), "{waited:?}");
    assert!(waited < std::time::Duration::from_secs(15), "{waited:?}");
}

#[test]
fn names_of_the_running_netvmd_are_completed() {
    let stats = answers::stats(1);
    let (ports, chains) = (stats.ports.clone(), stats.chains.clone());
    let router = Router::new()
        .route(path::PORTS, get(|| async { Json(ports) }))
        .route(path::CHAINS, get(|| async { Json(chains) }))
        .route(path::STATS, get(|| async { Json(stats) }));
    let server = Server::start(router);
    let socket = server.socket();
    let complete = |words: &[&str]| -> Vec<String> {
        let mut command = program();
        command.args(["--", "netvm", "--socket"]).arg(&socket).args(words);
        command.env("NETVM_COMPLETE", "bash").env(
            "_CLAP_IFS",
            "
",
        );
        command.env("_CLAP_COMPLETE_INDEX", (words.len() + 2).to_string());
        let known = super::common::run(&mut command).good();
        known.lines().map(str::to_owned).filter(|word| !word.starts_with('-')).collect()
    };
    assert_eq!(complete(&["port", ""]), ["live", "add", "del", "help", "client", "server"]);
    assert_eq!(complete(&["port", "s"]), ["server"]);
    assert_eq!(complete(&["chain", ""]), ["web"]);
    assert_eq!(complete(&["restart", ""]), ["firewall"]);
    assert_eq!(complete(&["capture", "--at", "web:"]), ["web:firewall", "web:monitor"]);
    assert_eq!(complete(&["capture", "--dropped", "--reason", "chain-"]), ["chain-full"]);
    // What does not answer has no names: no error, no wait.
    assert_eq!(complete(&["router", "show", ""]), [""; 0]);
}
