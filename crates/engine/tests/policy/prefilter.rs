// SPDX-License-Identifier: Apache-2.0
//! Bursts in which rules match some packets, none, or packets that skip the prefilter: each packet goes where a plain
//! scan of the rules sends it, in order within each flow.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::support::pcap::{Scratch, finish, start};
use crate::support::{Rig, port};
use netvm_engine::{DropReason, RuleCount};
use netvm_model::{EngineConfig, Forward, Guard, Host, PortKind, SourceConfig};
use netvm_policy::arbitrary::Generator;
use netvm_policy::{Action, Actions, Match, PortId, Rule, RuleId, RuleParts, decide};
use netvm_wire::{FlowKey, FrameBuilder, IpProto, MacAddr, PortRange, TcpFlags, parse as parse_frame};

const FROM: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
/// Behind port 1.
const KNOWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const UNKNOWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 3]);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn rule(id: u32, matches: Match, terminal: Option<Action>) -> Rule {
    let actions = Actions { terminal, ..Actions::default() };
    Rule::from(RuleParts { id: RuleId(id), name: String::new(), matches, actions })
}

/// Drops Telnet, and counts the packets of one host.
fn rules(to: &[PortId]) -> Vec<Rule> {
    let telnet = Match {
        protocol: vec![IpProto::TCP],
        destination_ports: vec![PortRange::single(23)],
        to: to.to_vec(),
        ..Match::default()
    };
    let one = Match { source: vec!["10.0.0.7/32".parse().unwrap()], ..Match::default() };
    vec![rule(0, telnet, Some(Action::Drop)), rule(1, one, None)]
}

/// All kinds of frames, no two alike; one in sixteen cannot be parsed.
fn frames(count: u32) -> Vec<Vec<u8>> {
    let mut generator = Generator::new(5);
    let frame = |number: u32| {
        let to = if generator.once_in(3) { UNKNOWN } else { KNOWN };
        let source = IpAddr::V4([10, 0, 0, [7, 8, 9][generator.below(3) as usize]].into());
        let mut builder = FrameBuilder::new(FROM, to).ip(source, ip("10.0.0.2"));
        let ports = (1000 + generator.below(4) as u16, [23, 80, 443, 8080][generator.below(4) as usize]);
        builder = match generator.below(16) {
            0 => builder.ip(ip("2001:db8::1"), ip("2001:db8::2")).tcp(ports.0, ports.1, TcpFlags::ACK),
            1 => builder.fragment(7, 0, true).udp(ports.0, ports.1),
            2 => builder.protocol(IpProto::ICMP),
            3..9 => builder.udp(ports.0, ports.1),
            _ => builder.tcp(ports.0, ports.1, TcpFlags::ACK),
        };
        let payload = [&[8, 0, 0, 0][..], &number.to_be_bytes()].concat();
        let mut frame = builder.payload(&payload).to_vec().unwrap();
        if generator.once_in(16) {
            // Version 4, 15 words of header.
            frame[14] = 0x4f;
        }
        frame
    };
    (0..count).map(frame).collect()
}

/// The frames of each flow, in order.
fn by_flow(frames: &[Vec<u8>]) -> BTreeMap<FlowKey, Vec<&Vec<u8>>> {
    let mut flows: BTreeMap<FlowKey, Vec<&Vec<u8>>> = BTreeMap::new();
    for frame in frames {
        flows.entry(*parse_frame(frame).unwrap().key()).or_default().push(frame);
    }
    flows
}

/// Plays the frames into port 0 of a switch with these rules, and compares.
fn check(forward: Forward, rules: &[Rule], to: Option<PortId>, guard: Option<&Guard>) {
    let scratch = [0; 3].map(|_| Scratch::new());
    let host = |scratch: &Scratch, from: u16, frames: &[Vec<u8>]| {
        let mut ports: Vec<_> =
            (0..3).map(|id| scratch.port(id, if id == from { frames } else { &[] })).collect();
        ports.iter_mut().for_each(|port| port.policy.forward = forward);
        ports[0].policy.guard = guard.cloned();
        Host { ports, rules: rules.to_vec(), ..Host::default() }
    };
    let mut rig = Rig::new(&EngineConfig::default());
    let hello = FrameBuilder::new(KNOWN, FROM).ip(ip("10.0.0.2"), ip("10.0.0.1")).udp(1, 2).to_vec().unwrap();
    start(&mut rig, &host(&scratch[0], 1, &[hello]), &[]);
    finish(&mut rig);
    let before = rig.engine.rule_counts();
    // What was learnt stays.
    rig.engine.apply(&host(&scratch[1], 9, &[])).unwrap();

    let frames = frames(4000);
    start(&mut rig, &host(&scratch[2], 0, &frames), &[]);
    finish(&mut rig);
    let drops = rig.engine.ports()[0].drops.clone();
    let after = rig.engine.rule_counts();
    drop(rig);

    let (mut sent, mut expected): ([Vec<_>; 2], BTreeMap<RuleId, RuleCount>) = Default::default();
    let (mut malformed, mut dropped, mut spoofed) = (0, 0, 0);
    for frame in &frames {
        let Ok(headers) = parse_frame(frame) else {
            malformed += 1;
            continue;
        };
        let owns =
            |guard: &Guard| guard.addresses.iter().any(|net| net.contains(headers.key().source.to_ip()));
        if !guard.is_none_or(owns) {
            spoofed += 1;
            continue;
        }
        for (out, sent) in [PortId(1), PortId(2)].into_iter().zip(&mut sent) {
            if headers.key().destination_mac == KNOWN && out == PortId(2) {
                continue;
            }
            let decisions = [None, to].map(|to| decide(rules, PortId(0), to.map(|_| out), headers.key()));
            if !decisions.iter().any(|decision| decision.actions.terminal == Some(Action::Drop)) {
                sent.push(frame.clone());
            }
        }
        let decision = decide(rules, PortId(0), None, headers.key());
        dropped += u64::from(decision.actions.terminal == Some(Action::Drop));
        for rule in decision.rules {
            let count = expected.entry(rule).or_default();
            count.packets += 1;
            count.bytes += frame.len() as u64;
        }
    }
    assert!(malformed > 100 && sent[0].len() > 500 && sent[1].len() > 200);
    for (out, sent) in [1, 2].into_iter().zip(&sent) {
        assert_eq!(by_flow(&scratch[2].sent(out)), by_flow(sent), "port {out}");
    }
    let drop_of = |reason| drops.iter().find(|(of, _)| *of == reason).map_or(0, |(_, count)| *count);
    let reasons = [DropReason::Malformed, DropReason::Rule, DropReason::Spoofed];
    assert_eq!(reasons.map(drop_of), [malformed, dropped, spoofed]);
    for (rule, expected) in expected {
        let packets = after[&rule].packets - before.get(&rule).map_or(0, |count| count.packets);
        assert_eq!(packets, expected.packets, "rule {rule}");
    }
}

#[test]
fn a_switch_with_rules_before_it() {
    check(Forward::Normal, &rules(&[]), None, None);
}

#[test]
fn a_last_rule_that_takes_everything() {
    let last = rule(2, Match::default(), Some(Action::Normal));
    check(Forward::None, &[rules(&[]), vec![last]].concat(), None, None);
}

#[test]
fn rules_for_the_way_out_of_a_switch() {
    let outs = [PortId(1), PortId(2)];
    check(Forward::Normal, &rules(&outs), Some(PortId(1)), None);
}

#[test]
fn a_guarded_port_with_rules_and_without() {
    let guard = Guard { macs: vec![FROM], addresses: vec!["10.0.0.7/32".parse().unwrap()] };
    check(Forward::Normal, &rules(&[]), None, Some(&guard));
    check(Forward::Normal, &[], None, Some(&guard));
}

#[test]
fn a_new_rule_acts_on_what_was_proven_to_match_none() {
    let source = SourceConfig { size: 60, flows: 64, ..SourceConfig::default() };
    let mut ports = vec![
        port(0, "in", PortKind::Source(source)),
        port(1, "out", PortKind::Sink),
        port(2, "diverted", PortKind::Sink),
    ];
    ports[0].policy.forward = Forward::Port(PortId(1));
    let old = Host { ports, rules: rules(&[]), ..Host::default() };
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&Host { ports: old.ports[1..].to_vec(), ..old.clone() }).unwrap();
    rig.engine.apply(&old).unwrap();
    let matches = Match { protocol: vec![IpProto::UDP], ..Match::default() };
    let mut new = old.clone();
    new.rules.insert(0, rule(9, matches, Some(Action::Port(PortId(2)))));
    for _ in 0..3 {
        let sent = |engine: &netvm_engine::Engine, port: usize| {
            engine.workers().map(|worker| worker.counters.ports[port].tx_packets.get()).sum::<u64>()
        };
        for (host, out, other) in [(&old, 1, 2), (&new, 2, 1)] {
            let policy = rig.engine.compiler().change(host, &rig.engine.policy());
            let policy = policy.unwrap_or_else(|| panic!("one rule is an overlay"));
            rig.engine.apply_with(host.clone(), Arc::new(policy)).unwrap();
            // What was on its way when the rule came has left once a few thousand packets went the new way.
            let goal = sent(&rig.engine, out) + 5000;
            assert!(
                rig.until(Duration::from_secs(30), |engine| sent(engine, out) > goal),
                "{}",
                rig.describe()
            );
            let stays = sent(&rig.engine, other);
            let goal = sent(&rig.engine, out) + 5000;
            assert!(
                rig.until(Duration::from_secs(30), |engine| sent(engine, out) > goal),
                "{}",
                rig.describe()
            );
            assert_eq!(sent(&rig.engine, other), stays);
        }
    }
}
