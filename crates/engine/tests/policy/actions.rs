// SPDX-License-Identifier: Apache-2.0
//! Each action of a rule, and each default of a port, end to end between captures.

use std::net::IpAddr;
use std::time::Instant;

use crate::support::pcap::{Scratch, play};
use crate::support::{chain, group, nf};
use netvm_engine::{ChainId, DropReason};
use netvm_model::{AclDefault, Forward, Host, OnFailure, Police, Rate};
use netvm_policy::{Action, Actions, Match, PortId, Rule, RuleId, RuleParts, SetVlan};
use netvm_wire::{FrameBuilder, IpProto, MacAddr, PortRange, TcpFlags, VlanId, checksum, parse};

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn v4() -> FrameBuilder<'static> {
    FrameBuilder::new(A, B).ip(ip("10.0.0.1"), ip("10.0.0.2"))
}

fn v6() -> FrameBuilder<'static> {
    FrameBuilder::new(A, B).ip(ip("2001:db8::1"), ip("2001:db8::2"))
}

/// A datagram to that port, different from all others.
fn datagram(to: u16, number: u32) -> Vec<u8> {
    v4().udp(1000, to).payload(&number.to_be_bytes()).to_vec().unwrap()
}

/// One datagram to each of these ports.
fn datagrams(to: impl IntoIterator<Item = u16>) -> Vec<Vec<u8>> {
    (0u32..).zip(to).map(|(n, to)| datagram(to, n)).collect()
}

/// The action for datagrams to a port.
fn on(id: u32, destination: u16, actions: Actions) -> Rule {
    let destination_ports = vec![PortRange::single(destination)];
    let matches = Match { destination_ports, protocol: vec![IpProto::UDP], ..Match::default() };
    Rule::from(RuleParts { id: RuleId(id), name: String::new(), matches, actions })
}

fn does(action: Action) -> Actions {
    Actions { terminal: Some(action), ..Actions::default() }
}

/// For packets on their way out of a port.
fn leaving(mut rule: Rule, port: u16) -> Rule {
    rule.matches.to = vec![PortId(port)];
    rule
}

/// Port 0 receives the frames; ports 1 to `outs` exist; allowed packets leave by port 1.
fn host(scratch: &Scratch, frames: &[Vec<u8>], outs: u16, rules: Vec<Rule>) -> Host {
    let mut ports = vec![scratch.port(0, frames)];
    ports[0].policy.forward = Forward::Port(PortId(1));
    ports.extend((1..=outs).map(|out| scratch.port(out, &[])));
    Host { ports, rules, ..Host::default() }
}

#[test]
fn verdicts_and_defaults_of_a_port() {
    let rules = || {
        vec![
            on(1, 1, does(Action::Drop)),
            on(2, 2, does(Action::Port(PortId(2)))),
            on(3, 3, does(Action::Allow)),
        ]
    };
    let frames = datagrams([1, 2, 3, 4, 1, 2, 3, 4, 2]);
    let of = |wanted: &[usize]| -> Vec<Vec<u8>> { wanted.iter().map(|n| frames[*n].clone()).collect() };
    let expected = [
        (AclDefault::Allow, Forward::Port(PortId(1)), of(&[2, 3, 6, 7]), vec![(DropReason::Rule, 2)]),
        (
            AclDefault::Deny,
            Forward::Port(PortId(1)),
            of(&[2, 6]),
            vec![(DropReason::Rule, 2), (DropReason::Denied, 2)],
        ),
        (AclDefault::Allow, Forward::None, vec![], vec![(DropReason::Rule, 2), (DropReason::NoRule, 4)]),
        (
            AclDefault::Deny,
            Forward::None,
            vec![],
            vec![(DropReason::Rule, 2), (DropReason::Denied, 2), (DropReason::NoRule, 2)],
        ),
    ];
    for (acl, forward, to_first, drops) in expected {
        let scratch = Scratch::new();
        let mut host = host(&scratch, &frames, 2, rules());
        host.ports[0].policy.acl_in = acl;
        host.ports[0].policy.forward = forward;
        let seen = play(&host, &[]);
        let mut sent = scratch.sent(1);
        // Those of a rule and those of a default are in order among themselves.
        sent.sort_by_key(|frame| *frame.last().unwrap());
        assert_eq!(sent, to_first, "{acl:?} {forward:?}");
        assert_eq!(scratch.sent(2), of(&[1, 5, 8]));
        assert_eq!(seen.drops[&0], drops, "{acl:?} {forward:?}");
        let packets: Vec<_> = seen.counts.values().map(|count| count.packets).collect();
        assert_eq!(packets, [2, 3, 2]);
    }
}

#[test]
fn a_port_without_rules_does_what_its_defaults_say() {
    let frames = datagrams([1, 2, 3]);
    for (acl, passed, drops) in
        [(AclDefault::Allow, 3, vec![]), (AclDefault::Deny, 0, vec![(DropReason::Denied, 3)])]
    {
        let scratch = Scratch::new();
        let mut host = host(&scratch, &frames, 1, Vec::new());
        host.ports[0].policy.acl_in = acl;
        let seen = play(&host, &[]);
        assert_eq!((scratch.sent(1).len(), &seen.drops[&0]), (passed, &drops));
    }
}

#[test]
fn the_sender_of_what_is_rejected_is_told() {
    let mut everything = on(1, 0, does(Action::Reject));
    everything.matches = Match::default();
    let unreachable = v4().protocol(IpProto::ICMP).payload(&[3, 1, 0, 0, 0, 0, 0, 0]).to_vec().unwrap();
    let frames = vec![
        v4().tcp(1000, 80, TcpFlags::SYN).numbers(7, 0).to_vec().unwrap(),
        v6().tcp(1000, 80, TcpFlags::SYN).numbers(7, 0).to_vec().unwrap(),
        v4().udp(1000, 53).payload(b"who?").to_vec().unwrap(),
        v6().udp(1000, 53).payload(b"who?").to_vec().unwrap(),
        // None of these is answered.
        v4().tcp(1000, 80, TcpFlags::RST).to_vec().unwrap(),
        unreachable,
        FrameBuilder::new(A, MacAddr::BROADCAST)
            .arp_request("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap())
            .to_vec()
            .unwrap(),
    ];
    // On the way in, and on the way out.
    for rule in [everything.clone(), leaving(everything, 1)] {
        let scratch = Scratch::new();
        let seen = play(&host(&scratch, &frames, 1, vec![rule]), &[]);
        assert_eq!(scratch.sent(1).len(), 0);
        assert_eq!(seen.drops.values().flatten().collect::<Vec<_>>(), [&(DropReason::Rejected, 7)]);
        let told = scratch.sent(0);
        let answers: Vec<_> = told
            .iter()
            .map(|frame| {
                let headers = parse(frame).unwrap();
                assert_eq!(checksum::verify(frame, &headers), Ok(()));
                let key = *headers.key();
                assert_eq!((key.source_mac, key.destination_mac), (B, A));
                assert!(
                    key.destination.to_ip() == ip("10.0.0.1") || key.destination.to_ip() == ip("2001:db8::1")
                );
                (key.protocol, key.tcp_flags, key.icmp_type, key.icmp_code)
            })
            .collect();
        let reset = (IpProto::TCP, TcpFlags::RST | TcpFlags::ACK, 0, 0);
        let none = TcpFlags::empty();
        let expected = [reset, reset, (IpProto::ICMP, none, 3, 13), (IpProto::ICMPV6, none, 1, 1)];
        assert_eq!(answers, expected);
    }
}

#[test]
fn a_rule_leads_into_a_chain_and_others_stay_out() {
    let frames = datagrams((0..200).map(|n| n % 4));
    let scratch = Scratch::new();
    let rules = vec![on(0, 1, does(Action::Chain(ChainId(0)))), on(1, 2, does(Action::Port(PortId(2))))];
    let host = Host {
        groups: vec![group(0, 1024, 2048)],
        nfs: vec![nf(0, "a", 0)],
        chains: vec![chain(0, &[0], OnFailure::Drop, 3)],
        ..host(&scratch, &frames, 3, rules)
    };
    let seen = play(&host, &["a"]);
    let to = |port: u16| -> Vec<Vec<u8>> {
        let key = |frame: &[u8]| parse(frame).unwrap().key().destination_port;
        frames.iter().filter(|frame| key(frame) == port).cloned().collect()
    };
    assert_eq!((scratch.sent(3), scratch.sent(2)), (to(1), to(2)));
    assert_eq!(scratch.sent(1).len(), 100);
    assert!(seen.drops.values().all(Vec::is_empty), "{:?}", seen.drops);
}

#[test]
fn what_rules_do_besides_is_done_in_order_and_counted() {
    let vlan = |id: u16| VlanId::new(id).unwrap();
    let tag = Actions { set_vlan: Some(SetVlan::Tag(vlan(7))), ..Actions::default() };
    let mirror = Actions { mirror: Some(PortId(2)), ..Actions::default() };
    let strip = Actions { set_vlan: Some(SetVlan::Strip), ..does(Action::Port(PortId(3))) };
    // To port 1: a copy, a tag, on by default. To port 2: the tag is put on and taken off again. To port 3: only
    // counted.
    let rules = vec![
        on(0, 1, mirror),
        on(1, 1, tag),
        on(2, 2, tag),
        on(3, 2, strip),
        on(4, 3, Actions::default()),
        on(5, 4, strip),
    ];
    let tagged = |builder: FrameBuilder<'static>, to: u16| {
        builder.vlan(vlan(9)).ip(ip("10.0.0.1"), ip("10.0.0.2")).udp(1, to)
    };
    let frames = vec![
        v4().udp(1, 1).to_vec().unwrap(),
        tagged(FrameBuilder::new(A, B), 1).to_vec().unwrap(),
        v4().udp(1, 2).to_vec().unwrap(),
        v4().udp(1, 3).to_vec().unwrap(),
        tagged(FrameBuilder::new(A, B), 4).payload(&[5; 300]).to_vec().unwrap(),
        v4().udp(1, 4).payload(&[6; 1400]).to_vec().unwrap(),
    ];
    let scratch = Scratch::new();
    let seen = play(&host(&scratch, &frames, 3, rules), &[]);
    let now_tagged = v4().vlan(vlan(7)).udp(1, 1).to_vec().unwrap();
    assert_eq!(scratch.sent(2), [now_tagged.clone(), now_tagged.clone()], "copies have the tag too");
    let mut forwarded = scratch.sent(1);
    forwarded.sort_by_key(Vec::len);
    assert_eq!(forwarded, [frames[3].clone(), now_tagged.clone(), now_tagged]);
    let mut stripped = scratch.sent(3);
    stripped.sort_by_key(Vec::len);
    let untagged = v4().udp(1, 4).payload(&[5; 300]).to_vec().unwrap();
    assert_eq!(stripped, [frames[2].clone(), untagged, frames[5].clone()]);
    assert!(seen.drops.values().all(Vec::is_empty), "{:?}", seen.drops);
    let packets: Vec<_> = seen.counts.values().map(|count| count.packets).collect();
    assert_eq!(packets, [2, 2, 1, 1, 1, 2]);
    let bytes = |frame: usize| frames[frame].len() as u64;
    assert_eq!(seen.counts[&RuleId(4)].bytes, bytes(3));
    assert_eq!(seen.counts[&RuleId(0)].bytes, bytes(0) + bytes(1));
}

/// Counts of what passes a rate and of what does not, of a thousand frames.
fn policed(change: impl Fn(&mut Host, Police), police: Police, at_once: u64, per_second: u64) {
    let frames = datagrams((0..1000).map(|_| 1));
    let scratch = Scratch::new();
    let mut host = host(&scratch, &frames, 1, Vec::new());
    change(&mut host, police);
    let started = Instant::now();
    let seen = play(&host, &[]);
    // The bucket fills while frames come.
    let most = at_once + (started.elapsed().as_secs_f64() * per_second as f64).ceil() as u64;
    let passed = scratch.sent(1).len() as u64;
    assert!((at_once..=most).contains(&passed), "{passed} of {at_once} to {most}");
    let drops: u64 = seen.drops.values().flatten().map(|(_, count)| count).sum();
    assert!(seen.drops.values().flatten().all(|(reason, _)| *reason == DropReason::Policed));
    assert_eq!(passed + drops, 1000);
}

#[test]
fn rates_of_rules_and_ports_hold() {
    let packets = Police { packets: Some(Rate { per_second: 1, burst: 10 }), bits: None };
    let size = datagram(1, 0).len() as u64 * 8;
    let bits = Police { packets: None, bits: Some(Rate { per_second: size, burst: size * 20 }) };
    for (police, at_once) in [(packets, 10), (bits, 20)] {
        let by_rule = |host: &mut Host, police| {
            host.rules = vec![on(0, 1, Actions { police: Some(police), ..Actions::default() })];
        };
        policed(by_rule, police, at_once, 1);
        let leaving = |host: &mut Host, police| {
            by_rule(host, police);
            host.rules[0].matches.to = vec![PortId(1)];
        };
        policed(leaving, police, at_once, 1);
        policed(|host, police| host.ports[0].policy.police_in = Some(police), police, at_once, 1);
        policed(|host, police| host.ports[1].policy.police_out = Some(police), police, at_once, 1);
    }
}

#[test]
fn rules_for_the_way_out() {
    let frames = datagrams([1, 2, 3, 4]);
    let tag = Actions { set_vlan: VlanId::new(5).ok().map(SetVlan::Tag), ..Actions::default() };
    let copy = Actions { mirror: Some(PortId(2)), ..does(Action::Allow) };
    let rules = vec![
        leaving(on(0, 1, does(Action::Drop)), 1),
        leaving(on(1, 2, tag), 1),
        leaving(on(2, 2, copy), 1),
        leaving(on(3, 3, does(Action::Allow)), 1),
    ];
    for acl in [AclDefault::Allow, AclDefault::Deny] {
        let scratch = Scratch::new();
        let mut host = host(&scratch, &frames, 2, rules.clone());
        host.ports[1].policy.acl_out = acl;
        let seen = play(&host, &[]);
        let vlan = VlanId::new(5).unwrap();
        let tagged = v4().vlan(vlan).udp(1000, 2).payload(&1u32.to_be_bytes()).to_vec().unwrap();
        let mut passed = vec![tagged.clone(), frames[2].clone()];
        let mut drops = vec![(DropReason::Rule, 1)];
        match acl {
            AclDefault::Allow => passed.push(frames[3].clone()),
            AclDefault::Deny => drops.push((DropReason::Denied, 1)),
        }
        assert_eq!(scratch.sent(1), passed, "{acl:?}");
        assert_eq!(scratch.sent(2), [tagged], "{acl:?}");
        assert_eq!((&seen.drops[&1], &seen.drops[&0]), (&drops, &vec![]), "{acl:?}");
        let packets: Vec<_> = seen.counts.values().map(|count| count.packets).collect();
        assert_eq!(packets, [1, 1, 1, 1], "{acl:?}");
    }
}

#[test]
fn rules_for_the_way_out_hold_for_what_leaves_a_chain() {
    let frames = datagrams([1, 2, 1, 2]);
    let scratch = Scratch::new();
    let mut everything = on(0, 0, does(Action::Chain(ChainId(0))));
    everything.matches = Match::default();
    let rules = vec![everything, leaving(on(1, 1, does(Action::Drop)), 1)];
    let host = Host {
        groups: vec![group(0, 1024, 2048)],
        nfs: vec![nf(0, "a", 0)],
        chains: vec![chain(0, &[0], OnFailure::Drop, 1)],
        ..host(&scratch, &frames, 1, rules)
    };
    let seen = play(&host, &["a"]);
    assert_eq!(scratch.sent(1), [frames[1].clone(), frames[3].clone()]);
    assert_eq!(seen.drops[&1], [(DropReason::Rule, 2)]);
}

#[test]
fn what_cannot_be_parsed_is_dropped_where_it_is_looked_at() {
    let mut short = datagram(1, 0);
    short.truncate(20);
    let mut lying = datagram(2, 1);
    lying[14] = 0x4f;
    let frames = vec![datagram(9, 2), short, datagram(2, 3), lying, datagram(9, 4)];
    let scratch = Scratch::new();
    let seen = play(&host(&scratch, &frames, 1, vec![on(0, 9, does(Action::Allow))]), &[]);
    let mut sent = scratch.sent(1);
    sent.sort_by_key(|frame| *frame.last().unwrap());
    assert_eq!(sent, [frames[0].clone(), frames[2].clone(), frames[4].clone()]);
    assert_eq!(seen.drops[&0], [(DropReason::Malformed, 2)]);
    assert_eq!(seen.counts[&RuleId(0)].packets, 2);
}
