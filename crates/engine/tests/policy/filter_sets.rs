// SPDX-License-Identifier: Apache-2.0
//! Filter sets in the whole engine: it sends every packet of a capture where a plain linear scan would.
//!
//! `NETVM_TEST_HEADERS` says how many headers for each set; the full number is 100,000.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::support::Rig;
use crate::support::pcap::{Scratch, finish, start};
use netvm_engine::{DropReason, RuleCount};
use netvm_model::{EngineConfig, Forward, Host};
use netvm_policy::arbitrary::Generator;
use netvm_policy::{Action, Actions, PortId, Rule, RuleId, RuleParts, decide};
use netvm_policy_import::classbench::{Flags, parse};
use netvm_wire::{EtherType, FlowKey, Fragment, FrameBuilder, IpProto, parse as parse_frame};

const IN: PortId = PortId(0);
const OUTS: [PortId; 3] = [PortId(1), PortId(2), PortId(3)];
/// Where allowed packets go, by a rule or by default.
const FORWARD: PortId = OUTS[2];

/// The rules of each set, with terminal actions in turn; one in a hundred only counts.
fn sets() -> Vec<(String, Vec<Rule>)> {
    let verdicts = [Action::Drop, Action::Port(OUTS[0]), Action::Port(OUTS[1]), Action::Allow];
    let sets = netvm_workload::data::filter_sets().unwrap().into_iter();
    sets.map(|(name, text)| {
        let imported = parse(&text, Actions::default(), Flags::Match).unwrap();
        let rules = (0u32..).zip(imported.rules).map(|(n, rule)| {
            let terminal = verdicts[n as usize % verdicts.len()];
            let actions = Actions { terminal: (n % 100 != 99).then_some(terminal), ..Actions::default() };
            Rule::from(RuleParts { id: RuleId(n), name: String::new(), matches: rule.matches, actions })
        });
        (name, rules.collect())
    })
    .collect()
}

/// A frame with (nearly) that key, and a number at its end; `None` if there is none.
fn frame_of(key: &FlowKey, number: u32) -> Option<Vec<u8>> {
    let mut builder = FrameBuilder::new(key.source_mac, key.destination_mac).dscp(key.dscp);
    for vlan in [key.vlan, key.inner_vlan].into_iter().flatten() {
        builder = builder.vlan(vlan);
    }
    let mut payload = Vec::new();
    builder = match key.ether_type {
        EtherType::IPV4 | EtherType::IPV6 => builder.ip(key.source.to_ip(), key.destination.to_ip()),
        other => builder.ether_type(other),
    };
    builder = match key.fragment {
        Fragment::Whole => builder,
        Fragment::First => builder.fragment(7, 0, true),
        Fragment::Later => builder.fragment(7, 100, false),
    };
    if key.is_ip() {
        builder = match key.protocol {
            IpProto::TCP => builder.tcp(key.source_port, key.destination_port, key.tcp_flags),
            IpProto::UDP => builder.udp(key.source_port, key.destination_port),
            other => {
                payload.extend_from_slice(&match other {
                    IpProto::ICMP | IpProto::ICMPV6 => [key.icmp_type, key.icmp_code, 0, 0],
                    _ => [key.source_port.to_be_bytes(), key.destination_port.to_be_bytes()]
                        .concat()
                        .try_into()
                        .unwrap(),
                });
                payload.extend_from_slice(&[0; 8]);
                builder.protocol(other)
            }
        };
    }
    payload.extend_from_slice(&number.to_be_bytes());
    builder.payload(&payload).to_vec().ok()
}

/// Frames for the rules, each with the key that it has, `None` if it is malformed.
fn frames(rules: &[Rule], count: usize) -> (Vec<Vec<u8>>, Vec<Option<FlowKey>>) {
    let cubes: Vec<_> = rules.iter().flat_map(|rule| rule.matches.cubes().unwrap()).collect();
    let mut generator = Generator::new(rules.len() as u64);
    let (mut frames, mut keys) = (Vec::new(), Vec::new());
    let mut flows = Vec::new();
    while frames.len() < count {
        // One in four is of a flow that there was.
        let again = if generator.once_in(4) { generator.pick(&flows).copied() } else { None };
        let wanted = again.unwrap_or_else(|| generator.key(&cubes));
        let Some(frame) = frame_of(&wanted, frames.len() as u32) else { continue };
        keys.push(parse_frame(&frame).ok().map(|headers| *headers.key()));
        frames.push(frame);
        flows.push(wanted);
    }
    (frames, keys)
}

fn host(scratch: &Scratch, rules: &[Rule], frames: &[Vec<u8>]) -> Host {
    let mut ports = vec![scratch.port(IN.0, frames)];
    ports[0].policy.forward = Forward::Port(FORWARD);
    ports.extend(OUTS.map(|out| scratch.port(out.0, &[])));
    Host { ports, rules: rules.to_vec(), ..Host::default() }
}

#[test]
fn every_packet_of_a_capture_goes_where_a_linear_scan_says() {
    let count = std::env::var("NETVM_TEST_HEADERS").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
    for (name, rules) in sets() {
        let (frames, keys) = frames(&rules, count);
        let scratch = Scratch::new();
        let started = Instant::now();
        let mut rig = Rig::new(&EngineConfig::default());
        start(&mut rig, &host(&scratch, &rules, &frames), &[]);
        let compiled = started.elapsed();
        finish(&mut rig);
        let drops: BTreeMap<&str, u64> =
            rig.engine.ports()[0].drops.iter().map(|(reason, count)| (reason.name(), *count)).collect();
        let counts = rig.engine.rule_counts();
        drop(rig);

        let mut expected_counts: BTreeMap<RuleId, RuleCount> =
            rules.iter().map(|rule| (rule.id, RuleCount::default())).collect();
        let mut expected_drops: BTreeMap<&str, u64> = BTreeMap::new();
        let mut expected_ports: Vec<Option<PortId>> = Vec::new();
        let mut matched = 0;
        for (frame, key) in frames.iter().zip(&keys) {
            let decision = key.as_ref().map(|key| decide(&rules, IN, None, key));
            for rule in decision.iter().flat_map(|decision| &decision.rules) {
                let count = expected_counts.get_mut(rule).unwrap();
                count.packets += 1;
                count.bytes += frame.len() as u64;
            }
            matched += usize::from(decision.as_ref().is_some_and(|decision| !decision.rules.is_empty()));
            let reason = match &decision {
                None => Some(DropReason::Malformed),
                Some(decision) if decision.actions.terminal == Some(Action::Drop) => Some(DropReason::Rule),
                Some(_) => None,
            };
            if let Some(reason) = reason {
                *expected_drops.entry(reason.name()).or_default() += 1;
            }
            expected_ports.push(match decision.map(|decision| decision.actions.terminal) {
                None | Some(Some(Action::Drop)) => None,
                Some(Some(Action::Port(port))) => Some(port),
                Some(_) => Some(FORWARD),
            });
        }
        println!("{name}: {matched} of {count} match, compiled in {compiled:.1?}, drops {drops:?}");
        assert!(matched > count / 4, "{name}: only {matched} of {count} match");
        let mut went = vec![None; count];
        for out in OUTS {
            for frame in scratch.sent(out.0) {
                let number = u32::from_be_bytes(*frame.last_chunk().unwrap()) as usize;
                assert!(frame == frames[number], "{name}: packet {number} was changed");
                assert_eq!(went[number].replace(out), None, "{name}: packet {number} went twice");
            }
        }
        for (n, (went, expected_ports)) in went.iter().zip(&expected_ports).enumerate() {
            assert_eq!(went, expected_ports, "{name}: packet {n}, {:?}", keys[n]);
        }
        assert_eq!(drops, expected_drops, "{name}");
        // A rule that others hide entirely has no decision, and no count.
        expected_counts.retain(|rule, count| count.packets > 0 || counts.contains_key(rule));
        assert_eq!(counts, expected_counts, "{name}");
    }
}
