// SPDX-License-Identifier: Apache-2.0
//! Traces say what happens to packets: under random rules, flooded, switched, through NFs that rewrite them, through
//! ports without a device, and out of ports with rules of their own. The trace of a hypothetical packet, the trace of
//! the real one, and the counters of sent and dropped packets agree. A hypothetical packet ends at the NFs: after them,
//! the trace of the rewritten packet counts.

use std::sync::Arc;

use netvm_model::{AclDefault, Action, Forward, Host, PortKind, Rule};
use netvm_policy::{Masked, SetVlan};
use netvm_wire::{EtherType, FrameBuilder, IpProto, MacAddr, TcpFlags, VlanId, parse};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::super::rig::{CHAIN, Rig, mac, rules};
use super::super::stages::virtual_ports::tagged;
use super::only;
use crate::drop_reason::DropReason;
use crate::ids::{PortId, TraceId};
use crate::manager::traces::render;
use crate::memory::{Memory, eal_for_tests};
use crate::policy::Compiler;
use crate::snapshot::{Snapshot, Target};
use crate::worker::trace::Step;
use crate::worker::{Command, Hypothetical, Tracer};

const RULES: [&str; 12] = [
    r#"match = { protocol = "tcp", destination_ports = 23 }
       drop = true"#,
    r#"match = { protocol = "tcp", destination_ports = 80 }
       reject = true"#,
    r#"match = { protocol = "udp", destination_ports = 53 }
       out = "p2""#,
    r#"match = { vlan = 10 }
       set_vlan = "none""#,
    r#"match = { protocol = "udp" }
       mirror = "p3""#,
    r#"match = { protocol = "udp", destination_ports = 1003 }
       set_vlan = 20"#,
    r#"match = { source_mac = "02:00:00:00:00:01" }
       count = true"#,
    r#"to = "p1"
       match = { protocol = "tcp" }
       drop = true"#,
    r#"to = ["p1", "p3"]
       match = { vlan = 10 }
       drop = true"#,
    r#"to = "p2"
       match = { source_mac = "02:00:00:00:00:02" }
       allow = true"#,
    r#"match = { ether_type = "llc" }
       drop = true"#,
    r#"match = { source_mac = "02:00:00:00:00:00" }
       normal = true"#,
];

const PORTS: [&str; 7] = [
    "",
    "acl_out = \"deny\"",
    "acl_in = \"deny\"",
    "vlan = { access = 10 }",
    "vlan = { trunk = [10, 20] }",
    "vlan = { trunk = [10, 20], native = 20 }",
    "guard = { addresses = [\"10.0.0.0/30\"] }",
];
const COUNT: usize = 4;

/// Where ports without a device send what they receive: two ends of a link, one of which is in the switch; one for tag
/// 10 of port 0; and the switch's own interface.
const VIRTUAL: [&str; 4] = [
    "forward = { normal = true }",
    "forward = { out = \"p3\" }",
    "forward = { normal = true }",
    "forward = { out = \"p2\" }",
];
/// With these.
const ALL: usize = COUNT + VIRTUAL.len();

/// Where port 0 sends what no rule decides.
#[derive(Clone, Copy, Debug)]
enum To {
    Normal,
    Chain,
    Port,
}

/// The output of the chain.
#[derive(Clone, Copy, Debug)]
enum Output {
    Port,
    Ingress,
    Normal,
}

/// What the first NF changes.
#[derive(Clone, Copy, Debug)]
struct Rewrite {
    mac: Option<MacAddr>,
    port: Option<u16>,
}

impl Rewrite {
    fn apply(self, frame: &mut [u8]) {
        if let Some(mac) = self.mac {
            frame[..6].copy_from_slice(&mac.0);
        }
        let Ok(headers) = parse(frame) else { return };
        let has_ports = [IpProto::TCP, IpProto::UDP].contains(&headers.key().protocol);
        if let (Some(port), Some(l4)) = (self.port, headers.l4_offset().filter(|_| has_ports)) {
            frame[l4 + 2..l4 + 4].copy_from_slice(&port.to_be_bytes());
        }
    }
}

fn host(to: To, kinds: &[&str], chosen: &[&str], has_virtual: bool) -> Host {
    let ports: Vec<String> =
        kinds.iter().map(|kind| format!("forward = {{ normal = true }}\n{kind}")).collect();
    let mut ports: Vec<&str> = ports.iter().map(String::as_str).collect();
    if has_virtual {
        ports.extend(VIRTUAL);
    }
    let mut host = rules(&ports, chosen);
    let tag = VlanId::new(10).unwrap();
    let kinds = [
        PortKind::Patch { peer: PortId(5) },
        PortKind::Patch { peer: PortId(4) },
        PortKind::Vlan { parent: PortId(0), tag },
        PortKind::Bridge,
    ];
    for (port, kind) in host.ports[COUNT..].iter_mut().zip(kinds) {
        port.kind = kind;
    }
    host.ports[0].policy.forward = match to {
        To::Normal => Forward::Normal,
        To::Chain => Forward::Chain(CHAIN),
        To::Port => Forward::Port(PortId(1)),
    };
    host
}

fn rig(host: &Host, output: Output) -> Rig {
    let mut rig = Rig::of(host).with_chain(2, &[]);
    let mut snapshot = Snapshot::clone(&rig.worker.snapshot);
    let path = snapshot.chains[CHAIN.index()].as_mut().unwrap();
    *path.targets.last_mut().unwrap() = match output {
        Output::Port => Target::Port(PortId(1)),
        Output::Ingress => Target::Ingress,
        Output::Normal => Target::Normal,
    };
    rig.worker.snapshot = Arc::new(snapshot);
    rig
}

/// The same, but port 0 sends everything into the chain.
fn into_chain(snapshot: &Snapshot, host: &Host) -> Snapshot {
    let mut host = host.clone();
    // A rule that switches makes its port a member of the bridge: it stays, for no frame.
    let switches = |rule: &Rule| rule.actions.terminal == Some(Action::Normal);
    host.rules.retain(|rule| rule.matches.is_egress() || switches(rule));
    for rule in host.rules.iter_mut().filter(|rule| switches(rule)) {
        rule.matches.source_mac = vec![Masked::<u64>::single(1)];
    }
    let policy = &mut host.ports[0].policy;
    (policy.forward, policy.acl_in, policy.guard) = (Forward::Chain(CHAIN), AclDefault::Allow, None);
    let policy = Compiler::new(eal_for_tests()).compile(&host, &snapshot.policy).unwrap();
    Snapshot { policy: Arc::new(policy), hits: Default::default(), ..snapshot.clone() }
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    let ports = select(vec![23u16, 53, 80, 1003]);
    (0..4u8, 0..6u8, 0..8u8, 0..10u8, ports, 0..12u8).prop_map(|(source, to, host, kind, port, damage)| {
        // What a hypothetical packet would teach the switch is not known when the same packet is looked up.
        let to = if to == source { 4 } else { to };
        let to = if to == 5 { MacAddr::BROADCAST } else { mac(to) };
        let frame = FrameBuilder::new(mac(source), to);
        let frame = frame.ip([10, 0, 0, host].into(), [10, 0, 1, 1].into());
        let frame = match kind {
            0 => frame.arp_request([10, 0, 0, host].into(), [10, 0, 1, 1].into()),
            1 => FrameBuilder::new(mac(source), to).ether_type(EtherType(3)).payload(&[0x42, 0x42, 3]),
            2 | 3 => frame.vlan(VlanId::new(10).unwrap()).udp(1000, port),
            4 => frame.vlan(VlanId::new(30).unwrap()).tcp(1000, port, TcpFlags::SYN),
            5 | 6 => frame.udp(1000, port),
            _ => frame.tcp(1000, port, TcpFlags::SYN),
        };
        let mut bytes = frame.to_vec().unwrap();
        match damage {
            0 if kind > 4 => bytes[14] = 0x4f,
            1 if kind > 4 => bytes.truncate(30),
            _ => {}
        }
        bytes
    })
}

fn rewrite() -> impl Strategy<Value = Rewrite> {
    // To an address that is known, one that is not, and all.
    let macs = select(vec![None, Some(mac(4)), Some(mac(6)), Some(MacAddr::BROADCAST)]);
    let ports = select(vec![None, Some(23), Some(80)]);
    (macs, ports).prop_map(|(mac, port)| Rewrite { mac, port })
}

/// Tells the switch that address 4 is behind port 1; it learns those of the packets itself.
fn teach(rig: &Rig) {
    let Some(switching) = &rig.worker.snapshot.policy.switching else { return };
    for tag in [None, Some(10), Some(20)] {
        if let Some(Ok(vlan)) = switching.bridge.ingress(1, tag) {
            let _ = switching.fdb.learn(vlan, mac(4), 1, rig.worker.dp.clock.tick);
        }
    }
}

/// The steps without those of NFs, which a hypothetical packet only seems to pass.
fn without_nfs(steps: Vec<Step>) -> Vec<Step> {
    let is_of_nf = |step: &Step| matches!(step, Step::ToNf { .. } | Step::FromNf { .. } | Step::Rewritten(_));
    let seen = |step| if step == Step::Left { Step::Passed } else { step };
    steps.into_iter().filter(|step| !is_of_nf(step)).map(seen).collect()
}

/// Hypothetical packets.
struct Traces {
    tracer: Tracer,
    snapshot: Arc<Snapshot>,
    into_chain: Snapshot,
    rules: Vec<Rule>,
}

impl Traces {
    fn steps(&mut self, snapshot: &Snapshot, frame: &[u8], tick: u32) -> Vec<Step> {
        let packet = Hypothetical::of(PortId(0), frame);
        render::steps(&self.tracer.trace(snapshot, packet, tick).unwrap(), &snapshot.policy)
    }

    /// The steps of a frame that the first NF of the chain rewrites.
    fn expected(&mut self, frame: &[u8], rewrite: Rewrite, tick: u32) -> Vec<Step> {
        let (snapshot, into_chain) = (Arc::clone(&self.snapshot), self.into_chain.clone());
        let mut steps = self.steps(&snapshot, frame, tick);
        if let Some(passed) = steps.iter().position(|step| *step == Step::Passed) {
            let mut frame = self.retagged(frame, &steps[..passed]);
            rewrite.apply(&mut frame);
            let after = self.steps(&into_chain, &frame, tick);
            let from = after.iter().position(|step| *step == Step::Passed).unwrap();
            steps.splice(passed.., after[from..].iter().cloned());
        }
        steps
    }

    /// A frame with the tag that the rules of these steps give it.
    fn retagged(&self, frame: &[u8], steps: &[Step]) -> Vec<u8> {
        let ids =
            steps.iter().flat_map(|step| if let Step::Rules { rules, .. } = step { &rules[..] } else { &[] });
        let rules = ids.filter_map(|id| self.rules.iter().find(|rule| rule.id == *id));
        rules.filter_map(|rule| rule.actions.set_vlan).fold(frame.to_vec(), |frame, set| {
            let is_tagged = frame[12..14] == [0x81, 0];
            let untagged = if is_tagged { [&frame[..12], &frame[16..]].concat() } else { frame };
            match set {
                SetVlan::Tag(tag) => tagged(&untagged, tag.get()),
                SetVlan::Strip => untagged,
            }
        })
    }
}

/// Ports that a packet leaves by, with its mirrors and answers, and reasons for drops; in order.
type Ends = (Vec<u16>, Vec<DropReason>);

fn ends_of(steps: &[Step]) -> Ends {
    let port = |step: &Step| match step {
        Step::Out(port) | Step::Mirrored(port) => Some(port.0),
        // Only rules of port 0 reject.
        Step::Answered => Some(0),
        _ => None,
    };
    let reason = |step: &Step| if let Step::Dropped(reason) = step { Some(*reason) } else { None };
    let mut ends: Ends = (steps.iter().filter_map(port).collect(), steps.iter().filter_map(reason).collect());
    ends.0.sort_unstable();
    ends.1.sort_unstable_by_key(|reason| *reason as u8);
    ends
}

/// Packets so far: sent, by port, and dropped, by reason.
struct Counts {
    sent: [u64; ALL],
    drops: [u64; DropReason::COUNT],
}

impl Counts {
    fn of(rig: &Rig) -> Self {
        let dropped = |reason: DropReason| {
            let ports = (0..ALL).map(|port| rig.dropped_at(port, reason)).sum::<u64>();
            ports + rig.dropped_in_chain(reason)
        };
        let sent = std::array::from_fn(|port| rig.counters().ports[port].tx_packets.get());
        Self { sent, drops: DropReason::ALL.map(dropped) }
    }
}

/// What happened since `before`.
fn real_ends(rig: &Rig, before: &Counts) -> Ends {
    let now = Counts::of(rig);
    let counts = |now: &[u64], before: &[u64]| -> Vec<usize> {
        now.iter().zip(before).map(|(now, before)| (now - before) as usize).collect()
    };
    let sent = counts(&now.sent, &before.sent).into_iter().zip(0..);
    let sent = sent.flat_map(|(count, port)| std::iter::repeat_n(port, count)).collect();
    let drops = counts(&now.drops, &before.drops).into_iter().zip(DropReason::ALL);
    let mut reasons: Vec<_> = drops.flat_map(|(count, reason)| std::iter::repeat_n(reason, count)).collect();
    reasons.sort_unstable_by_key(|reason| *reason as u8);
    (sent, reasons)
}

/// Plays a frame through the worker and its NFs, the first of which rewrites it.
fn play(rig: &mut Rig, frame: &[u8], rewrite: Rewrite) {
    rig.receive(0, frame);
    rig.turn();
    for hop in 0..2 {
        let burst = rig.nfs[hop].take();
        if hop == 0 {
            burst.iter().for_each(|packet| rewrite.apply(rig.bytes_of(packet)));
        }
        rig.nfs[hop].tx.push(&burst);
        rig.turn();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn traces_say_what_happens_to_packets(
        (to, output, has_virtual) in (
            select(vec![To::Normal, To::Chain, To::Port]),
            select(vec![Output::Port, Output::Ingress, Output::Normal]),
            any::<bool>(),
        ),
        kinds in vec(select(PORTS.to_vec()), COUNT),
        chosen in subsequence(RULES.to_vec(), 0..=RULES.len()),
        frames in vec((frame(), rewrite()), 1..20),
    ) {
        let host = host(to, &kinds, &chosen, has_virtual);
        let mut rig = rig(&host, output);
        teach(&rig);
        let snapshot = Arc::clone(&rig.worker.snapshot);
        let mut traces = Traces {
            tracer: Tracer::new(Arc::new(Memory::for_tests(512, 0, 16))).unwrap(),
            into_chain: into_chain(&snapshot, &host),
            snapshot,
            rules: host.rules.clone(),
        };
        for (frame, rewrite) in &frames {
            let expected = traces.expected(frame, *rewrite, rig.worker.dp.clock.tick);
            let before = Counts::of(&rig);
            rig.start_trace(1, None);
            play(&mut rig, frame, *rewrite);
            prop_assert_eq!(real_ends(&rig, &before), ends_of(&expected), "{:02x?} {:#?}", frame, expected);
            prop_assert_eq!(without_nfs(only(&mut rig)), expected, "{:02x?}", frame);
            rig.command(Command::RemoveTrace(TraceId(1)));
        }
        rig.assert_nothing_leaked();
    }
}
