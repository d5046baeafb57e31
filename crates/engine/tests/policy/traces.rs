// SPDX-License-Identifier: Apache-2.0
//! What traces say of packets is what happens to them: of flooded ones, at every port, and of those with headers that
//! rules and the guard cannot see, which do not pass a port that has them.

use std::net::IpAddr;

use crate::support::Rig;
use crate::support::pcap::{Scratch, finish, start};
use netvm_engine::{DropReason, Hypothetical, PortId, Step};
use netvm_model::{
    AclDefault, Action, Actions, EngineConfig, Forward, Guard, Host, Match, Rule, RuleId, RuleParts, SetVlan,
    Span, VlanMode,
};
use netvm_wire::{EtherType, FrameBuilder, IpProto, MacAddr, PortRange, TcpFlags, VlanId};

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xb]);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Numbers below `most` that look random, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// A frame for an address that no port has, which ends with `number`: tagged, of several kinds, some of which cannot be
/// parsed.
fn unknown(numbers: &mut Numbers, number: u16) -> Vec<u8> {
    let to = if numbers.below(2) == 0 { MacAddr::BROADCAST } else { MacAddr([2, 0, 0, 0, 0, 200]) };
    let builder = FrameBuilder::new(A, to).ip(ip("10.0.0.1"), ip("10.0.0.2"));
    let port = numbers.below(3) as u16 + 1;
    let builder =
        if numbers.below(2) == 0 { builder.udp(9, port) } else { builder.tcp(9, port, TcpFlags::SYN) };
    let mut frame = builder.payload(&number.to_be_bytes()).to_vec().unwrap();
    match numbers.below(8) {
        0 => frame[14] = 0x4f,
        // IEEE 802.3 with LLC, and with IPv4 in SNAP.
        1 => frame.splice(12..14, [0, (frame.len() - 11) as u8, 0x42, 0x42, 3]).for_each(drop),
        2 => frame.splice(12..14, [0, (frame.len() - 6) as u8, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0]).for_each(drop),
        _ => {}
    }
    let tags: &[&[u8]] = match numbers.below(8) {
        0 => &[&[0x81, 0, 0, 0]],
        1 => &[&[0x88, 0xa8, 0, 5], &[0x81, 0, 0, 0], &[0x81, 0, 0, 0]],
        2 | 3 => &[&[0x81, 0, 0, 5]],
        4 => &[&[0x81, 0, 0, 6]],
        _ => &[],
    };
    frame.splice(12..12, tags.concat());
    frame
}

/// A host of five switched ports, with rules for what they receive and send; port 0 gets frames.
fn flooding(numbers: &mut Numbers, scratch: &Scratch, frames: &[Vec<u8>]) -> Host {
    let vlan = |id| VlanId::new(id).unwrap();
    let is_aware = numbers.below(2) == 0;
    let mut ports: Vec<_> = (0..5).map(|id| scratch.port(id, if id == 0 { frames } else { &[] })).collect();
    for port in &mut ports {
        port.policy.forward = Forward::Normal;
        if numbers.below(4) == 0 {
            port.policy.acl_out = AclDefault::Deny;
        }
        let trunk = |native| VlanMode::Trunk { vlans: vec![Span { first: 5, last: 6 }], native };
        port.policy.vlan = match numbers.below(4) {
            _ if !is_aware => VlanMode::Unaware,
            0 => VlanMode::Access(vlan(5)),
            1 => trunk(Some(vlan(5))),
            2 => trunk(None),
            _ => VlanMode::Unaware,
        };
    }
    let rule = |id: u32, numbers: &mut Numbers| {
        let to: Vec<PortId> = (0..5).filter(|_| numbers.below(3) == 0).map(PortId).collect();
        let mut matches = Match { to, ..Match::default() };
        match numbers.below(5) {
            0 => matches.protocol = vec![IpProto::TCP],
            1 => matches.destination_ports = vec![PortRange::new(1, 2).unwrap()],
            2 => matches.vlan = vec![Span::single(5)],
            3 => matches.ether_type = vec![EtherType::LLC],
            _ => matches.source = vec!["10.0.0.0/24".parse().unwrap()],
        }
        let (kind, is_egress) = (numbers.below(4), matches.is_egress());
        let terminal = match kind {
            0 | 1 => Some(Action::Drop),
            2 if is_egress => Some(Action::Allow),
            2 => Some(Action::Normal),
            _ => None,
        };
        let set_vlan =
            (kind == 3).then(|| if numbers.below(2) == 0 { SetVlan::Tag(vlan(6)) } else { SetVlan::Strip });
        let actions = Actions { terminal, set_vlan, ..Actions::default() };
        Rule::from(RuleParts { id: RuleId(id), name: String::new(), matches, actions })
    };
    let rules = (0..numbers.below(5) as u32).map(|id| rule(id, numbers)).collect();
    Host { ports, rules, ..Host::default() }
}

#[test]
fn a_trace_of_flooded_packets_is_what_happens() {
    let mut rig = Rig::new(&EngineConfig::default());
    let mut numbers = Numbers(7);
    let (mut sent, mut dropped) = (0, 0);
    for round in 0..24 {
        let frames: Vec<Vec<u8>> = (0..40).map(|number| unknown(&mut numbers, number)).collect();
        let scratch = Scratch::new();
        let host = flooding(&mut numbers, &scratch, &frames);
        start(&mut rig, &host, &[]);
        finish(&mut rig);
        let steps: Vec<_> = frames
            .iter()
            .map(|frame| rig.engine.trace(Hypothetical::of(PortId(0), frame)).unwrap())
            .collect();
        rig.engine.apply(&Host::default()).unwrap();
        let went: Vec<Vec<Vec<u8>>> = (0..5).map(|port| scratch.sent(port)).collect();
        for (number, steps) in (0u16..).zip(&steps) {
            let is_it = |frame: &Vec<u8>| frame.ends_with(&number.to_be_bytes());
            let real: Vec<u16> = (0u16..)
                .zip(&went)
                .filter(|(_, went)| went.iter().any(is_it))
                .map(|(port, _)| port)
                .collect();
            let traced: Vec<u16> = steps
                .iter()
                .filter_map(|step| if let Step::Out(port) = step { Some(port.0) } else { None })
                .collect();
            assert_eq!(
                traced,
                real,
                "round {round}, {:02x?}\n{steps:#?}\n{host:#?}",
                frames[usize::from(number)]
            );
            sent += real.len();
            dropped += steps.iter().filter(|step| matches!(step, Step::Dropped(_))).count();
        }
    }
    assert!(sent > 200 && dropped > 200, "{sent} sent, {dropped} dropped");
}

fn telnet() -> Vec<u8> {
    FrameBuilder::new(A, B).ip(ip("10.0.0.1"), ip("10.0.0.2")).tcp(9, 23, TcpFlags::SYN).to_vec().unwrap()
}

/// An ARP reply for an address of somebody else.
fn lie() -> Vec<u8> {
    FrameBuilder::new(A, B).arp_reply([10, 0, 0, 3].into(), [10, 0, 0, 2].into()).to_vec().unwrap()
}

/// The frame behind tags of VLAN 0.
fn behind(frame: &[u8], types: &[u16]) -> Vec<u8> {
    let tags: Vec<u8> = types.iter().flat_map(|kind| [(kind >> 8) as u8, *kind as u8, 0, 0]).collect();
    [&frame[..12], &tags, &frame[12..]].concat()
}

/// The frame's content in an IEEE 802.3 frame with a SNAP header.
fn in_snap(frame: &[u8]) -> Vec<u8> {
    let length = (frame.len() - 14 + 8) as u16;
    [&frame[..12], &length.to_be_bytes(), &[0xaa, 0xaa, 3, 0, 0, 0], &frame[12..]].concat()
}

fn rule(matches: Match, action: Action) -> Rule {
    let actions = Actions { terminal: Some(action), ..Actions::default() };
    Rule::from(RuleParts { id: RuleId(0), name: String::new(), matches, actions })
}

/// From port 0 to port 1, with a guard of port 0 and these rules; each frame's outcome: sent, or the reason.
fn outcomes(guard: bool, rules: &[Rule], frames: &[Vec<u8>]) -> Vec<Option<DropReason>> {
    let mut rig = Rig::new(&EngineConfig::default());
    let play = |rig: &mut Rig, frame: &Vec<u8>| {
        let scratch = Scratch::new();
        let mut ports = vec![scratch.port(0, std::slice::from_ref(frame)), scratch.port(1, &[])];
        ports[0].policy.forward = Forward::Port(PortId(1));
        if guard {
            let addresses = vec!["10.0.0.1/32".parse().unwrap()];
            ports[0].policy.guard = Some(Guard { macs: vec![A], addresses });
        }
        let host = Host { ports, rules: rules.to_vec(), ..Host::default() };
        start(rig, &host, &[]);
        finish(rig);
        let drops: Vec<_> =
            rig.engine.ports().into_iter().flat_map(|port| port.drops).map(|(reason, _)| reason).collect();
        let traced = rig.engine.trace(Hypothetical::of(PortId(0), frame)).unwrap();
        let traced =
            traced.iter().find_map(|step| if let Step::Dropped(why) = step { Some(*why) } else { None });
        rig.engine.apply(&Host::default()).unwrap();
        assert_eq!(traced.as_ref(), drops.first(), "the trace says what happens: {frame:02x?}");
        assert_eq!(scratch.sent(1).len(), usize::from(drops.is_empty()));
        drops.first().copied()
    };
    frames.iter().map(|frame| play(&mut rig, frame)).collect()
}

#[test]
fn tags_do_not_hide_packets_from_rules_and_guards() {
    let hidden = Some(DropReason::TooManyHeaders);
    let no_telnet = Match {
        protocol: vec![IpProto::TCP],
        destination_ports: vec![PortRange::new(23, 23).unwrap()],
        ..Match::default()
    };
    let tags: [&[u16]; 7] =
        [&[], &[0x8100], &[0x88a8, 0x8100], &[0x8100; 3], &[0x88a8, 0x8100, 0x8100], &[0x8100; 4], &[0x9100]];
    let of = |frame: &[u8]| tags.map(|types| behind(frame, types)).to_vec();
    let rules = [rule(no_telnet.clone(), Action::Drop)];
    let dropped = Some(DropReason::Rule);
    assert_eq!(
        outcomes(false, &rules, &of(&telnet())),
        [dropped, dropped, dropped, hidden, hidden, hidden, hidden]
    );
    let spoofed = Some(DropReason::Spoofed);
    assert_eq!(outcomes(true, &[], &of(&lie())), [spoofed, spoofed, spoofed, hidden, hidden, hidden, hidden]);
    // On the way out, too.
    let out = Match { to: vec![PortId(1)], ..no_telnet };
    let rules = [rule(out, Action::Drop)];
    assert_eq!(
        outcomes(false, &rules, &of(&telnet())),
        [dropped, dropped, dropped, hidden, hidden, hidden, hidden]
    );
    // A port without rules passes everything.
    assert_eq!(outcomes(false, &[], &of(&telnet())), [None; 7]);
}

#[test]
fn ieee_802_3_frames_do_not_hide_packets() {
    let bpdu = FrameBuilder::new(A, B).ether_type(EtherType(3)).payload(&[0x42, 0x42, 3]).to_vec().unwrap();
    let telnet_only = Match { protocol: vec![IpProto::TCP], ..Match::default() };
    let rules = [rule(telnet_only, Action::Drop)];
    assert_eq!(
        outcomes(false, &rules, &[in_snap(&telnet()), bpdu.clone(), in_snap(&behind(&telnet(), &[0x8100]))]),
        [Some(DropReason::Rule), None, Some(DropReason::TooManyHeaders)]
    );
    assert_eq!(outcomes(true, &[], &[in_snap(&lie()), bpdu.clone()]), [Some(DropReason::Spoofed), None]);
    let llc = Match { ether_type: vec![EtherType::LLC], ..Match::default() };
    let rules = [rule(llc, Action::Drop)];
    assert_eq!(outcomes(false, &rules, &[bpdu, telnet()]), [Some(DropReason::Rule), None]);
}
