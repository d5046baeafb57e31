// SPDX-License-Identifier: Apache-2.0
//! Ports that track connections, in a whole worker: states in rules, and what begins a connection.

mod nat;
mod stored;

use netvm_conntrack::ProxyTable;
use netvm_model::{ConnectionsConfig, Forward, Host, PortConfig, PortPolicy};
use netvm_wire::{ConnState, FrameBuilder, TcpFlags, checksum, parse};

use super::rig::{CHAIN, Rig, ip, mac, port, udp};
use crate::drop_reason::DropReason;
use crate::worker::{Command, TableMemory, WorkerConnections};

/// Two ports that track and send to each other, with further lines for port 1, and a rule.
fn ports_and_rule(of_p1: &str, rule: &str) -> String {
    let port = |n: usize, lines: &str| {
        let to = 1 - n;
        format!(
            "[[port]]\nname = \"p{n}\"\nkind = \"sink\"\ntrack = true\nforward = {{ out = \"p{to}\" }}\n{lines}\n"
        )
    };
    format!("{}{}[[rule]]\n{rule}\n", port(0, ""), port(1, of_p1))
}

/// Port 0 may begin connections with hosts behind port 1, which may only answer.
fn client_and_server() -> String {
    let rule = r#"
from = "p1"
match = { state = ["established", "related"] }
allow = true"#;
    ports_and_rule(r#"acl_in = "deny""#, rule)
}

fn host(text: &str) -> Host {
    netvm_config::parse("tracked", text).unwrap_or_else(|error| panic!("{}", error.render(false))).host
}

/// A worker with a table for these connections.
fn tracking(text: &str, config: &ConnectionsConfig) -> Rig {
    let mut rig = Rig::of(&host(text));
    let table = Box::new(WorkerConnections::new(config, None).unwrap());
    rig.command(Command::SetConnections(Some(table)));
    rig
}

fn rig() -> Rig {
    tracking(&client_and_server(), &ConnectionsConfig::default())
}

/// A frame from the server to the client.
fn back() -> FrameBuilder<'static> {
    let frame = FrameBuilder::new(mac(2), mac(1));
    frame.ip("10.0.0.2".parse().unwrap(), "10.0.0.1".parse().unwrap())
}

/// The frames that leave by the other port of `from` when it receives this one.
fn passes(rig: &mut Rig, from: usize, frame: &[u8]) -> bool {
    rig.receive(from, frame);
    rig.turn();
    rig.sent(1 - from) == [frame.to_vec()]
}

fn connections(rig: &Rig) -> u32 {
    rig.worker.dp.connections.as_ref().unwrap().table.len()
}

#[test]
fn only_answers_of_connections_come_back() {
    let mut rig = rig();
    let answer = back().udp(53, 1000).to_vec().unwrap();
    assert!(!passes(&mut rig, 1, &answer));
    assert_eq!((rig.dropped_at(1, DropReason::Denied), connections(&rig)), (1, 0), "it leaves no trace");
    assert!(passes(&mut rig, 0, &udp(1, 2, 53)));
    assert_eq!(connections(&rig), 1);
    assert!(passes(&mut rig, 1, &answer));
    let of_other_port = back().udp(53, 1001).to_vec().unwrap();
    assert!(!passes(&mut rig, 1, &of_other_port));
    assert_eq!(connections(&rig), 1);
    rig.assert_nothing_leaked();
}

#[test]
fn a_handshake_establishes_a_connection() {
    let mut rig = rig();
    let syn = ip(1, 2).tcp(1000, 80, TcpFlags::SYN).numbers(100, 0).to_vec().unwrap();
    let syn_ack = back().tcp(80, 1000, TcpFlags::SYN | TcpFlags::ACK).numbers(500, 101).to_vec().unwrap();
    assert!(!passes(&mut rig, 1, &syn_ack));
    assert!(passes(&mut rig, 0, &syn));
    assert!(passes(&mut rig, 1, &syn_ack));
    let far = back().tcp(80, 1000, TcpFlags::RST).numbers(0x7000_0000, 0).to_vec().unwrap();
    assert!(!passes(&mut rig, 1, &far), "a reset outside of the window is invalid");
    rig.assert_nothing_leaked();
}

#[test]
fn a_burst_begins_a_connection_once() {
    let mut rig = rig();
    (0..20).for_each(|_| rig.receive(0, &udp(1, 2, 53)));
    rig.turn();
    assert_eq!((rig.sent(1).len(), connections(&rig)), (20, 1));
}

#[test]
fn a_scan_beyond_the_quota_of_its_source_is_dropped_and_others_go_on() {
    let quota = ConnectionsConfig { per_source: 8, ..ConnectionsConfig::default() };
    let half_open = ConnectionsConfig { half_open_per_source: 8, ..ConnectionsConfig::default() };
    for (config, reason) in [(quota, DropReason::ConnQuota), (half_open, DropReason::ConnHalfOpen)] {
        let mut rig = tracking(&client_and_server(), &config);
        for port in 0..100 {
            rig.receive(0, &udp(1, 2, 1000 + port));
        }
        while rig.turn() > 0 {}
        assert_eq!((rig.sent(1).len(), connections(&rig)), (8, 8));
        assert_eq!(rig.dropped_at(0, reason), 92);
        let other =
            FrameBuilder::new(mac(3), mac(2)).ip("10.0.0.3".parse().unwrap(), "10.0.0.2".parse().unwrap());
        assert!(passes(&mut rig, 0, &other.udp(1, 1).to_vec().unwrap()));
        rig.assert_nothing_leaked();
    }
}

#[test]
fn rules_of_the_port_that_packets_leave_by_know_the_state() {
    let rule = r#"
to = "p0"
match = { state = "new" }
drop = true"#;
    let mut rig = tracking(&ports_and_rule("", rule), &ConnectionsConfig::default());
    let answer = back().udp(53, 1000).to_vec().unwrap();
    assert!(!passes(&mut rig, 1, &answer));
    assert_eq!(rig.dropped_at(0, DropReason::Rule), 1);
    assert!(passes(&mut rig, 0, &udp(1, 2, 99)));
    assert!(passes(&mut rig, 1, &back().udp(99, 1000).to_vec().unwrap()));
}

#[test]
fn nfs_learn_the_state_of_each_packet() {
    let ports = (0..2).map(|n| {
        let policy = PortPolicy { track: true, forward: Forward::Chain(CHAIN), ..PortPolicy::default() };
        PortConfig { policy, ..port(n, Forward::None) }
    });
    let mut rig = Rig::of(&Host { ports: ports.collect(), ..Host::default() }).with_chain(1, &[]);
    let table = Box::new(WorkerConnections::new(&ConnectionsConfig::default(), None).unwrap());
    rig.command(Command::SetConnections(Some(table)));
    let mut seen = |from: usize, frame: &[u8]| {
        rig.receive(from, frame);
        rig.turn();
        let [packet] = rig.nfs[0].take()[..] else { panic!("one packet") };
        (packet.ingress(), packet.state())
    };
    let answer = back().udp(53, 1000).to_vec().unwrap();
    let [new, established] = [ConnState::New, ConnState::Established].map(|state| state as u8);
    assert_eq!(seen(0, &udp(1, 2, 53)), (0, new));
    assert_eq!(seen(1, &answer), (1, established));
    assert_eq!(seen(0, &udp(1, 2, 53)), (0, established));
}

/// Port 0 may begin connections of TCP with hosts behind port 1 whose clients have proved their addresses.
fn proxied() -> Rig {
    let rule = r#"
from = "p0"
match = { protocol = "tcp", state = "new" }
allow = true
syn_proxy = true

[[rule]]
match = { state = "established" }
allow = true"#;
    let deny = r#"acl_in = "deny""#;
    let text = ports_and_rule(deny, rule).replacen("track = true", &format!("track = true\n{deny}"), 1);
    let mut rig = tracking(&text, &ConnectionsConfig { pick_up: false, ..ConnectionsConfig::default() });
    rig.command(Command::ExtendConnections(TableMemory::SynProxy(ProxyTable::new(1 << 16).unwrap())));
    rig
}

/// Flags, sequence number and acknowledgment of the only frame that has left by a port since the last call.
fn segment(rig: &mut Rig, port: usize) -> Option<(TcpFlags, u32, u32)> {
    let sent = rig.sent(port);
    let [frame] = &sent[..] else {
        assert!(sent.is_empty(), "{}", sent.len());
        return None;
    };
    let headers = parse(frame).unwrap();
    assert_eq!(checksum::verify(frame, &headers), Ok(()));
    let tcp = &frame[headers.l4_offset().unwrap()..];
    let number = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
    Some((headers.key().tcp_flags, number(4), number(8)))
}

/// Lets a port receive a segment. Returns what leaves by both.
fn receives(rig: &mut Rig, from: usize, frame: &[u8]) -> [Option<(TcpFlags, u32, u32)>; 2] {
    rig.receive(from, frame);
    while rig.turn() > 0 {}
    [0, 1].map(|port| segment(rig, port))
}

#[test]
fn a_syn_proxy_asks_clients_before_connections_begin() {
    const SYN: TcpFlags = TcpFlags::SYN;
    const ACK: TcpFlags = TcpFlags::ACK;
    let client = |flags, own, other| ip(1, 2).tcp(1000, 80, flags).numbers(own, other).to_vec().unwrap();
    let server = |flags, own, other| back().tcp(80, 1000, flags).numbers(own, other).to_vec().unwrap();
    let mut rig = proxied();
    let [Some((flags, cookie, 101)), None] = receives(&mut rig, 0, &client(SYN, 100, 0)) else { panic!() };
    assert_eq!((flags, connections(&rig)), (SYN | ACK, 0));
    assert_eq!(receives(&mut rig, 0, &client(ACK, 101, cookie)), [None; 2]);
    assert_eq!((rig.dropped_at(0, DropReason::SynAnswered), connections(&rig)), (1, 0));

    let next = cookie.wrapping_add(1);
    assert_eq!(receives(&mut rig, 0, &client(ACK, 101, next)), [None, Some((SYN, 100, 0))]);
    assert_eq!(connections(&rig), 1);
    let opening = receives(&mut rig, 1, &server(SYN | ACK, 500, 101));
    assert_eq!(opening, [Some((ACK, next, 101)), Some((ACK, 101, 501))]);
    assert_eq!(receives(&mut rig, 0, &client(ACK, 101, next)), [None, Some((ACK, 101, 501))]);
    assert_eq!(receives(&mut rig, 1, &server(ACK, 501, 101)), [Some((ACK, next, 101)), None]);
    let fin = TcpFlags::FIN | ACK;
    assert_eq!(receives(&mut rig, 1, &server(fin, 501, 101)), [Some((fin, next, 101)), None]);
    rig.assert_nothing_leaked();
}

#[test]
fn a_syn_flood_begins_no_connection() {
    let mut rig = proxied();
    for number in 0..200u8 {
        rig.receive(0, &ip(number, 2).tcp(1000, 80, TcpFlags::SYN).to_vec().unwrap());
    }
    while rig.turn() > 0 {}
    assert_eq!((rig.sent(0).len(), rig.sent(1).len(), connections(&rig)), (200, 0, 0));
    assert_eq!(rig.dropped_at(0, DropReason::SynAnswered), 200);
    rig.assert_nothing_leaked();
}

#[test]
fn a_packet_that_does_not_get_out_leaves_no_connection() {
    for drops in ["drop = true", "reject = true"] {
        let rule = format!("to = \"p1\"\nmatch = {{ destination_ports = 53 }}\n{drops}");
        let mut rig = tracking(&ports_and_rule("", &rule), &ConnectionsConfig::default());
        assert!(!passes(&mut rig, 0, &udp(1, 2, 53)));
        assert_eq!(connections(&rig), 0, "{drops}");
        assert!(passes(&mut rig, 0, &udp(1, 2, 99)));
        assert_eq!(connections(&rig), 1);
    }
}
