//! A stateful firewall: docs/how-to/connections.md, with its configuration.

use std::net::Ipv4Addr;
use std::time::Duration;

use netvm_api::{ConnectionInfo, ConnectionList, FlushedConnections, path};

use crate::common::hosts::{self, Host, asking};
use crate::common::{Daemon, ENGINE};

const PAGE: &str = include_str!("../../../../docs/how-to/connections.md");

/// The first configuration of the page, for hosts with these names.
fn firewall(office: &Host, outside: &Host) -> String {
    let config = PAGE.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let namespace = |config: String, name: &str, host: &Host| {
        config.replace(&format!("namespace = \"{name}\""), &format!("namespace = {:?}", host.namespace()))
    };
    let config = namespace(config.to_owned(), "office", office);
    format!("{ENGINE}{}", namespace(config, "outside", outside))
}

/// The connections that a query selects.
fn list(daemon: &Daemon, query: &str) -> Vec<ConnectionInfo> {
    daemon.get::<ConnectionList>(&format!("{}?{query}", path::CONNECTIONS)).connections
}

fn flush(daemon: &Daemon, query: &str) -> u64 {
    let (status, body) = daemon.request("DELETE", &format!("{}?{query}", path::CONNECTIONS), "");
    assert_eq!(status, 200, "{body}");
    serde_json::from_str::<FlushedConnections>(&body).unwrap().ended
}

#[test]
fn only_the_office_opens_connections_and_they_are_listed_and_flushed() {
    if !hosts::are_possible() {
        return;
    }
    let [office, outside] = ["co", "ci"].map(Host::bare);
    let daemon = Daemon::start(&firewall(&office, &outside));
    assert!(office.pings("10.0.0.2"), "{}", daemon.log());
    let once = "busybox ping -c 1 -W 1 10.0.0.1";
    assert!(!outside.output(once).status.success(), "the outside can only answer");
    let server = Ipv4Addr::new(10, 0, 0, 2);
    outside.echo(server, 7);
    let answered = office.inside(move || {
        let socket = asking(server.into(), 7, Duration::from_secs(5));
        socket.send(b"question").and_then(|_| socket.recv(&mut [0; 16]))
    });
    assert_eq!(answered.join().unwrap().ok(), Some(8), "{}", daemon.log());

    let icmp = list(&daemon, "protocol=icmp");
    assert!(!icmp.is_empty() && icmp.iter().all(|one| one.port == "office"), "{icmp:?}");
    assert!(icmp.iter().all(|one| one.source.starts_with("10.0.0.1:")), "{icmp:?}");
    let udp = list(&daemon, "protocol=17&l4_port=7&address=10.0.0.0/30&port=office&zone=0");
    let [udp] = &udp[..] else { panic!("{udp:?}") };
    assert_eq!((&*udp.state, &*udp.destination), ("replied", "10.0.0.2:7"));
    assert!(udp.packets > 0 && udp.packets == udp.reply_packets && udp.bytes == udp.reply_bytes, "{udp:?}");
    for none in ["protocol=tcp", "l4_port=8", "address=10.0.0.3", "zone=1", "port=outside", "limit=0"] {
        assert_eq!(list(&daemon, none), [], "{none}");
    }

    assert_eq!(flush(&daemon, "l4_port=7"), 1);
    assert_eq!(list(&daemon, "protocol=udp"), []);
    let counts = daemon.stats().connections.unwrap();
    assert_eq!((counts.flushed, counts.connections), (1, icmp.len() as u64), "{counts:?}");
    let (_, metrics) = daemon.request("GET", path::METRICS, "");
    assert!(metrics.contains("netvm_connections_ended_total{by=\"flush\"} 1"), "{metrics}");
    assert_eq!(flush(&daemon, ""), icmp.len() as u64);
    assert!(office.pings("10.0.0.2"), "connections begin again");
}

#[test]
fn wrong_queries_and_hosts_that_track_nothing_are_told_so() {
    let sink = "\n[[port]]\nname = \"p\"\nkind = \"sink\"\nforward = { normal = true }\n";
    let daemon = Daemon::start(&format!("{ENGINE}{sink}"));
    for method in ["GET", "DELETE"] {
        let (status, message) = daemon.request(method, path::CONNECTIONS, "");
        assert!(status == 404 && message.contains("track = true"), "{message}");
    }
    assert_eq!(daemon.stats().connections, None);
    let tracking = sink.replace("forward", "track = true\nforward");
    let _: netvm_api::ApplyReply = daemon.post(path::APPLY, &format!("{ENGINE}{tracking}"));
    assert_eq!(list(&daemon, ""), []);
    let wrong = [
        ("GET", "address=10.0.0.1/8", 422),
        ("GET", "protocol=tcpp", 422),
        ("GET", "zone=70000", 422),
        ("GET", "adress=10.0.0.1", 422),
        ("GET", "port=q", 404),
        ("DELETE", "limit=3", 422),
        ("DELETE", "adress=10.0.0.1", 422),
    ];
    for (method, query, expected) in wrong {
        let (status, message) = daemon.request(method, &format!("{}?{query}", path::CONNECTIONS), "");
        assert_eq!(status, expected, "{method} {query}: {message}");
    }
}
