// SPDX-License-Identifier: Apache-2.0
//! One worker and two do the same: the packets that leave, those that are dropped, the counts of rules, and the flows
//! that are recorded. And limits hold for all workers together.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use netvm_engine::{ChainId, DropCounts, Engine, PortId};
use netvm_flowmon::Key;
use netvm_model::{
    Balance, EngineConfig, FlowMonitorConfig, Forward, Host, OnFailure, PortKind, QosConfig, QueueConfig,
    Rate, SourceConfig,
};
use netvm_policy::{Action, Actions, Match, Rule, RuleId, RuleParts, SetVlan};
use netvm_wire::{FrameBuilder, IpProto, MacAddr, PortRange, TcpFlags, VlanId};

use crate::alone;
use crate::support::pcap::{Scratch, finish};
use crate::support::{Rig, chain, group, line, nf, port};

/// Ports that receive, all ports with captures, and the two ends of a link.
const INPUTS: u16 = 4;
const PORTS: u16 = 6;
const LINK: [u16; 2] = [6, 7];
const FRAMES: u32 = 400;
const CASES: u64 = 12;

/// A generator of numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % limit
    }

    fn one_in(&mut self, cases: u64) -> bool {
        self.below(cases) == 0
    }

    fn choose<T: Clone>(&mut self, among: &[T]) -> T {
        among[self.below(among.len() as u64) as usize].clone()
    }
}

/// A packet of one of some hundred flows, in either direction; `number` tells it from all others.
fn frame(random: &mut Random, number: u32) -> Vec<u8> {
    let (client, server) = (random.below(12) as u8 + 1, random.below(3) as u8 + 1);
    let (from, to) = (1000 + u16::from(client), random.choose(&[22, 53, 80]));
    let ends = [(client, [10, 0, 0, client]), (100 + server, [10, 0, 1, server])];
    let ports = [from, to];
    let [a, b] = if random.one_in(2) { [0, 1] } else { [1, 0] };
    let mac = |end: usize| MacAddr([2, 0, 0, 0, 0, ends[end].0]);
    let builder = FrameBuilder::new(mac(a), mac(b)).ip(ends[a].1.into(), ends[b].1.into());
    let builder = match random.below(3) {
        0 => builder.tcp(ports[a], ports[b], TcpFlags::ACK),
        _ => builder.udp(ports[a], ports[b]),
    };
    let builder = if random.one_in(4) { builder.vlan(VlanId::new(7).unwrap()) } else { builder };
    builder.payload(&number.to_be_bytes()).to_vec().unwrap()
}

fn rule(random: &mut Random, id: u32) -> Rule {
    let mut matches = Match::default();
    if random.one_in(2) {
        matches.from = (0..INPUTS).filter(|_| random.one_in(2)).map(PortId).collect();
    }
    if random.one_in(2) {
        matches.protocol = vec![random.choose(&[IpProto::TCP, IpProto::UDP])];
        if random.one_in(2) {
            matches.destination_ports = vec![PortRange::single(random.choose(&[22, 53, 80, 1003]))];
        }
    }
    if random.one_in(3) {
        matches.source = vec![random.choose(&["10.0.0.0/29", "10.0.1.0/24", "10.0.0.5/32"]).parse().unwrap()];
    }
    let leaves = random.one_in(4);
    if leaves {
        matches.to = vec![PortId(random.below(PORTS.into()) as u16)];
    }
    let terminal = match random.below(if leaves { 3 } else { 7 }) {
        0 | 1 => Some(random.choose(&[Action::Drop, Action::Allow])),
        2 => None,
        3 => Some(Action::Chain(ChainId(random.below(2) as u16))),
        _ => Some(Action::Port(PortId(random.below(PORTS.into()) as u16))),
    };
    let mirror = random.one_in(5).then(|| PortId(random.below(PORTS.into()) as u16));
    let set_vlan = random.one_in(6).then(|| SetVlan::Tag(VlanId::new(9).unwrap()));
    let terminal = if mirror.is_none() && set_vlan.is_none() && terminal.is_none() {
        Some(Action::Drop)
    } else {
        terminal
    };
    let actions = Actions { terminal, mirror, set_vlan, ..Actions::default() };
    Rule::from(RuleParts { id: RuleId(id), name: String::new(), matches, actions })
}

/// A random host that receives random captures. One NF gives a verdict on the flows of one client, and one role is
/// sticky.
fn case(seed: u64, scratch: &Scratch) -> Host {
    let mut random = Random(seed);
    let mut frames = vec![Vec::new(); usize::from(INPUTS)];
    for number in 0..FRAMES {
        let port = random.below(INPUTS.into()) as usize;
        frames[port].push(frame(&mut random, number));
    }
    let mut ports: Vec<_> = (0..PORTS)
        .map(|id| scratch.port(id, frames.get(usize::from(id)).map_or(&[][..], Vec::as_slice)))
        .collect();
    for port in &mut ports[..usize::from(INPUTS)] {
        let out = PortId(random.below(u64::from(LINK[0]) + 1) as u16);
        port.policy.forward = if random.one_in(5) { Forward::None } else { Forward::Port(out) };
    }
    let end = |id, peer| port(id, &format!("p{id}"), PortKind::Patch { peer: PortId(peer) });
    ports.extend([end(LINK[0], LINK[1]), end(LINK[1], LINK[0])]);
    ports[usize::from(LINK[1])].policy.forward = Forward::Port(PortId(random.below(PORTS.into()) as u16));
    let mut nfs = vec![nf(0, "sticky", 0), nf(1, "verdicts", 0)];
    nfs[0].balance = Balance::Sticky;
    nfs[1].flow_verdicts = 60;
    let chains = vec![chain(0, &[0], OnFailure::Drop, 4), chain(1, &[0, 1], OnFailure::Drop, 5)];
    let rules = (0..random.below(10) as u32 + 2).map(|id| rule(&mut random, id)).collect();
    Host { groups: vec![group(0, 4096, 2048)], ports, nfs, chains, rules, ..Host::default() }
}

/// What a run did.
#[derive(Debug, PartialEq)]
struct Outcome {
    /// What each port sent, in any order.
    sent: Vec<Vec<Vec<u8>>>,
    /// Packets that each port received and sent, and those that it dropped.
    ports: Vec<(u64, u64, u64)>,
    /// Packets of each rule.
    rules: BTreeMap<RuleId, (u64, u64)>,
    /// Drops of each chain; which of them an NF asked for depends on when its verdict came.
    chains: Vec<u64>,
    /// The records of each flow: packets in either direction.
    flows: BTreeMap<Key, Vec<(u64, u64)>>,
}

fn run(seed: u64, workers: usize) -> Outcome {
    let scratch = Scratch::new();
    let mut host = case(seed, &scratch);
    let cores = (0..workers as u32).collect();
    host.engine =
        EngineConfig { cores, flow_monitor: Some(FlowMonitorConfig::default()), ..EngineConfig::default() };
    let mut rig = Rig::new(&host.engine);
    let mut records = rig.engine.take_flow_records();
    let mut quiet = host.clone();
    for port in &mut quiet.ports {
        if let PortKind::Pcap { input, .. } = &mut port.kind {
            *input = None;
        }
    }
    rig.engine.apply(&quiet).unwrap();
    rig.attach("sticky", "forward", false);
    rig.attach("sticky", "forward", false);
    rig.attach("verdicts", "drop-one=3", false);
    rig.engine.apply(&host).unwrap();
    finish(&mut rig);
    let drops = |drops: &DropCounts| drops.iter().map(|(_, packets)| packets).sum::<u64>();
    let ports = rig.engine.ports();
    let ports = ports.iter().map(|view| (view.rx_packets, view.tx_packets, drops(&view.drops))).collect();
    let rules = rig.engine.rule_counts();
    let rules = rules.into_iter().map(|(id, count)| (id, (count.packets, count.bytes))).collect();
    let chains = rig.engine.chains().iter().map(|view| drops(&view.drops)).collect();
    // Closes the ports, and the engine.
    rig.engine.apply(&Host { engine: host.engine.clone(), ..Host::default() }).unwrap();
    drop(rig);
    let mut flows: BTreeMap<Key, Vec<(u64, u64)>> = BTreeMap::new();
    for ring in &mut records {
        while let Ok(record) = ring.pop() {
            let [there, back] = [record.there.packets, record.back.packets];
            let counts = if record.from_higher { (back, there) } else { (there, back) };
            flows.entry(record.key).or_default().push(counts);
        }
    }
    let sent = (0..PORTS)
        .map(|id| {
            let mut frames = scratch.sent(id);
            frames.sort();
            frames
        })
        .collect();
    Outcome { sent, ports, rules, chains, flows }
}

#[test]
fn one_worker_and_two_do_the_same() {
    let _alone = alone();
    for seed in 0..CASES {
        let [one, two] = [1, 2].map(|workers| run(seed, workers));
        assert_eq!(one.ports, two.ports, "seed {seed}: ports");
        assert_eq!(one.rules, two.rules, "seed {seed}: rules");
        assert_eq!(one.chains, two.chains, "seed {seed}: chains");
        assert_eq!(one.flows, two.flows, "seed {seed}: flows");
        assert_eq!(one, two, "seed {seed}");
    }
}

fn two_workers() -> EngineConfig {
    EngineConfig { cores: vec![0, 1], ..EngineConfig::default() }
}

#[test]
fn answers_to_rejected_packets_have_one_limit_for_all_workers() {
    let _alone = alone();
    const BURST: u64 = 100;
    const PER_SECOND: f64 = 1000.0;
    let scratch = Scratch::new();
    let frames = |port: u8| -> Vec<Vec<u8>> {
        let ends = [[10, 0, port, 1], [10, 0, port, 2]];
        let to = |n| {
            FrameBuilder::new(MacAddr([2, 0, 0, 0, port, 1]), MacAddr([2, 0, 0, 0, port, 2]))
                .ip(ends[0].into(), ends[1].into())
                .udp(n, 53)
        };
        (1000..1400).map(|n| to(n).to_vec().unwrap()).collect()
    };
    let rejects = Rule::from(RuleParts {
        id: RuleId(0),
        name: String::new(),
        matches: Match::default(),
        actions: Actions { terminal: Some(Action::Reject), ..Actions::default() },
    });
    let ports = (0..4).map(|id| scratch.port(id, &frames(id as u8))).collect();
    let host = Host { engine: two_workers(), ports, rules: vec![rejects], ..Host::default() };
    let mut rig = Rig::new(&host.engine);
    let start = Instant::now();
    rig.engine.apply(&host).unwrap();
    finish(&mut rig);
    let most = BURST as f64 + start.elapsed().as_secs_f64() * PER_SECOND;
    let sent: u64 = rig.engine.ports().iter().map(|view| view.tx_packets).sum();
    assert!(sent >= BURST && sent as f64 <= most, "{sent} answers, at most {most}");
}

#[test]
fn the_queues_of_a_source_share_its_rate_and_its_count() {
    let _alone = alone();
    let config = SourceConfig { flows: 7, rate: Some(20_000), count: Some(2001), ..SourceConfig::default() };
    let mut ports = vec![port(0, "in", PortKind::Source(config)), port(1, "out", PortKind::Sink)];
    (ports[0].queues, ports[0].policy.forward) = (2, Forward::Port(PortId(1)));
    let host = Host { engine: two_workers(), ports, ..Host::default() };
    let mut rig = Rig::new(&host.engine);
    let start = Instant::now();
    rig.engine.apply(&host).unwrap();
    let received = |engine: &Engine| {
        let view = &engine.ports()[0];
        view.rx_packets + view.rx_dropped
    };
    assert!(rig.until(Duration::from_secs(20), |engine| received(engine) >= 2001), "{}", rig.describe());
    assert!(start.elapsed() > Duration::from_millis(95), "at the rate, not twice as fast");
    // It is over: nothing more is due.
    rig.until(Duration::from_millis(100), |_| false);
    assert_eq!(received(&rig.engine), 2001, "{}", rig.describe());
}

#[test]
fn the_shaper_of_a_port_holds_for_all_workers() {
    let _alone = alone();
    // 16,667 frames a second, and 200 at once.
    const BITS: Rate = Rate { per_second: 8_000_000, burst: 96_000 };
    let queues = vec![QueueConfig { weight: 1, packets: 100, ..QueueConfig::default() }];
    let config = SourceConfig { flows: 16, rate: Some(200_000), ..SourceConfig::default() };
    let mut ports = vec![port(0, "in", PortKind::Source(config)), port(1, "out", PortKind::Sink)];
    (ports[0].queues, ports[0].policy.forward) = (2, Forward::Port(PortId(1)));
    ports[1].policy.qos = Some(QosConfig { bits: BITS, queues });
    let shaped = Host { engine: two_workers(), ports, ..Host::default() };
    let mut free = shaped.clone();
    free.ports[1].policy.qos = None;
    let mut rig = Rig::new(&shaped.engine);
    let sent = |rig: &Rig| rig.engine.ports()[1].tx_bytes * 8;
    let limited = |rig: &mut Rig| {
        let (start, before) = (Instant::now(), sent(rig));
        rig.until(Duration::from_millis(400), |_| false);
        let bits = sent(rig) - before;
        // Each worker may have sent a burst before the start that its counters did not have yet.
        let late = 2 * 32 * 60 * 8;
        let most = (BITS.burst + late) as f64 + start.elapsed().as_secs_f64() * BITS.per_second as f64;
        assert!(bits as f64 <= most && bits > BITS.burst / 2, "{bits} bits, at most {most}");
    };
    rig.engine.apply(&shaped).unwrap();
    limited(&mut rig);
    // Live: without the shaper, and with it again.
    rig.engine.apply(&free).unwrap();
    let before = sent(&rig);
    let is_fast = |engine: &Engine| engine.ports()[1].tx_bytes * 8 > before + 10 * BITS.burst;
    assert!(rig.until(Duration::from_secs(10), is_fast), "{}", rig.describe());
    rig.engine.apply(&shaped).unwrap();
    // What was under way.
    rig.until(Duration::from_millis(50), |_| false);
    limited(&mut rig);
}

#[test]
fn a_lossless_source_loses_nothing_on_the_way_to_the_owners_of_its_flows() {
    let _alone = alone();
    const COUNT: u64 = 200_000;
    let mut host = line(&["a"], Some(COUNT), true);
    host.engine = EngineConfig { flow_monitor: Some(FlowMonitorConfig::default()), ..two_workers() };
    let mut quiet = host.clone();
    quiet.rules.clear();
    quiet.ports.remove(0);
    let mut rig = Rig::new(&host.engine);
    rig.engine.apply(&quiet).unwrap();
    rig.attach("a", "forward", false);
    rig.engine.apply(&host).unwrap();
    let all = |engine: &Engine| engine.chains()[0].left == COUNT;
    assert!(rig.until(Duration::from_secs(60), all), "{}", rig.describe());
    assert_eq!(rig.engine.chains()[0].drops, [], "{}", rig.describe());
    // Both workers had flows.
    let busy = rig.engine.workers().filter(|worker| worker.counters.busy_packets.get() > COUNT / 8).count();
    assert_eq!(busy, 2, "{}", rig.describe());
}
