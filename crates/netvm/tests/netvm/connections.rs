//! `netvm conn` against a server with canned answers.

use axum::extract::RawQuery;
use axum::routing::get;
use axum::{Json, Router};
use netvm_api::{ConnectionCounts, ConnectionInfo, ConnectionList, FlushedConnections, path};
use serde_json::Value;

use crate::common::{Server, netvm};

const COUNTS: ConnectionCounts = ConnectionCounts {
    connections: 1234,
    unanswered: 17,
    begun: 5000,
    expired: 3000,
    evicted: 700,
    flushed: 66,
    invalid: 9,
    limit: 65_536,
};

fn connection() -> ConnectionInfo {
    ConnectionInfo {
        worker: 1,
        port: "office".to_owned(),
        zone: 2,
        protocol: "tcp".to_owned(),
        source: "10.0.0.1:43210".to_owned(),
        destination: "[2001:db8::2]:80".to_owned(),
        state: "established".to_owned(),
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
            Some("limit=50") => vec![connection()],
            Some("limit=0" | "address=10.0.0.0/8&l4_port=80&protocol=tcp&port=office&zone=2&limit=7") => {
                Vec::new()
            }
            other => panic!("{other:?}"),
        };
        Json(ConnectionList { counts: COUNTS, connections })
    };
    let flush = |RawQuery(query): RawQuery| async move {
        let ended = match query.as_deref() {
            None | Some("") => 1234,
            Some("zone=2") => 5,
            other => panic!("{other:?}"),
        };
        Json(FlushedConnections { ended })
    };
    Server::start(Router::new().route(path::CONNECTIONS, get(list).delete(flush)))
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
            "tcp 10.0.0.1:43210 [2001:db8::2]:80 established office 2 1,500 2 KiB 3 100 B 1 min 1 s 2 h 4 min 1",
            "connections: 1,234 of at most 65,536, 17 of them unanswered",
        ]
    );
    let json: Value = serde_json::from_str(&server.netvm(&["--json", "conn", "list"]).good()).unwrap();
    assert_eq!(json["connections"][0]["reply_packets"], 3);
    assert_eq!(json["counts"]["limit"], 65_536);
    let words = "conn list --limit 7 --address 10.0.0.0/8 --l4-port 80 --protocol tcp --port office --zone 2";
    let empty = server.netvm(&words.split(' ').collect::<Vec<_>>()).good();
    assert_eq!(empty.lines().count(), 2, "{empty}");
}

#[test]
fn counters_are_shown() {
    let server = server();
    assert_eq!(
        server.netvm(&["conn", "stats"]).good(),
        "connections: 1,234 of at most 65,536, 17 of them unanswered\nbegun: 5,000\n\
         ended: 3,000 by time-out, 700 evicted, 66 flushed\ninvalid packets: 9\n"
    );
    let json: Value = serde_json::from_str(&server.netvm(&["--json", "conn", "stats"]).good()).unwrap();
    assert_eq!(json["evicted"], 700);
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
