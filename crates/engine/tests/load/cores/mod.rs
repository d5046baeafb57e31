// SPDX-License-Identifier: Apache-2.0
//! Workers that are added, removed and moved to other cores while packets pass: none is lost, and all keep their order.

mod connections;
mod translated;
mod work;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::alone;
use crate::support::pcap::{Scratch, read};
use crate::support::{Rig, all_is_free, chain, group, nf, nothing_is_out, port, rule};
use netvm_capture_ring::Reader;
use netvm_engine::{CaptureSpec, DropReason, Engine, InstanceId, PortId};
use netvm_flowmon::Record;
use netvm_model::{EngineConfig, FlowMonitorConfig, Forward, Host, OnFailure, PortKind, RuleId};
use netvm_region::NfCounter;
use netvm_wire::{FrameBuilder, MacAddr};
use rtrb::Consumer;

const PACKETS: u32 = 200_000;
const FLOWS: u32 = 8;
const LIMIT: Duration = Duration::from_secs(60);
/// The cores after each change: a worker is added, removed, added on a core that another had, removed.
const CHANGES: [&[u32]; 4] = [&[0, 1], &[1], &[1, 0], &[0]];

/// What packets pass, and what is kept of their flows.
#[derive(Clone, Copy, Debug, Default)]
struct Case {
    by_chain: bool,
    /// The chain has a second NF, of another group, so NFs return packets to the worker after each hop. Those for which
    /// the second one has no room are dropped.
    has_two_hops: bool,
    by_patch: bool,
    is_monitored: bool,
    is_captured: bool,
}

fn has_two_cores() -> bool {
    let has = std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= 2);
    if !has {
        println!("SKIP: two workers need two cores");
    }
    has
}

fn on(cores: &[u32]) -> EngineConfig {
    EngineConfig { cores: cores.to_vec(), ..EngineConfig::default() }
}

/// Numbered packets of some flows.
fn frames() -> Vec<Vec<u8>> {
    let frame = |n: u32| {
        let frame = FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let ends = ["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        let frame = frame.ip(ends[0], ends[1]).udp(1000 + (n % FLOWS) as u16, 53);
        frame.payload(&n.to_be_bytes()).to_vec().unwrap()
    };
    (0..PACKETS).map(frame).collect()
}

/// The number of a packet.
fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(*frame.last_chunk().unwrap())
}

/// From a capture into another one, straight, through a patch, or by a rule through an NF. Any worker may have them.
fn host(folder: &Scratch, frames: &[Vec<u8>], case: Case) -> Host {
    let mut host = Host { ports: vec![folder.port(0, frames), folder.port(1, &[])], ..Host::default() };
    host.ports[0].policy.forward = Forward::Port(PortId(1));
    if case.by_chain {
        host.groups = vec![group(0, 4096, 2048)];
        host.nfs = vec![nf(0, "fw", 0)];
        host.chains = vec![chain(0, &[0], OnFailure::Drop, 1)];
        host.rules = vec![rule(0, 0)];
    }
    if case.has_two_hops {
        host.groups.push(group(1, 4096, 2048));
        host.nfs.push(nf(1, "nat", 1));
        host.chains = vec![chain(0, &[0, 1], OnFailure::Drop, 1)];
    }
    if case.by_patch {
        let end = |id, peer| port(id, &format!("p{id}"), PortKind::Patch { peer: PortId(peer) });
        host.ports.extend([end(2, 3), end(3, 2)]);
        host.ports[0].policy.forward = Forward::Port(PortId(2));
        host.ports[3].policy.forward = Forward::Port(PortId(1));
    }
    host
}

/// A capture of what port 1 sends, into rings that hold all of it.
fn capture(engine: &mut Engine) -> Vec<Reader> {
    let spec = CaptureSpec { at: vec!["p1".to_owned()], ring_bytes: 32 << 20, ..CaptureSpec::default() };
    let prepared = spec.prepare(engine.workers().count(), engine.room_for_workers()).unwrap();
    let started = engine.start_capture(&spec, prepared).unwrap();
    started.rings.into_iter().map(|ring| Reader::open(ring).unwrap()).collect()
}

/// The numbers of all captured packets, sorted.
fn captured(readers: &mut [Reader]) -> Vec<u32> {
    let mut numbers = Vec::new();
    for reader in readers {
        while let Some((_, packet)) = reader.peek() {
            numbers.push(number(packet));
            reader.advance();
        }
        assert_eq!(reader.counts(0).lost, 0);
    }
    numbers.sort_unstable();
    numbers
}

/// Packets in the records of all workers that there have been.
fn recorded(rings: &mut [Consumer<Record>]) -> u64 {
    let mut packets = 0;
    for ring in rings {
        while let Ok(record) = ring.pop() {
            packets += record.there.packets + record.back.packets;
        }
    }
    packets
}

/// Packets that an NF got, by the engine's counts and by its own, and those that it returned.
fn counted(engine: &Engine, id: InstanceId) -> [u64; 3] {
    let views = engine.instances();
    let threads = &views.iter().find(|view| view.id == id).unwrap().threads;
    [threads[0].delivered, threads[0].standard[NfCounter::Received as usize], threads[0].returned]
}

/// Packets for which the second NF had no room.
fn overflowed(engine: &Engine, case: Case) -> u64 {
    let drops = engine.chains().into_iter().flat_map(|chain| chain.drops);
    let full = drops.filter(|(why, _)| case.has_two_hops && *why == DropReason::DownstreamFull);
    full.map(|(_, count)| count).sum()
}

/// Changes the cores while the packets pass, and checks what arrives and all counts. Returns the number of changes that
/// were done before all packets had passed.
fn change_cores(frames: &[Vec<u8>], case: Case) -> usize {
    let flow_monitor = case.is_monitored.then(FlowMonitorConfig::default);
    let mut rig = Rig::new(&EngineConfig { flow_monitor, ..on(&[0]) });
    let folder = Scratch::new();
    let mut host = host(&folder, frames, case);
    host.engine = rig.engine.host().engine.clone();
    // The capture is read when everything is there.
    let source = host.ports.remove(0);
    let rules = std::mem::take(&mut host.rules);
    rig.engine.apply(&host).unwrap();
    let roles = ["fw", "nat"].into_iter().take(host.nfs.len());
    let ids: Vec<InstanceId> = roles.map(|role| rig.attach(role, "forward", false)).collect();
    let mut readers = if case.is_captured { capture(&mut rig.engine) } else { Vec::new() };
    host.ports.insert(0, source);
    host.rules = rules;
    rig.engine.apply(&host).unwrap();
    let mut records = rig.engine.take_flow_records();
    let mut changes = 0;
    let all = |engine: &Engine| engine.ports()[1].tx_packets + overflowed(engine, case) >= u64::from(PACKETS);
    while !all(&rig.engine) && changes < 200 {
        host.engine.cores = CHANGES[changes % CHANGES.len()].to_vec();
        rig.engine.apply(&host).unwrap();
        assert_eq!(rig.engine.workers().count(), host.engine.cores.len(), "{}", rig.describe());
        records.extend(rig.engine.take_flow_records());
        changes += 1;
    }
    assert!(rig.until(LIMIT, all), "{case:?}, {changes} changes; {}", rig.describe());
    assert!(rig.until(LIMIT, nothing_is_out), "{case:?}, {changes} changes; {}", rig.describe());
    let cores: Vec<u32> = rig.engine.workers().map(|worker| worker.core).collect();
    assert_eq!(cores, host.engine.cores);
    let (views, packets) = (rig.engine.ports(), u64::from(PACKETS));
    assert!(
        views.iter().all(|view| view.drops.is_empty()),
        "{case:?}, {changes} changes; {}",
        rig.describe()
    );
    let sent = packets - overflowed(&rig.engine, case);
    assert_eq!((views[0].rx_packets, views[1].tx_packets), (packets, sent));
    for (id, got) in ids.into_iter().zip([packets, sent]) {
        // The NF publishes its counts after a burst.
        assert!(rig.until(LIMIT, |engine| counted(engine, id) == [got; 3]), "{}", rig.describe());
    }
    if case.by_chain {
        assert_eq!(rig.engine.chains()[0].left, sent);
        assert_eq!(rig.engine.rule_count(RuleId(0)).packets, packets);
    }
    if case.is_captured {
        assert_eq!(captured(&mut readers), (0..PACKETS).collect::<Vec<_>>(), "{case:?}, {changes} changes");
    }
    // The end of the patch has received them, too.
    let expected = u64::from(case.is_monitored) * (1 + u64::from(case.by_patch)) * packets;
    if case.is_monitored {
        // A worker publishes them some times a second.
        let monitored = |engine: &Engine| engine.monitor_counts().packets == expected;
        assert!(rig.until(LIMIT, monitored), "{:?}", rig.engine.monitor_counts());
    }
    // Closes the ports, which hold buffers, and the captures.
    let (ports, chains, rules) = Default::default();
    rig.engine.apply(&Host { ports, chains, rules, ..host }).unwrap();
    assert!(rig.until(LIMIT, all_is_free), "{case:?}, {changes} changes; {}", rig.describe());
    drop(rig);
    assert_eq!(recorded(&mut records), expected);
    let arrived = read(&folder.file("out1.pcap"));
    assert_eq!(arrived.len() as u64, sent, "{case:?}");
    in_order(&arrived, case);
    changes
}

/// Each packet arrived at most once, in the order of its flow; without owners of flows in the order of all.
fn in_order(arrived: &[Vec<u8>], case: Case) {
    let flows = if case.is_monitored { FLOWS } else { 1 };
    let mut last = BTreeMap::new();
    for number in arrived.iter().map(|frame| number(frame)) {
        let before = last.insert(number % flows, number);
        assert!(before.is_none_or(|before| before < number), "{case:?}: {number} after {before:?}");
    }
}

/// Repeats it until there were some changes: a fast machine is done after one or two.
fn change_cores_often(case: Case) {
    let _alone = alone();
    if !has_two_cores() {
        return;
    }
    let frames = frames();
    let mut rounds = (0..20).scan(0, |changes, _| {
        *changes += change_cores(&frames, case);
        Some(*changes)
    });
    assert!(rounds.any(|changes| changes > 7), "{case:?}");
}

#[test]
fn workers_that_come_and_go_lose_nothing_and_keep_the_order() {
    change_cores_often(Case::default());
}

#[test]
fn an_nf_and_all_counts_of_it_follow_workers_that_come_and_go() {
    change_cores_often(Case { by_chain: true, ..Case::default() });
}

#[test]
fn packets_between_two_hops_follow_workers_that_come_and_go() {
    change_cores_often(Case { by_chain: true, has_two_hops: true, ..Case::default() });
}

#[test]
fn flows_keep_their_order_and_their_records_when_their_owners_change() {
    change_cores_often(Case { by_chain: true, is_monitored: true, ..Case::default() });
}

#[test]
fn flows_through_a_patch_keep_their_order_when_their_owners_change() {
    change_cores_often(Case { by_patch: true, is_monitored: true, ..Case::default() });
}

#[test]
fn a_capture_gets_the_packets_of_workers_that_come_and_go() {
    change_cores_often(Case { by_chain: true, is_captured: true, ..Case::default() });
}
