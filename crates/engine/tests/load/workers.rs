// SPDX-License-Identifier: Apache-2.0
//! Several workers: which of them serve which ports, and packets that pass from one to another.

use std::time::Duration;

use crate::alone;
use crate::support::pcap::Scratch;
use crate::support::{Rig, chain, group, nf, port};
use netvm_engine::{ChainId, DropCounts, Engine, PortId, Step, TraceSpec, WorkerId};
use netvm_model::{EngineConfig, Forward, Host, OnFailure, PortConfig, PortKind, SourceConfig};

const TIMEOUT: Duration = Duration::from_secs(20);

/// An engine with two workers; `None` on a machine with one core.
fn two_workers(nodes: Vec<Vec<u32>>) -> Option<Rig> {
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 2) {
        println!("SKIP: two workers need two cores");
        return None;
    }
    Some(Rig::new(&EngineConfig { cores: vec![0, 1], nodes, ..EngineConfig::default() }))
}

/// Applies the ports with the engine's own settings.
fn apply(rig: &mut Rig, host: &Host) -> Result<(), netvm_engine::ApplyError> {
    let engine = rig.engine.host().engine.clone();
    rig.engine.apply(&Host { engine, ..host.clone() })
}

/// A port whose packets all go to another.
fn source(id: u16, to: u16, source: SourceConfig) -> PortConfig {
    let mut port = port(id, &format!("in{id}"), PortKind::Source(source));
    port.policy.forward = Forward::Port(PortId(to));
    port
}

fn workers_of(engine: &Engine, port: u16) -> Vec<u8> {
    let views = engine.ports();
    let view = views.iter().find(|view| view.id == PortId(port)).unwrap();
    view.workers.iter().map(|worker| worker.worker.0).collect()
}

/// Packets that a worker received by ports.
fn received(engine: &Engine, worker: usize, ports: &[u16]) -> u64 {
    let view = engine.workers().nth(worker).unwrap();
    ports.iter().map(|port| view.counters.ports[usize::from(*port)].rx_packets.get()).sum()
}

/// Four sources and the sink for all of them.
fn four_sources() -> Host {
    let slow = SourceConfig { rate: Some(10_000), flows: 64, ..SourceConfig::default() };
    let mut ports: Vec<PortConfig> = (0..4).map(|id| source(id, 4, slow.clone())).collect();
    ports.push(port(4, "out", PortKind::Sink));
    Host { ports, ..Host::default() }
}

#[test]
fn four_ports_of_one_queue_give_both_workers_packets() {
    let _alone = alone();
    let Some(mut rig) = two_workers(Vec::new()) else { return };
    apply(&mut rig, &four_sources()).unwrap();
    let placed = |engine: &Engine| [0, 1, 2, 3].map(|port| workers_of(engine, port));
    assert_eq!(placed(&rig.engine), [[0], [1], [0], [1]]);
    let all_flow = |engine: &Engine| {
        [[0, 2], [1, 3]]
            .iter()
            .enumerate()
            .all(|(worker, ports)| ports.iter().all(|port| received(engine, worker, &[*port]) > 100))
    };
    assert!(rig.until(TIMEOUT, all_flow), "{}", rig.describe());
    assert_eq!(received(&rig.engine, 0, &[1, 3]) + received(&rig.engine, 1, &[0, 2]), 0);

    // Ports that change do not gather on one worker.
    for size in [100, 200, 300] {
        let mut host = four_sources();
        for port in &mut host.ports[..4] {
            let PortKind::Source(source) = &mut port.kind else { panic!() };
            source.size = size;
        }
        apply(&mut rig, &host).unwrap();
        let mut queues: Vec<usize> = rig.engine.workers().map(|worker| worker.queues).collect();
        queues.sort_unstable();
        assert_eq!(queues, [2, 2]);
    }
}

#[test]
fn a_port_has_the_worker_that_the_configuration_names() {
    let _alone = alone();
    let Some(mut rig) = two_workers(Vec::new()) else { return };
    let mut host = four_sources();
    host.ports[0].worker = Some(1);
    host.ports[2].queues = 2;
    host.ports[2].worker = Some(1);
    host.ports[4].worker = Some(0);
    apply(&mut rig, &host).unwrap();
    let placed = |engine: &Engine| [0, 1, 2, 3, 4].map(|port| workers_of(engine, port));
    assert_eq!(placed(&rig.engine), [[1], [0], [1], [0], [0]]);
    assert!(rig.until(TIMEOUT, |engine| received(engine, 1, &[2]) > 100), "{}", rig.describe());
    // It moves when the configuration says so.
    host.ports[0].worker = Some(0);
    apply(&mut rig, &host).unwrap();
    assert_eq!(workers_of(&rig.engine, 0), [0]);
    let before = received(&rig.engine, 0, &[0]);
    assert!(rig.until(TIMEOUT, |engine| received(engine, 0, &[0]) > before + 100), "{}", rig.describe());
}

#[test]
fn workers_of_all_nodes_receive_into_memory_of_their_own() {
    let _alone = alone();
    let Some(mut rig) = two_workers(vec![vec![0], vec![1]]) else { return };
    let mut host = four_sources();
    host.ports[0].queues = 2;
    apply(&mut rig, &host).unwrap();
    assert_eq!(workers_of(&rig.engine, 0), [0, 1]);
    let both = |engine: &Engine| (0..2).all(|worker| received(engine, worker, &[0]) > 100);
    assert!(rig.until(TIMEOUT, both), "{}", rig.describe());
    let memories = &rig.engine.groups()[0].memories;
    assert_eq!(memories.iter().map(|memory| memory.node).collect::<Vec<_>>(), [0, 1]);
    for worker in rig.engine.workers() {
        assert_eq!(worker.counters.copies.get(), 0, "no packet left the memory of its node");
    }

    host.ports[1].node = Some(1);
    host.ports[3].node = Some(7);
    let error = apply(&mut rig, &host).unwrap_err().to_string();
    assert!(
        error.contains("`node = 7`, but no worker runs on that NUMA node (workers run on 0, 1)"),
        "{error}"
    );
    host.ports[3].node = Some(1);
    apply(&mut rig, &host).unwrap();
    assert_eq!([1, 3].map(|port| workers_of(&rig.engine, port)), [[1], [1]]);
}

/// A source of worker 0 and a port of worker 1 that gets its packets.
fn pair(source_config: SourceConfig, to: PortKind) -> Host {
    let from = PortConfig { worker: Some(0), ..source(0, 1, source_config) };
    Host { ports: vec![from, PortConfig { worker: Some(1), ..port(1, "out", to) }], ..Host::default() }
}

/// A port that writes a capture.
fn capture(folder: &Scratch) -> PortKind {
    PortKind::Pcap { input: None, output: Some(folder.file("out.pcap")), paced: false }
}

fn drops(engine: &Engine, port: usize) -> DropCounts {
    engine.ports()[port].drops.clone()
}

#[test]
fn a_source_that_can_wait_loses_nothing_to_a_port_of_another_worker() {
    const COUNT: u64 = 200_000;
    let _alone = alone();
    for by_chain in [false, true] {
        let Some(mut rig) = two_workers(Vec::new()) else { return };
        let folder = Scratch::new();
        let waiting = SourceConfig { lossless: true, count: Some(COUNT), ..SourceConfig::default() };
        let mut host = pair(waiting, capture(&folder));
        if by_chain {
            host.groups = vec![group(0, 4096, 2048)];
            host.nfs = vec![nf(0, "fw", 0)];
            host.chains = vec![chain(0, &[0], OnFailure::Drop, 1)];
            host.ports[0].policy.forward = Forward::Chain(ChainId(0));
        }
        // The source starts when everything is there.
        let source = host.ports.remove(0);
        apply(&mut rig, &host).unwrap();
        if by_chain {
            rig.attach("fw", "forward", false);
        }
        host.ports.insert(0, source);
        apply(&mut rig, &host).unwrap();
        assert!(rig.until(TIMEOUT, |engine| engine.ports()[1].tx_packets >= COUNT), "{}", rig.describe());
        assert_eq!(rig.engine.ports()[1].tx_packets, COUNT);
        assert_eq!(drops(&rig.engine, 1), []);
    }
}

#[test]
fn packets_are_followed_from_one_worker_to_the_other() {
    let _alone = alone();
    let Some(mut rig) = two_workers(Vec::new()) else { return };
    let slow = SourceConfig { rate: Some(10_000), ..SourceConfig::default() };
    apply(&mut rig, &pair(slow, PortKind::Sink)).unwrap();
    let trace = rig.start_trace(&TraceSpec { packets: 20, ..TraceSpec::default() }).unwrap();
    for packet in rig.traced(trace) {
        assert_eq!(packet.worker, WorkerId(0));
        assert!(packet.steps.is_sorted_by_key(|timed| timed.after), "{packet:#?}");
        let steps: Vec<_> = packet.steps.iter().map(|timed| (timed.worker, &timed.step)).collect();
        let end = [(WorkerId(0), &Step::HandedOver(WorkerId(1))), (WorkerId(1), &Step::Out(PortId(1)))];
        assert!(steps.ends_with(&end), "{packet:#?}");
        assert!(packet.steps.iter().any(|timed| timed.after > Duration::ZERO), "{packet:#?}");
    }
}

#[test]
fn bursts_of_2048_pass_to_a_sleeping_worker_and_wake_it() {
    const COUNT: u64 = 20_480;
    let _alone = alone();
    let Some(mut rig) = two_workers(Vec::new()) else { return };
    let bursts =
        SourceConfig { rate: Some(20_000), burst: 2048, count: Some(COUNT), ..SourceConfig::default() };
    apply(&mut rig, &pair(bursts, PortKind::Sink)).unwrap();
    // A source that gets no CPU in time makes fewer.
    let all = |engine: &Engine| {
        let ports = engine.ports();
        let made = ports[0].rx_packets;
        made + ports[0].rx_dropped >= COUNT && ports[1].tx_packets >= made
    };
    assert!(rig.until(TIMEOUT, all), "{}", rig.describe());
    assert_eq!(drops(&rig.engine, 1), []);
    let woken = rig.engine.workers().next().unwrap().counters.woken_workers.get();
    assert!(woken > 0, "each burst comes after a pause in which worker 1 sleeps");
    // A burst takes many turns. Worker 1 sleeps between two of them only if it waits for longer than it spins.
    assert!(woken <= COUNT / 64, "{woken} wake-ups");
}

#[test]
fn idle_workers_sleep_for_long_also_if_there_are_two() {
    let _alone = alone();
    let Some(mut rig) = two_workers(Vec::new()) else { return };
    apply(&mut rig, &Host { ports: vec![port(0, "out", PortKind::Sink)], ..Host::default() }).unwrap();
    let sleeps =
        |engine: &Engine| -> u64 { engine.workers().map(|worker| worker.counters.sleeps.get()).sum() };
    rig.until(Duration::from_millis(50), |_| false);
    let before = sleeps(&rig.engine);
    rig.until(Duration::from_millis(500), |_| false);
    let count = sleeps(&rig.engine) - before;
    // 20 ms each: 50 of both workers.
    assert!((10..200).contains(&count), "{count} sleeps in half a second");
}
