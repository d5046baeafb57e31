//! Commands that go on: events, and the live view, also while netvmd starts again; `status --wait`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::Query;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use netvm_api::{Event, EventKind, EventQuery, EventSeverity, NfState, Status, path};

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
    assert_eq!(complete(&["port", ""]), ["client", "server"]);
    assert_eq!(complete(&["port", "s"]), ["server"]);
    assert_eq!(complete(&["chain", ""]), ["web"]);
    assert_eq!(complete(&["restart", ""]), ["firewall"]);
    assert_eq!(complete(&["capture", "--at", "web:"]), ["web:firewall", "web:monitor"]);
    assert_eq!(complete(&["capture", "--dropped", "--reason", "chain-"]), ["chain-full"]);
    // What does not answer has no names: no error, no wait.
    assert_eq!(complete(&["router", "show", ""]), [""; 0]);
}
