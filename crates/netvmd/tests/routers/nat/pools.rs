// SPDX-License-Identifier: Apache-2.0
//! Pools in the network of the uplink: nobody routes them to the router, which answers ARP for them.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::mpsc;
use std::time::Duration;

use netvm_api::{ApplyReply, path};

use super::super::common::hosts::{are_possible, within};
use super::{INTERNET, Net, connect, must};

const PORT: u16 = 7200;

const RULES: &str = r#"
[[nat]]
name = "pool"
to = "uplink"
match = { source = "10.0.0.0/24" }
snat = "203.0.113.8-203.0.113.9"

[[nat]]
name = "published"
from = "uplink"
match = { destination = "203.0.113.7", destination_ports = 8080, protocol = "tcp" }
dnat = "10.0.0.11:80"

[[nat]]
name = "v6"
to = "uplink"
match = { source = "fd00::/64" }
snat = "2001:db8:9::/64"
"#;

#[test]
fn a_pool_in_the_network_of_the_uplink_is_reached_without_routes() {
    if !are_possible() {
        return;
    }
    let net = Net::new('l');
    let daemon = net.start(&net.config(false, RULES));
    let local = || {
        let show = |family: &str| {
            let words = ["-n", &format!("netvm-{}", net.router), family, "route", "show", "table", "local"];
            let output = std::process::Command::new("ip").args(words).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        show("-4") + &show("-6")
    };
    let prefixes =
        ["local 203.0.113.7 dev lo", "local 203.0.113.8/31 dev lo", "local 2001:db8:9::/64 dev lo"];
    assert!(prefixes.iter().all(|prefix| local().contains(prefix)), "{}", local());

    // Answers come back to the pool.
    let ((bound, is_bound), (peer, peers)) = (mpsc::channel(), mpsc::channel());
    net.internet.inside(move || {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap();
        bound.send(()).unwrap();
        while let Ok((_, from)) = listener.accept() {
            if peer.send(from.ip().to_string()).is_err() {
                return;
            }
        }
    });
    is_bound.recv().unwrap();
    for host in [&net.app, &net.web] {
        connect(host, &format!("{INTERNET}:{PORT}")).unwrap();
        let seen = peers.recv_timeout(Duration::from_secs(5)).unwrap();
        assert!(["203.0.113.8", "203.0.113.9"].contains(&&seen[..]), "{seen}\n{}", daemon.log());
    }
    // An address of its own for a published port.
    let _servers = net.run(&net.commands(2)[..1]);
    must(&net.internet, "busybox wget -q -O /dev/null http://203.0.113.7:8080/os-release");
    // The router refuses what nobody inside has asked for.
    for end in ["203.0.113.8:9", "203.0.113.9:9", "203.0.113.7:9"] {
        assert_eq!(connect(&net.internet, end).unwrap_err(), ErrorKind::ConnectionRefused, "{end}");
    }

    let _: ApplyReply = daemon.post(path::APPLY, &net.config(false, ""));
    let is_gone = || prefixes.iter().all(|prefix| !local().contains(prefix));
    assert!(within(Duration::from_secs(10), is_gone), "{}", local());
    assert!(net.app.pings(INTERNET), "the rest goes on: {}", daemon.log());
}

const SIX: &str = r#"
[[nat]]
name = "six"
to = "uplink"
match = { source = "fd00::/64" }
snat = "2001:db8:9::100-2001:db8:9::1ff"
"#;

#[test]
fn a_pool_of_ipv6_in_the_network_of_the_uplink_is_reached_without_routes() {
    if !are_possible() {
        return;
    }
    let net = Net::new('e');
    let mut config = net.config(false, SIX);
    for (old, new) in [
        ("\"203.0.113.1/24\"", "\"203.0.113.1/24\", \"2001:db8:9::1/64\""),
        ("\"203.0.113.2/24\"", "\"203.0.113.2/24\", \"2001:db8:9::2/64\""),
        ("[\"10.0.0.1/24\"]", "[\"10.0.0.1/24\", \"fd00::1/64\"]"),
        ("\"10.0.0.12/24\"", "\"10.0.0.12/24\", \"fd00::12/64\""),
        ("gateways = [\"10.0.0.1\"]", "gateways = [\"10.0.0.1\", \"fd00::1\"]"),
    ] {
        assert!(config.contains(old), "{config}");
        config = config.replace(old, new);
    }
    // The other container has no address of this family, so no gateway either.
    let (first, rest) = config.split_once("[[port]]").unwrap().1.split_once("[[port]]").unwrap();
    let head = config.split_once("[[port]]").unwrap().0;
    let first = first.replace(", \"fd00::1\"]", "]");
    let daemon = net.start(&format!("{head}[[port]]{first}[[port]]{rest}"));
    let ((bound, is_bound), (peer, peers)) = (mpsc::channel(), mpsc::channel());
    net.internet.inside(move || {
        let listener = TcpListener::bind(("::", PORT)).unwrap();
        bound.send(()).unwrap();
        while let Ok((_, from)) = listener.accept() {
            if peer.send(from.ip().to_string()).is_err() {
                return;
            }
        }
    });
    is_bound.recv().unwrap();
    assert!(net.app.pings("fd00::1"), "{}", daemon.log());
    // The answers come back to an address that the internet asks for by neighbour discovery.
    connect(&net.app, &format!("[2001:db8:9::1]:{PORT}"))
        .unwrap_or_else(|error| panic!("{error}: {:?}\n{}", daemon.stats().drops, daemon.log()));
    let seen = peers.recv_timeout(Duration::from_secs(5)).unwrap();
    assert!(seen.starts_with("2001:db8:9::1") && seen.len() == "2001:db8:9::1ff".len(), "{seen}");
    // Also for one that stands for nobody: the router refuses packets to it.
    assert_eq!(
        connect(&net.internet, "[2001:db8:9::1fe]:9").unwrap_err(),
        ErrorKind::ConnectionRefused,
        "{}",
        daemon.log()
    );
}
