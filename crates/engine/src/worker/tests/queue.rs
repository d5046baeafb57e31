// SPDX-License-Identifier: Apache-2.0
//! Rules that choose the queue, on every path to a port with a shaper.

use std::sync::Arc;

use netvm_model::{Forward, Host, Rate, RouterId};
use netvm_router::{Hop, NextHop, NextHopId, Tables, Update};
use netvm_wire::{FrameBuilder, MacAddr, TcpFlags};

use super::rig::{CHAIN, Rig, ip, mac, rules};
use crate::ids::PortId;
use crate::router::{Ingress, InterfacePath, PuntLimits, RouterPath, UnresolvedLimit};
use crate::snapshot::Snapshot;

/// The code point of `voice`.
const EF: u8 = 46;
/// Queues whose shaper never delays a test's packets.
const QOS: &str = "qos = { bits = 1_000_000_000, queues = [{ name = \"voice\", dscp = \"ef\", priority = true }, { name = \"rest\" }] }";
/// Packets from these UDP ports are voice, and from the others the rest, whatever their DSCP.
const VOICE: std::ops::Range<u16> = 100..200;
const REST: std::ops::Range<u16> = 200..300;
/// They may be switched or routed later.
const RULES: [&str; 2] = [
    "match = { protocol = \"udp\", source_ports = \"100-199\" }\nqueue = \"voice\"",
    "match = { protocol = \"udp\", source_ports = \"200-299\" }\nqueue = \"rest\"",
];

fn frame(dscp: u8, source_port: u16) -> Vec<u8> {
    ip(1, 2).dscp(dscp).udp(source_port, 1).to_vec().unwrap()
}

/// The packets that each queue of a port has sent: of `voice` and of `rest`.
fn sent(rig: &mut Rig, port: u16) -> [u64; 2] {
    let shaper = rig.worker.dp.ports.get_mut(PortId(port)).unwrap().shaper().unwrap();
    let counters = shaper.counters();
    [counters[0].packets.get(), counters[1].packets.get()]
}

/// Packets of all kinds: two are voice by DSCP, three by rule; one is the rest by DSCP, two by rule.
fn receive_all_kinds(rig: &Rig) {
    let by_rule = |ports: std::ops::Range<u16>, dscp, count| ports.take(count).map(move |n| frame(dscp, n));
    let by_dscp = [frame(EF, 1), frame(EF, 2), frame(0, 3)];
    let frames = by_rule(VOICE, 0, 3).chain(by_dscp).chain(by_rule(REST, EF, 2));
    frames.for_each(|frame| rig.receive(0, &frame));
}

fn finish(rig: &mut Rig) {
    while rig.turn() > 0 {}
}

/// `p0` and its rules; it sends to `p1`, which has queues.
fn host(extra: &[&str]) -> Host {
    rules(&["forward = { out = \"p1\" }", QOS, QOS], &[&RULES, extra].concat())
}

#[test]
fn a_rule_chooses_the_queue_against_the_dscp() {
    let mut rig = Rig::of(&host(&[]));
    receive_all_kinds(&rig);
    finish(&mut rig);
    assert_eq!(sent(&mut rig, 1), [5, 3]);
    assert_eq!(rig.sent(1).len(), 8);
    rig.assert_nothing_leaked();
}

#[test]
fn a_rule_for_all_packets_of_a_port_chooses_their_queue() {
    for forward in ["forward = { out = \"p1\" }", "forward = { normal = true }"] {
        let mut rig = Rig::of(&rules(
            &[forward, &format!("forward = {{ normal = true }}\n{QOS}")],
            &["queue = \"voice\""],
        ));
        receive_all_kinds(&rig);
        finish(&mut rig);
        assert_eq!(sent(&mut rig, 1), [8, 0], "{forward}");
    }
}

#[test]
fn packets_of_a_known_flow_keep_its_queue() {
    let mut rig = Rig::of(&host(&[]));
    for n in 1..=3 {
        rig.receive(0, &frame(0, 100));
        rig.receive(0, &frame(EF, 200));
        finish(&mut rig);
        assert_eq!(sent(&mut rig, 1), [n, n]);
        let counters = rig.worker.dp.flows.cache.counters();
        assert_eq!((counters.misses, counters.hits), (2, 2 * (n - 1)));
    }
}

#[test]
fn a_buffer_passes_its_queue_to_no_later_packet() {
    let mut rig = Rig::of(&host(&[]));
    // The only free buffer: each packet has the mbuf of the one before.
    let held = rig.hold_all_buffers_but(1);
    for (n, expected) in [(100, [1, 0]), (1, [1, 1]), (100, [2, 1]), (2, [2, 2])] {
        rig.receive(0, &frame(0, n));
        finish(&mut rig);
        assert_eq!(sent(&mut rig, 1), expected);
    }
    drop(held);
    rig.assert_nothing_leaked();
}

#[test]
fn a_port_without_the_queue_goes_by_dscp() {
    let other = QOS.replacen("\"voice\"", "\"phone\"", 1);
    let mut host = rules(&["forward = { out = \"p1\" }", &other, QOS, ""], &RULES);
    for (port, expected) in [(1, [3, 6]), (2, [6, 3])] {
        host.ports[0].policy.forward = Forward::Port(PortId(port));
        let mut rig = Rig::of(&host);
        receive_all_kinds(&rig);
        rig.receive(0, &frame(EF, 150));
        finish(&mut rig);
        assert_eq!(sent(&mut rig, port), expected, "p{port}");
    }
    host.ports[0].policy.forward = Forward::Port(PortId(3));
    let mut rig = Rig::of(&host);
    receive_all_kinds(&rig);
    finish(&mut rig);
    assert_eq!(rig.sent(3).len(), 8, "no shaper, no queue");
    rig.assert_nothing_leaked();
}

#[test]
fn the_last_rule_that_ran_decides() {
    let udp = "match = { protocol = \"udp\", source_ports = \"100-101\" }";
    // Before it leaves: alone, with a change of the packet, and on a port where a rule denies others.
    for egress in ["queue = \"rest\"", "queue = \"rest\"\nset_vlan = 7", "queue = \"rest\"\nallow = true"] {
        let mut rig = Rig::of(&host(&[&format!("to = \"p1\"\n{udp}\n{egress}")]));
        receive_all_kinds(&rig);
        finish(&mut rig);
        assert_eq!(sent(&mut rig, 1), [3, 5], "{egress}");
    }
    // And among rules for received packets.
    let mut rig = Rig::of(&host(&[&format!("{udp}\nqueue = \"rest\"")]));
    receive_all_kinds(&rig);
    finish(&mut rig);
    assert_eq!(sent(&mut rig, 1), [3, 5]);
}

#[test]
fn switched_packets_and_their_copies_have_the_queue() {
    let normal = "forward = { normal = true }";
    let port = format!("{normal}\n{QOS}");
    let mut rig = Rig::of(&rules(&[normal, &port, &port], &RULES));
    receive_all_kinds(&rig);
    finish(&mut rig);
    assert_eq!((sent(&mut rig, 1), sent(&mut rig, 2)), ([5, 3], [5, 3]), "flooded");
    // `mac(2)` is behind `p1`.
    rig.receive(1, &ip(2, 1).udp(1, 1).to_vec().unwrap());
    finish(&mut rig);
    receive_all_kinds(&rig);
    finish(&mut rig);
    assert_eq!((sent(&mut rig, 1), sent(&mut rig, 2)), ([10, 6], [5, 3]));
    // Mirrored.
    let mut rig = Rig::of(&host(&["match = { protocol = \"udp\" }\nmirror = \"p2\""]));
    receive_all_kinds(&rig);
    finish(&mut rig);
    assert_eq!((sent(&mut rig, 1), sent(&mut rig, 2)), ([5, 3], [5, 3]));
    rig.assert_nothing_leaked();
}

#[test]
fn packets_keep_the_queue_on_their_way_through_nfs() {
    let mut host = host(&[]);
    host.ports[0].policy.forward = Forward::Chain(CHAIN);
    let mut rig = Rig::of(&host).with_chain(2, &[]);
    receive_all_kinds(&rig);
    finish(&mut rig);
    for nf in 0..2 {
        let burst = rig.nfs[nf].take();
        assert_eq!(burst.len(), 8);
        rig.nfs[nf].tx.push(&burst);
        finish(&mut rig);
    }
    assert_eq!(sent(&mut rig, 1), [5, 3]);
    rig.assert_nothing_leaked();
}

#[test]
fn the_segments_of_a_long_packet_have_its_queue() {
    let rule = "match = { protocol = \"tcp\" }\nqueue = \"voice\"";
    // Too short a burst for the whole.
    let qos = QOS.replacen("queues", "bit_burst = 36_000, queues", 1);
    let mut rig = Rig::of(&rules(&["forward = { out = \"p1\" }", &qos], &[rule]));
    rig.worker.dp.ports.has_offload_work = true;
    rig.wires[0].lock().unwrap().segment_size = Some(300);
    rig.receive(0, &ip(1, 2).tcp(1000, 80, TcpFlags::ACK).payload(&[7; 3000]).to_vec().unwrap());
    finish(&mut rig);
    assert_eq!(sent(&mut rig, 1), [10, 0]);
    rig.assert_nothing_leaked();
}

/// Adds a router that has an interface on `p0` and one on `p1`, by which all routes go.
fn with_router(mut rig: Rig) -> Rig {
    const HZ: u64 = 1_000_000_000;
    const RATE: Rate = Rate { per_second: 1000, burst: 100 };
    let unresolved = Arc::new(UnresolvedLimit::new(1024, HZ).unwrap());
    let interface = |port: u16| InterfacePath {
        port: PortId(port),
        vlan: None,
        mac: mac(2),
        ingress: Ingress::default(),
        also: Box::new([]),
        mtus: [1500; 2],
        urpf: [None; 2],
        own: [None; 2],
        punt: PortId(100 + port),
        punts: Arc::new(PuntLimits::new(RATE, Arc::clone(&unresolved), HZ).unwrap()),
    };
    let mut tables = Tables::new();
    let hop = NextHop::Via(Hop { interface: 1, mac: MacAddr([2, 0, 0, 0, 0, 9]) });
    tables.apply(&Update {
        next_hops: [(NextHopId(1), hop)].into_iter().collect(),
        routes: ["0.0.0.0/0", "::/0"]
            .into_iter()
            .map(|to| (to.parse().unwrap(), Some(NextHopId(1))))
            .collect(),
    });
    let router = RouterPath::new(RouterId(0), Box::new([interface(0), interface(1)]), Arc::new(tables), &[]);
    let mut snapshot = Snapshot::clone(&rig.worker.snapshot);
    snapshot.routers = Box::new([Some(Arc::new(router))]);
    rig.worker.snapshot = Arc::new(snapshot);
    rig
}

#[test]
fn routed_packets_keep_the_queue() {
    let mut host = host(&[]);
    host.ports[0].policy.forward = Forward::Router(RouterId(0));
    let mut rig = with_router(Rig::of(&host));
    receive_all_kinds(&rig);
    finish(&mut rig);
    assert_eq!(sent(&mut rig, 1), [5, 3]);
    // The general path of the router.
    let v6 = FrameBuilder::new(mac(1), mac(2))
        .ip("2001:db8::1".parse().unwrap(), "2001:db8:1::2".parse().unwrap());
    for n in [100, 101, 1] {
        rig.receive(0, &v6.udp(n, 1).to_vec().unwrap());
    }
    finish(&mut rig);
    assert_eq!(sent(&mut rig, 1), [7, 4]);
    assert_eq!(rig.sent(1).len(), 11);
    rig.assert_nothing_leaked();
}
