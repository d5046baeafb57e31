// SPDX-License-Identifier: Apache-2.0
//! A router at ports without a device: the L2 switch's own interface, where packets are switched and routed in one
//! pass, and a port for a VLAN tag.

use std::collections::BTreeMap;

use crate::plan::*;
use crate::support::pcap::{Scratch, finish};
use crate::support::{Rig, port};
use netvm_engine::{Hypothetical, PortId, PortView, Step};
use netvm_model::{EngineConfig, Forward, Host, PortKind, RouterId, Span, VlanMode};
use netvm_router::{Hop, NextHop, NextHopId, Update};
use netvm_wire::{FrameBuilder, MacAddr, VlanId};

/// Ports of hosts on the switch.
const A: u16 = 4;
const B: u16 = 5;
/// A host that has sent nothing.
const SILENT: MacAddr = MacAddr([2, 0, 0, 0, 1, 8]);

/// The LAN is the switch, with hosts at two ports. `frames`: by port, what it receives.
fn switched(scratch: &Scratch, frames: &BTreeMap<u16, Vec<Vec<u8>>>) -> Host {
    let capture = |id| scratch.port(id, frames.get(&id).map_or(&[][..], Vec::as_slice));
    let mut ports = vec![port(LAN, "lan", PortKind::Bridge)];
    ports.extend([WAN, LAN_PUNT, WAN_PUNT, A, B].map(capture));
    let mut host = routed(ports, 0, 0);
    for port in [A, B] {
        host.ports[usize::from(port)].policy.forward = Forward::Normal;
    }
    host
}

/// The neighbours on the LAN, besides the usual routes.
fn with_neighbour() -> Update {
    let mut update = routes();
    update.next_hops.push((NextHopId(2), NextHop::Via(Hop { interface: 0, mac: HOST })));
    update.routes.push(route("10.0.0.9/32", 2));
    update
}

/// Plays the captures; returns the ports, and the steps of traced frames from port A.
fn play(host: &Host, traced: &[Vec<u8>]) -> (Vec<PortView>, Vec<Vec<Step>>) {
    let mut rig = Rig::new(&EngineConfig::default());
    let free = start_routed(&mut rig, host, &with_neighbour());
    finish(&mut rig);
    let trace = |frame: &Vec<u8>| rig.engine.trace(Hypothetical::of(PortId(A), frame)).unwrap();
    let steps = traced.iter().map(trace).collect();
    let views = rig.engine.ports();
    rig.engine.apply(&Host { ports: Vec::new(), routers: Vec::new(), ..host.clone() }).unwrap();
    assert!(rig.free_buffers().iter().zip(&free).all(|(now, before)| now >= before), "buffers are lost");
    (views, steps)
}

fn arp() -> Vec<u8> {
    let request = FrameBuilder::new(HOST, MacAddr::BROADCAST)
        .arp_request("10.0.0.9".parse().unwrap(), "10.0.0.1".parse().unwrap());
    request.to_vec().unwrap()
}

/// A frame with other MAC addresses.
fn between(from: MacAddr, to: MacAddr, mut frame: Vec<u8>) -> Vec<u8> {
    frame[..6].copy_from_slice(&to.0);
    frame[6..12].copy_from_slice(&from.0);
    frame
}

/// What an IPv4 router makes of a frame.
fn forwarded(from: MacAddr, to: MacAddr, mut frame: Vec<u8>) -> Vec<u8> {
    frame[22] -= 1;
    seal(between(from, to, frame))
}

#[test]
fn hosts_on_the_switch_reach_what_is_behind_its_router_and_the_other_way_round() {
    let scratch = Scratch::new();
    let out: Vec<_> = (0..50).map(|n| datagram(false, n)).collect();
    let back = v4("10.0.0.9").udp(53, 1000).payload(b"answer").to_vec().unwrap();
    let announced = between(IN, MacAddr::BROADCAST, arp());
    let unknown = between(HOST, SILENT, datagram(false, 99));
    let from_a = [&out[..], &[arp(), unknown.clone()]].concat();
    let frames = BTreeMap::from([
        (A, from_a),
        (WAN, vec![between(GATEWAY, OUT, back.clone())]),
        (LAN_PUNT, vec![announced.clone()]),
    ]);
    let mut host = switched(&scratch, &frames);
    host.ports[usize::from(WAN)].policy.forward = Forward::Router(RouterId(0));
    let (views, steps) = play(&host, &[out[0].clone()]);
    // Routed, each once.
    let expected: Vec<_> = out.iter().map(|frame| forwarded(OUT, GATEWAY, frame.clone())).collect();
    assert_eq!(scratch.sent(WAN), expected);
    // What is for the router's address is flooded to nobody; broadcasts reach each port once, and the router's kernel.
    let answer = forwarded(IN, HOST, back);
    let but_answers = |port| {
        let mut sent = scratch.sent(port);
        sent.retain(|frame| *frame != answer);
        sent.sort_unstable();
        sent
    };
    let mut at_b = vec![announced.clone(), arp(), unknown];
    at_b.sort_unstable();
    assert_eq!(but_answers(B), at_b);
    assert_eq!(but_answers(A), [announced]);
    assert_eq!(scratch.sent(LAN_PUNT), [arp()]);
    // The host may not have sent anything when its answer came.
    assert_eq!(scratch.sent(A).iter().filter(|frame| **frame == answer).count(), 1);
    // The interface counts what it gets from the switch, and what it sends there.
    let lan = &views[usize::from(LAN)];
    assert_eq!((lan.rx_packets, lan.tx_packets), (50 + 2, 2), "{lan:?}");
    assert_eq!((lan.link, lan.is_open, lan.workers.len()), (Some(true), true, 0));
    assert!(lan.drops.iter().all(|(reason, count)| (reason.name(), *count) == ("not-for-router", 1)));
    // A trace passes the interface, too.
    let ports: Vec<_> =
        steps[0].iter().filter(|step| matches!(step, Step::In(_) | Step::Switched(_))).collect();
    assert_eq!(
        ports,
        [&Step::In(PortId(A)), &Step::Switched(Some(PortId(LAN))), &Step::In(PortId(LAN))],
        "{steps:?}"
    );
    assert!(steps[0].ends_with(&[Step::Out(PortId(WAN))]), "{steps:?}");
}

#[test]
fn a_router_has_interfaces_in_several_vlans_of_the_switch() {
    let vlan = |id| VlanId::new(id).unwrap();
    let trunk = VlanMode::Trunk { vlans: vec![Span { first: 10, last: 20 }], native: None };
    // One interface for each VLAN, or one trunk for both.
    for is_trunk in [false, true] {
        let scratch = Scratch::new();
        let frames = BTreeMap::from([(A, vec![datagram(false, 1), arp()])]);
        let mut host = switched(&scratch, &frames);
        for (port, mode) in [(A, 10), (B, 20), (LAN, 10), (WAN, 20)] {
            host.ports[usize::from(port)].policy.vlan = VlanMode::Access(vlan(mode));
        }
        let interfaces = &mut host.routers[0].interfaces;
        if is_trunk {
            host.ports[usize::from(LAN)].policy.vlan = trunk.clone();
            (interfaces[0].vlan, interfaces[1].vlan) = (Some(vlan(10)), Some(vlan(20)));
            interfaces[1].port = PortId(LAN);
        } else {
            host.ports[usize::from(WAN)].kind = PortKind::Bridge;
            host.ports[usize::from(WAN)].policy.forward = Forward::Router(RouterId(0));
        }
        play(&host, &[]);
        // By the router from VLAN 10 into VLAN 20, where the gateway's address is unknown; the broadcast stays.
        assert_eq!(scratch.sent(B), [forwarded(OUT, GATEWAY, datagram(false, 1))], "{is_trunk}");
        assert_eq!(scratch.sent(LAN_PUNT), [arp()], "{is_trunk}");
        assert!(scratch.sent(WAN_PUNT).is_empty() && scratch.sent(A).is_empty(), "{is_trunk}");
    }
}

#[test]
fn a_router_is_at_a_tag_of_a_port() {
    let scratch = Scratch::new();
    let announced = between(IN, MacAddr::BROADCAST, arp());
    let frames = BTreeMap::from([
        (A, vec![tagged(&datagram(false, 1), 30), datagram(false, 2), tagged(&arp(), 30)]),
        (LAN_PUNT, vec![announced.clone()]),
    ]);
    let mut host = switched(&scratch, &frames);
    let lan = &mut host.ports[usize::from(LAN)];
    lan.kind = PortKind::Vlan { parent: PortId(A), tag: VlanId::new(30).unwrap() };
    host.ports[usize::from(A)].policy.forward = Forward::Port(PortId(B));
    let (views, steps) = play(&host, &[tagged(&datagram(false, 3), 30)]);
    assert_eq!(scratch.sent(WAN), [forwarded(OUT, GATEWAY, datagram(false, 1))]);
    assert_eq!(scratch.sent(B), [datagram(false, 2)], "without the tag, it is the port's own");
    assert_eq!(scratch.sent(LAN_PUNT), [arp()]);
    assert_eq!(scratch.sent(A), [tagged(&announced, 30)]);
    let of = |port: u16| (views[usize::from(port)].rx_packets, views[usize::from(port)].tx_packets);
    assert_eq!([of(A), of(LAN)], [(3, 1), (2, 1)]);
    let popped = Step::TagPopped(VlanId::new(30).unwrap());
    let expected = [Step::In(PortId(A)), popped, Step::In(PortId(LAN))];
    assert!(steps[0].starts_with(&expected), "{steps:?}");
}
