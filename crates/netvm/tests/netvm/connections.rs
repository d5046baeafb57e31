// SPDX-License-Identifier: Apache-2.0
//! `netvm conn` against a server with canned answers.

use axum::body::Bytes;
use axum::extract::RawQuery;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use netvm_api::{
    ClosedConnection, ConnectionCounts, ConnectionEvent, ConnectionInfo, ConnectionList, FlushedConnections,
    LoggedConnection, NatTargetInfo, PortBlock, RestoredConnections, Stats, TcpEndInfo, path,
};
use netvm_conntrack::SaveWriter;
use serde_json::Value;

use crate::common::{Server, netvm};

const COUNTS: ConnectionCounts = ConnectionCounts {
    connections: 1234,
    unanswered: 17,
    begun: 5000,
    expired: 3000,
    evicted: 700,
    flushed: 66,
    refused: 5,
    invalid: 9,
    decided: 4000,
    events_lost: 3,
    log_lines: 2000,
    log_lost: 4,
    nat_events: 5,
    nat_events_lost: 1200,
    limit: 65_536,
    cookies_sent: 0,
    cookies_accepted: 0,
    cookies_wrong: 0,
};

fn connection() -> ConnectionInfo {
    let end = |sent| TcpEndInfo { sent, acknowledged: 7, window: 65_535, scale: Some(7), fin: false };
    ConnectionInfo {
        id: "1-17-3".to_owned(),
        worker: 1,
        port: "office".to_owned(),
        rule: Some("web".to_owned()),
        zone: 2,
        protocol: "tcp".to_owned(),
        source: "10.0.0.1:43210".to_owned(),
        destination: "[2001:db8::2]:80".to_owned(),
        translated_source: Some("203.0.113.8:1024".to_owned()),
        translated_destination: None,
        state: "established".to_owned(),
        answered: true,
        assured: true,
        tcp: vec![end(1), TcpEndInfo { fin: true, scale: None, ..end(2) }],
        packets: 1500,
        bytes: 2048,
        reply_packets: 3,
        reply_bytes: 100,
        age_s: 61.0,
        left_s: 7440.0,
    }
}

fn server() -> Server {
    let list = |RawQuery(query): RawQuery| async move {
        let connections = match query.as_deref() {
            Some("limit=50" | "id=1-17-3&limit=50" | "zone=2&limit=50") => vec![connection()],
            Some(
                "limit=0"
                | "id=0-0-0&limit=50"
                | "address=10.0.0.0/8&l4_port=80&protocol=tcp&state=established&port=office&zone=2&limit=7",
            ) => Vec::new(),
            other => panic!("{other:?}"),
        };
        Json(ConnectionList { counts: COUNTS, connections, ..ConnectionList::default() })
    };
    let flush = |RawQuery(query): RawQuery| async move {
        let ended = match query.as_deref() {
            None | Some("") => 1234,
            Some("zone=2") => 5,
            other => panic!("{other:?}"),
        };
        Json(FlushedConnections { ended })
    };
    let load = |body: Bytes| async move {
        let problem = body.starts_with(b"cut").then(|| "the file was cut after 5 connections".to_owned());
        Json(RestoredConnections {
            restored: 1234,
            expired: 2,
            of_unknown_ports: 3,
            unknown_ports: vec!["a\x1b".to_owned(), "b".to_owned()],
            problem,
            ..RestoredConnections::default()
        })
    };
    let app = Router::new()
        .route(path::CONNECTIONS, get(list).delete(flush))
        .route(path::SAVED_CONNECTIONS, get(async || saved()).post(load))
        .route(path::STATS, get(async || Json(Stats { nat_targets: targets(), ..crate::answers::stats(1) })))
        .route(path::CONNECTION_EVENTS, get(async || events()));
    Server::start(app)
}

fn targets() -> Vec<NatTargetInfo> {
    let down = NatTargetInfo {
        target: "10.0.0.11:80".to_owned(),
        router: Some("edge".to_owned()),
        rules: vec!["web".to_owned(), "7".to_owned()],
        up: false,
        problem: Some("connection refused".to_owned()),
        checks: 1042,
        failed: 3,
    };
    let target = "[2001:db8::2]:80".to_owned();
    vec![down.clone(), NatTargetInfo { target, router: None, up: true, problem: None, ..down }]
}

/// A file without connections.
fn saved() -> Vec<u8> {
    let file = SaveWriter::new(b"{\"ports\":{},\"rules\":{}}\n".to_vec(), 1).unwrap();
    file.finish().unwrap()
}

fn events() -> impl IntoResponse {
    let connection = LoggedConnection {
        time: "2026-11-29T14:00:00.100Z".to_owned(),
        protocol: "udp".to_owned(),
        port: "office".to_owned(),
        rule: Some("web".to_owned()),
        source: "10.0.0.1:1".to_owned(),
        destination: "10.0.0.2:53".to_owned(),
        translated_source: Some("203.0.113.8:1024".to_owned()),
        ..LoggedConnection::default()
    };
    let closed = ClosedConnection {
        connection: LoggedConnection { translated_source: None, rule: None, ..connection.clone() },
        why: "expired".to_owned(),
        packets: 2,
        bytes: 2000,
        reply_packets: 1,
        reply_bytes: 48,
        ..ClosedConnection::default()
    };
    let all = [
        ConnectionEvent::Opened(connection),
        ConnectionEvent::Closed(closed),
        ConnectionEvent::BlockAssigned(PortBlock {
            time: "2026-11-29T14:00:00.100Z".to_owned(),
            zone: 3,
            inside: "10.0.0.1".to_owned(),
            outside: "203.0.113.8".to_owned(),
            first_port: 1024,
            last_port: 1535,
        }),
        ConnectionEvent::Lost { events: 7 },
    ];
    all.map(|event| serde_json::to_string(&event).unwrap() + "\n").concat()
}

#[test]
fn connections_are_listed_with_both_directions() {
    let server = server();
    let text = server.netvm(&["conn", "list"]).good();
    let lines: Vec<String> =
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        lines[1..],
        [
            "1-17-3 tcp 10.0.0.1:43210 [2001:db8::2]:80 from 203.0.113.8:1024 established office 2 1,500 2 KiB 3 100 B \
             1 min 1 s 2 h 4 min 1",
            "connections: 1,234 of at most 65,536, 17 of them unanswered",
        ]
    );
    let json: Value = serde_json::from_str(&server.netvm(&["--json", "conn", "list"]).good()).unwrap();
    assert_eq!(json["connections"][0]["reply_packets"], 3);
    assert_eq!(json["counts"]["limit"], 65_536);
    let words = "conn list --limit 7 --address 10.0.0.0/8 --l4-port 80 --protocol tcp --state established --port office --zone 2";
    let empty = server.netvm(&words.split(' ').collect::<Vec<_>>()).good();
    assert_eq!(empty.lines().count(), 2, "{empty}");
}

#[test]
fn counters_are_shown() {
    let server = server();
    assert_eq!(
        server.netvm(&["conn", "stats"]).good(),
        "connections: 1,234 of at most 65,536, 17 of them unanswered\nbegun: 5,000\n\
         ended: 3,000 by time-out, 700 evicted, 66 flushed, 5 refused by NAT\ninvalid packets: 9\n\
         decided by their connections: 4,000 packets\n\
         log: 2,000 lines, 4 lost by a full or slow disk; events lost before: 3\n\
         collector: 5 events of NAT, 1,200 lost, as it was away or too slow\n"
    );
    let json: Value = serde_json::from_str(&server.netvm(&["--json", "conn", "stats"]).good()).unwrap();
    assert_eq!(json["evicted"], 700);
}

#[test]
fn targets_are_listed_with_what_is_wrong() {
    let text = server().netvm(&["conn", "targets"]).good();
    let lines: Vec<String> =
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        lines,
        [
            "TARGET STATE NAT ROUTER PROBLEM CHECKS FAILED",
            "10.0.0.11:80 down web 7 edge connection refused 1,042 3",
            "[2001:db8::2]:80 up web 7 - - 1,042 3",
        ]
    );
}

#[test]
fn all_connections_are_flushed_only_if_that_is_said() {
    let server = server();
    assert_eq!(server.netvm(&["conn", "flush", "--all"]).good(), "connections ended: 1,234\n");
    assert_eq!(server.netvm(&["conn", "flush", "--zone", "2"]).good(), "connections ended: 5\n");
    let json: Value =
        serde_json::from_str(&server.netvm(&["--json", "conn", "flush", "--all"]).good()).unwrap();
    assert_eq!(json["ended"], 1234);
    let error = netvm(&["conn", "flush"]).failed(2);
    assert!(error.contains("--all"), "{error}");
    netvm(&["conn", "flush", "--all", "--zone", "2"]).failed(2);
}

#[test]
fn a_connection_is_shown_in_full() {
    let server = server();
    let text = server.netvm(&["conn", "show", "1-17-3"]).good();
    assert_eq!(
        text,
        "connection 1-17-3: tcp 10.0.0.1:43210 > [2001:db8::2]:80\n  \
         translated  from 203.0.113.8:1024\n  \
         state       established\n  \
         begun       1 min 1 s ago, by port office, accepted by rule web\n  \
         expires     in 2 h 4 min without packets\n  \
         sent        1,500 packets, 2 KiB\n  \
         answered    3 packets, 100 B\n  \
         tcp source  sent to 1, acknowledged 7, window 65,535 bytes, scaled by 2^7\n  \
         tcp dest.   sent to 2, acknowledged 7, window 65,535 bytes, FIN sent\n  \
         kept by     worker 1, zone 2\n"
    );
    assert_eq!(server.netvm(&["conn", "show", "--zone", "2"]).good(), text);
    let json: Value =
        serde_json::from_str(&server.netvm(&["--json", "conn", "show", "1-17-3"]).good()).unwrap();
    assert_eq!((json[0]["tcp"][1]["fin"].as_bool(), json[0]["rule"].as_str()), (Some(true), Some("web")));
    let error = server.netvm(&["conn", "show", "0-0-0"]).failed(1);
    assert!(error.contains("netvm conn list"), "{error}");
    netvm(&["conn", "show"]).failed(2);
    netvm(&["conn", "show", "1-17-3", "--zone", "2"]).failed(2);
}

#[test]
fn openings_and_closings_are_lines_until_netvmd_ends() {
    let server = server();
    assert_eq!(
        server.netvm(&["conn", "watch"]).good(),
        "2026-11-29T14:00:00.100Z  opened      udp 10.0.0.1:1 > 10.0.0.2:53 as from 203.0.113.8:1024, port office by rule \
         web\n2026-11-29T14:00:00.100Z  closed      udp 10.0.0.1:1 > 10.0.0.2:53, port office: expired, 2 packets, 1 \
         answers, 2 KiB\n2026-11-29T14:00:00.100Z  assigned    ports 1024-1535 of 203.0.113.8 for 10.0.0.1, zone 3\n\
         7 events are missing here: this client reads too slowly\n"
    );
    let lines = server.netvm(&["--json", "conn", "watch"]).good();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["event"], &lines[1]["event"]), (&"opened".into(), &"closed".into()));
    assert_eq!((&lines[1]["reply_bytes"], &lines[3]["events"]), (&48.into(), &7.into()));
}

#[test]
fn connections_are_saved_whole_or_not_and_loaded() {
    let (server, folder) = (server(), tempfile::tempdir().unwrap());
    let file = folder.path().join("saved");
    let path = file.to_str().unwrap();
    assert_eq!(server.netvm(&["conn", "save", path]).good(), "connections saved: 0\n");
    assert_eq!(std::fs::read(&file).unwrap(), saved());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    let nowhere = folder.path().join("no/file");
    let error = server.netvm(&["conn", "save", nowhere.to_str().unwrap()]).failed(1);
    assert!(error.contains("no/file"), "{error}");
    assert_eq!(
        server.netvm(&["conn", "load", path]).good(),
        "connections restored: 1,234\nnot restored: 2 expired since they were saved\n\
         not restored: 3 of ports that are not there (a\u{fffd}, b)\n"
    );
    std::fs::write(&file, "cut").unwrap();
    let error = server.netvm(&["conn", "load", path]).failed(1);
    assert!(error.contains("was cut after 5 connections"), "{error}");
    let error = server.netvm(&["conn", "load", nowhere.to_str().unwrap()]).failed(1);
    assert!(error.contains("cannot read"), "{error}");
}
