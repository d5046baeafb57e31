// SPDX-License-Identifier: Apache-2.0
//! What traces say of packets is what happens to them: under random rules for what ports receive and send, routed,
//! punted, and through an NF that rewrites packets as NAT does. A hypothetical packet ends at the NF: behind it, the
//! trace of the rewritten packet counts.

use std::collections::BTreeMap;

use super::plan::{self, *};
use crate::support::nf::rewrite;
use crate::support::pcap::{Scratch, finish};
use crate::support::{Rig, behind_nf};
use netvm_engine::{ChainId, Hypothetical, PortId, Step};
use netvm_model::{AclDefault, EngineConfig, Forward, Host, Output, RouterId};
use netvm_policy::{Action, Actions, Match, Rule, RuleId, RuleParts};
use netvm_wire::{FrameBuilder, IpProto, MacAddr, PortRange, TcpFlags};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

/// VLANs of the LAN and the WAN.
const INSIDE: u16 = 10;
const OUTSIDE: u16 = 20;
const CHAIN: Action = Action::Chain(ChainId(0));
const ROUTER: RouterId = RouterId(0);

/// A rule of the cases.
#[derive(Clone, Copy, Debug)]
struct Part {
    to_wan: bool,
    protocol: Option<IpProto>,
    port: Option<u16>,
    terminal: Option<Action>,
    mirrored: bool,
}

const PART: Part = Part { to_wan: false, protocol: None, port: None, terminal: None, mirrored: false };

fn parts() -> Vec<Part> {
    let (tcp, udp) = (Some(IpProto::TCP), Some(IpProto::UDP));
    vec![
        Part { protocol: udp, port: Some(53), terminal: Some(CHAIN), ..PART },
        Part { protocol: udp, port: Some(25), terminal: Some(Action::Drop), ..PART },
        Part { protocol: udp, mirrored: true, ..PART },
        Part { port: Some(80), terminal: Some(Action::Port(PortId(WAN))), ..PART },
        Part { protocol: tcp, terminal: Some(CHAIN), ..PART },
        Part { port: Some(53), terminal: Some(Action::Router(ROUTER)), ..PART },
        Part { to_wan: true, port: Some(25), terminal: Some(Action::Drop), ..PART },
        Part { to_wan: true, protocol: tcp, terminal: Some(Action::Allow), ..PART },
        Part { to_wan: true, protocol: udp, port: Some(53), terminal: Some(Action::Drop), ..PART },
    ]
}

fn rule(id: u32, part: &Part) -> Rule {
    let mut matches = Match::default();
    match part.to_wan {
        true => matches.to = vec![PortId(WAN)],
        false => matches.from = vec![PortId(LAN)],
    }
    matches.protocol = part.protocol.into_iter().collect();
    matches.destination_ports = part.port.map(PortRange::single).into_iter().collect();
    let mirror = part.mirrored.then_some(PortId(WAN_PUNT));
    let actions = Actions { terminal: part.terminal, mirror, ..Actions::default() };
    Rule::from(RuleParts { id: RuleId(id), name: String::new(), matches, actions })
}

/// A host and what its LAN receives.
#[derive(Clone, Debug)]
struct Case {
    forward: Forward,
    output: Output,
    acl_out: AclDefault,
    parts: Vec<Part>,
    frames: Vec<Vec<u8>>,
}

impl Case {
    fn host(&self, scratch: &Scratch, frames: &[Vec<u8>]) -> Host {
        let mut host = behind_nf(plan::host(scratch, frames, INSIDE, OUTSIDE), self.output);
        host.ports[usize::from(LAN)].policy.forward = self.forward;
        host.ports[usize::from(WAN)].policy.acl_out = self.acl_out;
        host.rules = (0..).zip(&self.parts).map(|(id, part)| rule(id, part)).collect();
        host
    }

    /// The same, but the LAN sends everything into the chain.
    fn all_in_chain(&self, scratch: &Scratch) -> Host {
        let parts = self.parts.iter().filter(|part| part.to_wan).copied().collect();
        let forward = Forward::Chain(ChainId(0));
        Self { forward, parts, ..self.clone() }.host(scratch, &[])
    }
}

/// A frame that ends with zeros, for its number.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let destinations = select(vec![
        "192.0.2.2",
        "192.0.2.3",
        "198.51.100.1",
        "10.0.0.1",
        "203.0.113.5",
        "2001:db8:1::2",
        "2001:db8:9::9",
    ]);
    let (ports, vlans) = (select(vec![25u16, 53, 80]), select(vec![INSIDE, INSIDE, INSIDE, 0, 99]));
    let strategy = (destinations, any::<bool>(), ports, 0..8u8, vlans);
    strategy.prop_map(|(to, is_tcp, port, kind, vlan)| {
        let mac = if kind == 0 { MacAddr([2, 9, 9, 9, 9, 9]) } else { IN };
        let from = if to.contains(':') { "2001:db8::9" } else { "10.0.0.9" };
        let ttl = if kind == 1 { 1 } else { 64 };
        let builder = FrameBuilder::new(HOST, mac).ip(ip(from), ip(to)).ttl(ttl);
        let builder = if is_tcp { builder.tcp(1000, port, TcpFlags::SYN) } else { builder.udp(1000, port) };
        tagged(&builder.payload(&[0; 4]).to_vec().unwrap(), vlan)
    })
}

/// The frames with their numbers at the end.
fn numbered(frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let with_number = |(number, frame): (u32, &Vec<u8>)| {
        let end = frame.len() - 4;
        [&frame[..end], &number.to_be_bytes()].concat()
    };
    (0..).zip(frames).map(with_number).collect()
}

fn case() -> impl Strategy<Value = Case> {
    let forward = select(vec![
        Forward::Router(ROUTER),
        Forward::Chain(ChainId(0)),
        Forward::Port(PortId(WAN)),
        Forward::None,
    ]);
    let output = select(vec![Output::Router(ROUTER), Output::Port(PortId(WAN)), Output::Ingress]);
    let acl_out = select(vec![AclDefault::Allow, AclDefault::Deny]);
    let frames = vec(frame(), 60);
    (forward, output, acl_out, subsequence(parts(), 0..=parts().len()), frames).prop_map(
        |(forward, output, acl_out, parts, frames)| Case {
            forward,
            output,
            acl_out,
            parts,
            frames: numbered(&frames),
        },
    )
}

/// What the traces say of each frame, which the NF of the chain rewrites.
fn expected(rig: &mut Rig, case: &Case, scratch: &Scratch) -> Vec<Vec<Step>> {
    let trace = |rig: &mut Rig, frame: &[u8]| rig.engine.trace(Hypothetical::of(PortId(LAN), frame)).unwrap();
    let mut all: Vec<Vec<Step>> = case.frames.iter().map(|frame| trace(rig, frame)).collect();
    rig.engine.apply(&case.all_in_chain(scratch)).unwrap();
    for (frame, steps) in case.frames.iter().zip(&mut all) {
        if let Some(passed) = steps.iter().position(|step| *step == Step::Passed) {
            let mut frame = frame.clone();
            rewrite(&mut frame);
            let after = trace(rig, &frame);
            let from = after.iter().position(|step| *step == Step::Passed).unwrap();
            steps.splice(passed.., after[from..].iter().cloned());
        }
    }
    all
}

/// The ports that a packet leaves by, in order.
fn ports_of(steps: &[Step]) -> Vec<u16> {
    let port = |step: &Step| match step {
        Step::Out(port) | Step::Mirrored(port) => Some(port.0),
        _ => None,
    };
    let mut ports: Vec<u16> = steps.iter().filter_map(port).collect();
    ports.sort_unstable();
    ports
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    fn a_trace_of_routed_and_rewritten_packets_is_what_happens(case in case()) {
        let scratch = Scratch::new();
        let mut rig = Rig::new(&EngineConfig::default());
        start_routed(&mut rig, &case.host(&scratch, &[]), &routes());
        rig.attach("fw", "rewrite", false);
        let expected = expected(&mut rig, &case, &scratch);
        rig.engine.apply(&case.host(&scratch, &case.frames)).unwrap();
        finish(&mut rig);
        let (ports, chains) = (rig.engine.ports(), rig.engine.chains());
        let mut drops: BTreeMap<&str, u64> = BTreeMap::new();
        let of_chains = chains.iter().flat_map(|chain| &chain.drops);
        for (reason, count) in ports.iter().flat_map(|port| &port.drops).chain(of_chains) {
            *drops.entry(reason.name()).or_insert(0) += count;
        }
        let host = case.host(&scratch, &[]);
        rig.engine
            .apply(&Host { ports: Vec::new(), routers: Vec::new(), rules: Vec::new(), ..host })
            .unwrap();
        let sent: Vec<_> = (0..4).map(|port| scratch.sent(port)).collect();
        for ((number, steps), frame) in (0u32..).zip(&expected).zip(&case.frames) {
            let is_it = |frame: &&Vec<u8>| frame.ends_with(&number.to_be_bytes());
            let real: Vec<u16> = (0u16..)
                .zip(&sent)
                .flat_map(|(port, sent)| sent.iter().filter(is_it).map(move |_| port))
                .collect();
            prop_assert_eq!(real, ports_of(steps), "{}: {:02x?}\n{:#?}", number, frame, steps);
        }
        let mut predicted: BTreeMap<&str, u64> = BTreeMap::new();
        for step in expected.iter().flatten() {
            if let Step::Dropped(reason) = step {
                *predicted.entry(reason.name()).or_insert(0) += 1;
            }
        }
        prop_assert_eq!(drops, predicted);
    }
}
