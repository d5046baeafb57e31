// SPDX-License-Identifier: Apache-2.0
//! Trust groups: crossing copies and is counted, rights hold, regions may be on several nodes.

use std::fs::File;
use std::time::Duration;

use crate::support::pcap::{Scratch, finish, start};
use crate::support::{Rig, chain, group, line, nf, port, rule, source};
use netvm_engine::{ChainId, DropReason, PortId, Span};
use netvm_model::{Action, Actions, EngineConfig, Host, Match, OnFailure, PortKind, Rule, RuleParts};
use netvm_wire::{FrameBuilder, MacAddr, PortRange};

const TIMEOUT: Duration = Duration::from_secs(20);
const COUNT: u64 = 50_000;

#[test]
fn a_chain_through_two_groups_copies_every_packet_once() {
    for size in [60, 1514] {
        let host = Host {
            groups: vec![group(0, 4096, 2048), group(1, 4096, 2048)],
            ports: vec![port(0, "in", source(size, Some(COUNT), true)), port(1, "out", PortKind::Sink)],
            nfs: vec![nf(0, "a", 0), nf(1, "b", 1)],
            chains: vec![chain(0, &[0, 1], OnFailure::Drop, 1)],
            rules: vec![rule(0, 0)],
            ..Host::default()
        };
        let mut rig = Rig::new(&EngineConfig::default());
        rig.engine.apply(&host).unwrap();
        rig.engine.reset_latencies();
        // Workers look every tenth of a second whether they are to measure.
        rig.until(Duration::from_millis(200), |_| false);
        rig.attach("a", "forward", false);
        rig.attach("b", "forward", false);
        let all = |engine: &netvm_engine::Engine| {
            let chain = &engine.chains()[0];
            chain.left + chain.drops.iter().map(|(_, count)| count).sum::<u64>() == COUNT
        };
        assert!(rig.until(TIMEOUT, all), "{}", rig.describe());
        let copies: u64 = rig.engine.workers().map(|worker| worker.counters.copies.get()).sum();
        let bytes: u64 = rig.engine.workers().map(|worker| worker.counters.copied_bytes.get()).sum();
        assert_eq!((copies, bytes), (COUNT, COUNT * u64::from(size)), "{}", rig.describe());
        assert_eq!(rig.buffers_out(), 0, "{}", rig.describe());
        // The copy of a measured packet is measured in its place.
        let mut measured = |span: Span| {
            let views = rig.engine.latencies();
            views.iter().any(|view| view.span == span && !view.histogram.is_empty())
        };
        let spans =
            [Span::Ports(PortId(0), PortId(1)), Span::Chain(ChainId(0)), Span::Hops(ChainId(0), 1, 1)];
        assert_eq!(spans.map(&mut measured), [true; 3], "{size}");
    }
}

#[test]
fn an_nf_sends_only_to_ports_that_its_group_may_use() {
    for (allowed, denied) in [(vec![PortId(1)], false), (vec![PortId(0)], true)] {
        let mut host = line(&["a"], Some(COUNT), true);
        host.groups[0].may_send_to = Some(allowed);
        let mut rig = Rig::new(&EngineConfig::default());
        rig.engine.apply(&host).unwrap();
        rig.attach("a", "reverse", false);
        let settled = |engine: &netvm_engine::Engine| {
            let thread = &engine.instances()[0].threads[0];
            thread.returned == COUNT
        };
        assert!(rig.until(TIMEOUT, settled), "{}", rig.describe());
        assert_eq!(rig.sent(1), if denied { 0 } else { COUNT });
        let drops = &rig.engine.instances()[0].threads[0].drops;
        assert_eq!(drops.contains(&(DropReason::PortDenied, COUNT)), denied, "{}", rig.describe());
    }
}

#[test]
fn a_layout_of_two_nodes_works_on_a_machine_with_one() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores < 2 {
        println!("SKIP: two workers want two cores");
        return;
    }
    let config = EngineConfig { cores: vec![0, 1], nodes: vec![vec![0], vec![1]], ..EngineConfig::default() };
    let mut host = line(&["a", "b"], Some(COUNT), true);
    host.engine = config.clone();
    host.ports[0].queues = 1;
    let mut rig = Rig::new(&config);
    rig.engine.apply(&host).unwrap();
    rig.attach("a", "forward", false);
    rig.attach("b", "forward", false);
    assert!(rig.until(TIMEOUT, |engine| engine.chains()[0].left == COUNT), "{}", rig.describe());
    let memories = rig.engine.groups().into_iter().find(|group| group.id.is_some()).unwrap().memories;
    assert_eq!(
        memories.iter().map(|memory| memory.node).collect::<Vec<_>>(),
        [0, 1],
        "a region for each node"
    );
    assert!(memories[0].id != memories[1].id);
}

#[test]
fn two_workers_share_a_port_that_only_one_can_send_to() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores < 2 {
        println!("SKIP: two workers want two cores");
        return;
    }
    let config = EngineConfig { cores: vec![0, 1], ..EngineConfig::default() };
    let mut host = line(&["a"], Some(COUNT), true);
    host.engine = config.clone();
    host.ports[0].queues = 2;
    // One worker writes it: the other one hands over, and its queue of the source waits while the ring fills up.
    host.ports[1].kind = PortKind::Pcap { input: None, output: None, paced: false };
    let mut rig = Rig::new(&config);
    rig.engine.apply(&host).unwrap();
    rig.attach("a", "forward", false);
    assert!(rig.until(TIMEOUT, |engine| engine.ports()[1].tx_packets == COUNT), "{}", rig.describe());
    assert!(rig.engine.ports()[1].drops.is_empty(), "{}", rig.describe());
}

#[test]
fn replicas_by_flow_hash_keep_each_flow_and_share_the_load() {
    let mut host = line(&["a", "b"], Some(COUNT), true);
    host.nfs[1].balance = netvm_model::Balance::FlowHash;
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host).unwrap();
    // The replicas first: a flow keeps its replica while their number does.
    for _ in 0..3 {
        rig.attach("b", "forward", false);
    }
    rig.attach("a", "forward", false);
    let shares = |engine: &netvm_engine::Engine| -> Vec<u64> {
        engine.instances()[..3].iter().map(|view| view.threads[0].standard[0]).collect()
    };
    // An NF publishes its counters after it has sent a burst: the last packets may have left before they are counted.
    let all_counted = |engine: &netvm_engine::Engine| shares(engine).iter().sum::<u64>() == COUNT;
    assert!(
        rig.until(TIMEOUT, |engine| engine.chains()[0].left == COUNT && all_counted(engine)),
        "{}",
        rig.describe()
    );
    // 64 flows, each sends the same number of packets: every replica has a whole number of flows' worth.
    let shares = shares(&rig.engine);
    assert!(shares.iter().all(|share| *share > COUNT / 10), "{shares:?}");
    let each = COUNT / 64;
    assert!(shares.iter().all(|share| share % each <= 64), "flows were split: {shares:?}");
}

/// Packets for tenants 0 and 1 in turn: UDP to port 1000 and 1001.
fn to_tenants(count: usize) -> Vec<Vec<u8>> {
    let (from, to) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
    let packet = |n: usize| {
        let ip = FrameBuilder::new(from, to).ip("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        ip.udp(9, 1000 + n as u16 % 2).payload(&secret(n % 2)).to_vec().unwrap()
    };
    (0..count).map(packet).collect()
}

fn secret(tenant: usize) -> Vec<u8> {
    format!("only tenant {tenant} may read this").into_bytes()
}

/// Whether the memory that an NF of a role maps holds these bytes.
fn holds(rig: &Rig, role: u16, bytes: &[u8]) -> bool {
    let id = rig.engine.instances().iter().find(|view| view.role.0 == role).unwrap().id;
    let regions = rig.engine.descriptors(id).unwrap().regions;
    regions.iter().any(|region| {
        let file = File::from(region.try_clone_to_owned().unwrap());
        let mut memory = vec![0; file.metadata().unwrap().len() as usize];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut memory, 0).unwrap();
        memory.windows(bytes.len()).any(|window| window == bytes)
    })
}

#[test]
fn packets_of_two_tenants_on_a_shared_uplink_land_in_no_tenants_memory() {
    let tenant = |id: u16| {
        let matches = Match {
            from: vec![PortId(0)],
            destination_ports: vec![PortRange::new(1000 + id, 1000 + id).unwrap()],
            ..Match::default()
        };
        let actions = Actions { terminal: Some(Action::Chain(ChainId(id))), ..Actions::default() };
        Rule::from(RuleParts { id: netvm_policy::RuleId(id.into()), name: String::new(), matches, actions })
    };
    let scratch = Scratch::new();
    let mut host = Host {
        groups: vec![group(0, 1024, 2048), group(1, 1024, 2048)],
        ports: vec![scratch.port(0, &to_tenants(2000)), port(1, "out", PortKind::Sink)],
        nfs: vec![nf(0, "a", 0), nf(1, "b", 1)],
        chains: vec![chain(0, &[0], OnFailure::Drop, 1), chain(1, &[1], OnFailure::Drop, 1)],
        rules: vec![tenant(0), tenant(1)],
        ..Host::default()
    };
    let mut rig = Rig::new(&EngineConfig::default());
    start(&mut rig, &host, &["a", "b"]);
    finish(&mut rig);
    assert_eq!(rig.sent(1), 2000, "{}", rig.describe());
    assert!(holds(&rig, 0, &secret(0)) && holds(&rig, 1, &secret(1)), "each gets its own packets");
    assert!(!holds(&rig, 0, &secret(1)) && !holds(&rig, 1, &secret(0)), "and no others");
    let copies: u64 = rig.engine.workers().map(|worker| worker.counters.copies.get()).sum();
    assert_eq!(copies, 2000, "each packet is copied once, into the memory of its group");
    // Without the second tenant's rule, packets of the port, which reads another capture, land in the first one's
    // memory.
    host.rules.truncate(1);
    let second = Scratch::new();
    host.ports[0] = second.port(0, &to_tenants(100));
    rig.engine.apply(&host).unwrap();
    assert!(rig.until(TIMEOUT, |engine| engine.ports()[1].tx_packets == 2050), "{}", rig.describe());
    let copies: u64 = rig.engine.workers().map(|worker| worker.counters.copies.get()).sum();
    assert_eq!(copies, 2000, "{}", rig.describe());
}
