// SPDX-License-Identifier: Apache-2.0
//! Virtual routers end to end between captures: what is forwarded, and what is dropped.

use std::collections::BTreeMap;

use super::plan::{self, *};
use crate::support::pcap::{Scratch, finish};
use crate::support::{Rig, behind_nf};
use netvm_engine::{ChainId, DropReason, Hypothetical, InterfaceCounts, PortId, PuntReason, Step, TraceSpec};
use netvm_model::{EngineConfig, Forward, Host, Output, RouterId, Urpf};
use netvm_policy::{Action, Actions, Match, Rule, RuleId, RuleParts};
use netvm_router::NextHop;
use netvm_wire::{FrameBuilder, IpProto, MacAddr, VlanId, parse};

#[test]
fn packets_leave_by_their_route_with_the_tag_of_the_interface() {
    for (inside, outside) in [(0, 0), (10, 0), (0, 20), (10, 20)] {
        let frames: Vec<Vec<u8>> = (0..8).map(|n| tagged(&datagram(n % 2 == 1, n), inside)).collect();
        let scratch = Scratch::new();
        let seen = Played::of(&host(&scratch, &frames, inside, outside), &routes());
        let sent = scratch.sent(WAN);
        assert_eq!(sent.len(), 8, "{inside} {outside}: {:?}", seen.drops);
        for (before, after) in frames.iter().zip(&sent) {
            let (old, new) = (parse(before).unwrap(), parse(after).unwrap());
            assert_eq!((new.key().source_mac, new.key().destination_mac), (OUT, GATEWAY));
            assert_eq!(new.key().vlan.map_or(0, VlanId::get), outside);
            let (mut a, mut b) = (before[old.l3_offset()..].to_vec(), after[new.l3_offset()..].to_vec());
            let (ttl, sum) = if a[0] >> 4 == 4 { (8, 10..12) } else { (7, 7..8) };
            assert_eq!(a[ttl] - 1, b[ttl]);
            if a[0] >> 4 == 4 {
                assert_eq!(netvm_wire::checksum::internet_checksum(&b[..20]), 0);
            }
            for packet in [&mut a, &mut b] {
                packet[ttl] = 0;
                packet[sum.clone()].fill(0);
            }
            assert_eq!(a, b, "nothing else changes");
        }
        assert_eq!((seen.router.forwarded, seen.router.punted), (8, 0));
        let bytes = (0..8).map(|n| datagram(n % 2 == 1, n).len() as u64).sum();
        let lan = InterfaceCounts { rx_packets: 8, rx_bytes: bytes, ..InterfaceCounts::default() };
        let wan = InterfaceCounts { tx_packets: 8, tx_bytes: bytes, ..InterfaceCounts::default() };
        assert_eq!((seen.interfaces[&PortId(LAN_PUNT)], seen.interfaces[&PortId(WAN_PUNT)]), (lan, wan));
        assert!(seen.drops.is_empty(), "{:?}", seen.drops);
    }
}

#[test]
fn what_no_router_passes_on_is_dropped_for_a_reason() {
    let good = || v4("192.0.2.2").udp(1, 1).to_vec().unwrap();
    let changed = |at: usize, byte: u8| {
        let mut frame = good();
        frame[at] ^= byte;
        frame
    };
    let sealed = |at: usize, bytes: &[u8]| {
        let mut frame = good();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        seal(frame)
    };
    let other = |mac: MacAddr| FrameBuilder::new(HOST, mac).ip(ip("10.0.0.9"), ip("192.0.2.2"));
    let cases: Vec<(Vec<u8>, DropReason)> = vec![
        (other(MacAddr([2, 9, 9, 9, 9, 9])).udp(1, 1).to_vec().unwrap(), DropReason::NotForRouter),
        (tagged(&good(), 99), DropReason::NoRouterInterface),
        (v4("198.51.100.1").udp(1, 1).to_vec().unwrap(), DropReason::Blackhole),
        (changed(24, 1), DropReason::BadIpHeader),
        (changed(14, 0x20), DropReason::BadIpHeader),
        (sealed(16, &[0x10, 0]), DropReason::BadIpHeader),
        (sealed(26, &[127, 0, 0, 1]), DropReason::BadIpHeader),
        (sealed(26, &[224, 0, 0, 1]), DropReason::BadIpHeader),
        (sealed(30, &[127, 0, 0, 1]), DropReason::BadIpHeader),
    ];
    let frames: Vec<Vec<u8>> = cases.iter().map(|(frame, _)| frame.clone()).collect();
    let scratch = Scratch::new();
    let seen = Played::of(&host(&scratch, &frames, 0, 0), &routes());
    let mut expected = BTreeMap::new();
    cases.iter().for_each(|(_, reason)| *expected.entry(reason.name()).or_insert(0) += 1);
    assert_eq!(seen.drops, expected);
    assert_eq!((scratch.sent(WAN).len(), scratch.sent(LAN_PUNT).len()), (0, 0));
    // All but the one that no interface has.
    let lan = seen.interfaces[&PortId(LAN_PUNT)];
    assert_eq!((lan.rx_packets, lan.rx_dropped), (cases.len() as u64 - 1, cases.len() as u64 - 1));
}

#[test]
fn flows_spread_over_hops_and_keep_to_theirs() {
    let flow = |n: u32, repeat: u32| {
        v4("192.0.2.2").udp(1000 + n as u16, 53).payload(&repeat.to_be_bytes()).to_vec().unwrap()
    };
    let frames: Vec<Vec<u8>> = (0..1600).map(|n| flow(n % 400, n / 400)).collect();
    let scratch = Scratch::new();
    let mut update = routes();
    let hops = [GATEWAY, MacAddr([2, 0, 0, 0, 9, 2])].map(|mac| netvm_router::Hop { interface: 1, mac });
    update.next_hops[0].1 = NextHop::Ecmp(Box::new(hops));
    let seen = Played::of(&host(&scratch, &frames, 0, 20), &update);
    let mut by_flow: BTreeMap<u16, Vec<(MacAddr, u32)>> = BTreeMap::new();
    for frame in scratch.sent(WAN) {
        let headers = parse(&frame).unwrap();
        let repeat = u32::from_be_bytes(*frame[headers.payload_offset()..].first_chunk().unwrap());
        by_flow.entry(headers.key().source_port).or_default().push((headers.key().destination_mac, repeat));
    }
    assert_eq!((by_flow.len(), seen.router.forwarded), (400, 1600), "{:?}", seen.drops);
    let mut first = 0;
    for (flow, packets) in &by_flow {
        let expected: Vec<_> = (0..4).map(|repeat| (packets[0].0, repeat)).collect();
        assert_eq!(*packets, expected, "flow {flow} keeps to its hop and its order");
        first += usize::from(packets[0].0 == GATEWAY);
    }
    assert!((120..280).contains(&first), "{first} of 400 flows by one of two hops");
}

#[test]
fn rules_lead_to_routers_and_hold_on_the_way_out() {
    let rule = |id, matches, terminal| {
        let actions = Actions { terminal: Some(terminal), ..Actions::default() };
        Rule::from(RuleParts { id: RuleId(id), name: String::new(), matches, actions })
    };
    let icmp = || Match { protocol: vec![IpProto::ICMP], ..Match::default() };
    let frames: Vec<Vec<u8>> = (0..6)
        .map(|n: u16| match n % 3 {
            0 => datagram(false, n.into()),
            1 => v4("192.0.2.2").echo(false, 1, n).to_vec().unwrap(),
            _ => v4("192.0.2.2").udp(1, 25).to_vec().unwrap(),
        })
        .collect();
    let scratch = Scratch::new();
    let mut host = host(&scratch, &frames, 0, 20);
    host.ports[0].policy.forward = Forward::None;
    let to_wan = Match { to: vec![PortId(WAN)], ..icmp() };
    let from_lan = Match { from: vec![PortId(LAN)], ..Match::default() };
    let smtp = Match { destination_ports: vec![netvm_wire::PortRange::single(25)], ..from_lan.clone() };
    host.rules = vec![
        rule(0, to_wan, Action::Drop),
        rule(1, smtp, Action::Drop),
        rule(2, from_lan, Action::Router(RouterId(0))),
    ];
    let seen = Played::of(&host, &routes());
    assert_eq!(scratch.sent(WAN).len(), 2, "{:?}", seen.drops);
    assert_eq!(seen.drops, BTreeMap::from([("rule", 4)]));
    assert_eq!(seen.router.forwarded, 4);
}

#[test]
fn packets_are_routed_behind_a_chain() {
    let frames: Vec<Vec<u8>> = (0..20).map(|n| datagram(n % 2 == 1, n)).collect();
    let scratch = Scratch::new();
    let host = |frames: &[Vec<u8>]| {
        let mut host = behind_nf(plan::host(&scratch, frames, 0, 0), Output::Router(RouterId(0)));
        host.ports[usize::from(LAN)].policy.forward = Forward::Chain(ChainId(0));
        host
    };
    let mut rig = Rig::new(&EngineConfig::default());
    start_routed(&mut rig, &host(&[]), &routes());
    rig.attach("fw", "forward", false);
    rig.engine.apply(&host(&frames)).unwrap();
    finish(&mut rig);
    let router = rig.engine.routers()[0];
    assert_eq!((router.forwarded, router.punted), (20, 0), "{}", rig.describe());
    rig.engine.apply(&Host { ports: Vec::new(), routers: Vec::new(), ..host(&[]) }).unwrap();
    let sent = scratch.sent(WAN);
    assert_eq!(sent.len(), 20);
    assert!(sent.iter().all(|frame| frame[6..12] == OUT.0), "rewritten");
}

#[test]
fn a_trace_says_where_a_router_sends_a_packet() {
    let scratch = Scratch::new();
    let host = host(&scratch, &[], 10, 20);
    let mut rig = Rig::new(&EngineConfig::default());
    start_routed(&mut rig, &host, &routes());
    let steps = |rig: &mut Rig, frame: &[u8]| rig.engine.trace(Hypothetical::of(PortId(LAN), frame)).unwrap();
    let frame = tagged(&datagram(false, 1), 10);
    let found = steps(&mut rig, &frame);
    assert!(
        found.ends_with(&[
            Step::Router(RouterId(0)),
            Step::NextHop { port: PortId(WAN), vlan: VlanId::new(20).ok(), mac: GATEWAY },
            Step::Out(PortId(WAN)),
        ]),
        "{found:?}"
    );
    let local = tagged(&v4("10.0.0.1").udp(1, 1).to_vec().unwrap(), 10);
    let found = steps(&mut rig, &local);
    assert!(found.ends_with(&[Step::Punted(PuntReason::NoRoute), Step::Out(PortId(LAN_PUNT))]), "{found:?}");
    let last = tagged(&v4("192.0.2.2").ttl(1).udp(1, 1).to_vec().unwrap(), 10);
    let found = steps(&mut rig, &last);
    assert!(found.ends_with(&[Step::Punted(PuntReason::Expired), Step::Out(PortId(LAN_PUNT))]), "{found:?}");
    let hole = tagged(&v4("198.51.100.1").udp(1, 1).to_vec().unwrap(), 10);
    assert_eq!(steps(&mut rig, &hole).last(), Some(&Step::Dropped(DropReason::Blackhole)));
    let lost = datagram(false, 1);
    assert_eq!(steps(&mut rig, &lost).last(), Some(&Step::Dropped(DropReason::NoRouterInterface)));
    let mut checked = host.clone();
    checked.routers[0].interfaces[0].urpf = Some(Urpf::Strict);
    rig.engine.apply(&checked).unwrap();
    assert_eq!(
        steps(&mut rig, &frame).last(),
        Some(&Step::Dropped(DropReason::Urpf)),
        "no route to the source"
    );
}

#[test]
fn a_routed_packet_takes_the_steps_of_a_hypothetical_one() {
    let scratch = Scratch::new();
    let quiet = host(&scratch, &[], 10, 20);
    let mut rig = Rig::new(&EngineConfig::default());
    start_routed(&mut rig, &quiet, &routes());
    let to_group = FrameBuilder::new(HOST, MacAddr([1, 0, 0x5e, 0, 0, 1]));
    let frames = [
        datagram(false, 1),
        datagram(true, 1),
        v4("192.0.2.2").ttl(1).udp(1, 1).to_vec().unwrap(),
        v4("198.51.100.1").udp(1, 1).to_vec().unwrap(),
        v4("10.0.0.1").udp(1, 1).to_vec().unwrap(),
        to_group.ip(ip("10.0.0.9"), ip("224.0.0.1")).udp(1, 1).to_vec().unwrap(),
        FrameBuilder::new(HOST, MacAddr::BROADCAST)
            .arp_request([10, 0, 0, 9].into(), [10, 0, 0, 1].into())
            .to_vec()
            .unwrap(),
    ];
    for frame in frames.iter().map(|frame| tagged(frame, 10)).chain([datagram(false, 1)]) {
        rig.engine.apply(&quiet).unwrap();
        let expected = rig.engine.trace(Hypothetical::of(PortId(LAN), &frame)).unwrap();
        let trace = rig.start_trace(&TraceSpec { packets: 1, ..TraceSpec::default() }).unwrap();
        rig.engine.apply(&host(&scratch, std::slice::from_ref(&frame), 10, 20)).unwrap();
        let packet = rig.traced(trace).remove(0);
        // Only traffic shows which workers the ports have.
        let of_all = |step: &Step| !matches!(step, Step::HandedOver(_));
        let steps: Vec<Step> = packet.steps.into_iter().map(|timed| timed.step).filter(of_all).collect();
        assert_eq!(steps, expected, "{frame:02x?}");
    }
}
