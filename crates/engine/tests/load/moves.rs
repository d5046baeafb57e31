// SPDX-License-Identifier: Apache-2.0
//! Queues that move from one worker to another while packets pass.

use std::time::Duration;

use crate::alone;
use crate::support::pcap::{Scratch, read};
use crate::support::{Rig, chain, group, nf};
use netvm_engine::{ChainId, Notice, PortId};
use netvm_model::{EngineConfig, Forward, Host, OnFailure, PortConfig, PortKind};
use netvm_wire::{FrameBuilder, MacAddr};

const PACKETS: u32 = 200_000;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Numbered packets of eight flows.
fn frames() -> Vec<Vec<u8>> {
    let frame = |n: u32| {
        let frame = FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let ends = ["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        let frame = frame.ip(ends[0], ends[1]).udp(1000 + (n % 8) as u16, 53);
        frame.payload(&n.to_be_bytes()).to_vec().unwrap()
    };
    (0..PACKETS).map(frame).collect()
}

/// From a capture that worker 0 reads into one that worker 1 writes, straight or through an NF.
fn host(folder: &Scratch, frames: &[Vec<u8>], by_chain: bool) -> Host {
    let from = PortConfig { worker: Some(0), ..folder.port(0, frames) };
    let to = PortConfig { worker: Some(1), ..folder.port(1, &[]) };
    let mut host = Host { ports: vec![from, to], ..Host::default() };
    host.ports[0].policy.forward = Forward::Port(PortId(1));
    if by_chain {
        host.groups = vec![group(0, 4096, 2048)];
        host.nfs = vec![nf(0, "fw", 0)];
        host.chains = vec![chain(0, &[0], OnFailure::Drop, 1)];
        host.ports[0].policy.forward = Forward::Chain(ChainId(0));
    }
    host
}

/// Moves queues while the packets pass, and checks what arrives. Returns how many moves there were, before all had
/// passed.
fn move_to_and_fro(frames: &[Vec<u8>], by_chain: bool) -> usize {
    let mut rig = Rig::new(&EngineConfig { cores: vec![0, 1], ..EngineConfig::default() });
    let folder = Scratch::new();
    let mut host = host(&folder, frames, by_chain);
    host.engine = rig.engine.host().engine.clone();
    // The capture is read when everything is there.
    let source = host.ports.remove(0);
    rig.engine.apply(&host).unwrap();
    if by_chain {
        rig.attach("fw", "forward", false);
    }
    host.ports.insert(0, source);
    rig.engine.apply(&host).unwrap();
    let mut moves = 0;
    while rig.engine.ports()[1].tx_packets < u64::from(PACKETS) && moves < 200 {
        // In turns the port that receives, and the one that sends.
        let port = &mut host.ports[moves % 2];
        port.worker = port.worker.map(|worker| 1 - worker);
        rig.engine.apply(&host).unwrap();
        moves += 1;
    }
    let all = |engine: &netvm_engine::Engine| engine.ports()[1].tx_packets >= u64::from(PACKETS);
    assert!(rig.until(TIMEOUT, all), "{moves} moves; {}", rig.describe());
    let views = rig.engine.ports();
    assert!(views.iter().all(|view| view.drops.is_empty()), "{}", rig.describe());
    let moved = rig.notices.iter().filter(|notice| matches!(notice, Notice::QueueMoved { .. })).count();
    rig.engine.apply(&Host { engine: host.engine.clone(), ..Host::default() }).unwrap();
    let sent = read(&folder.file("out1.pcap"));
    assert_eq!(sent.len(), frames.len(), "by chain: {by_chain}");
    let first = sent.iter().zip(frames).position(|(sent, frame)| sent != frame);
    assert_eq!(first, None, "by chain: {by_chain}, {moved} moves: the first packet out of order");
    moved
}

#[test]
fn queues_that_move_to_and_fro_lose_nothing_and_keep_the_order() {
    let _alone = alone();
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 2) {
        return println!("SKIP: two workers need two cores");
    }
    let frames = frames();
    for by_chain in [false, true] {
        // A fast machine is done after a move or two.
        let mut rounds = (0..20).scan(0, |moved, _| {
            *moved += move_to_and_fro(&frames, by_chain);
            Some(*moved)
        });
        assert!(rounds.any(|moved| moved > 3), "by chain: {by_chain}");
    }
}

#[test]
fn the_queues_of_an_overloaded_worker_move_to_one_that_has_time() {
    let _alone = alone();
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 2) {
        return println!("SKIP: two workers need two cores");
    }
    let mut rig = Rig::new(&EngineConfig { cores: vec![0, 1], ..EngineConfig::default() });
    // Two sources that take what they get, both on worker 0 as long as a third holds worker 1.
    let source = |id: u16, rate: Option<u64>| {
        let config = netvm_model::SourceConfig { rate, ..netvm_model::SourceConfig::default() };
        let mut port = crate::support::port(id, &format!("in{id}"), PortKind::Source(config));
        port.policy.forward = Forward::Port(PortId(9));
        port
    };
    let sink = crate::support::port(9, "out", PortKind::Sink);
    let mut host = Host { ports: vec![source(0, None), source(1, None), sink], ..Host::default() };
    host.engine = rig.engine.host().engine.clone();
    for port in &mut host.ports[..2] {
        port.worker = Some(0);
    }
    rig.engine.apply(&host).unwrap();
    rig.until(Duration::from_secs(5), |_| false);
    let places = |engine: &netvm_engine::Engine| {
        let views = engine.ports();
        let of = |id: u16| views.iter().find(|view| view.id == PortId(id)).unwrap().workers[0].worker.0;
        [of(0), of(1)]
    };
    assert_eq!(places(&rig.engine), [0, 0], "the configuration names the worker");
    for port in &mut host.ports[..2] {
        port.worker = None;
    }
    rig.engine.apply(&host).unwrap();
    assert_eq!(places(&rig.engine), [0, 0], "nothing moves because the word is gone");
    assert!(rig.until(TIMEOUT, |engine| places(engine) != [0, 0]), "{}", rig.describe());
    let mut now = places(&rig.engine);
    now.sort_unstable();
    assert_eq!(now, [0, 1]);
    // Then there is nothing to gain.
    rig.until(Duration::from_secs(8), |_| false);
    let mut later = places(&rig.engine);
    later.sort_unstable();
    assert_eq!(later, [0, 1]);
}
