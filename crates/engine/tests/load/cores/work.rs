// SPDX-License-Identifier: Apache-2.0
//! The work that workers get and give away when they come and go.

use std::time::Duration;

use super::{LIMIT, counted, has_two_cores, on};
use crate::alone;
use crate::support::{Rig, chain, group, line, nf, port, rule};
use netvm_engine::{ApplyError, CoresError, DropReason, Engine, InstanceState, Notice, PortId};
use netvm_model::{EngineConfig, Forward, Host, OnFailure, PortKind, SourceConfig};

/// Some sources, of which none can wait, and a sink.
fn sources(count: u16, rate: u64) -> Host {
    let source = |id: u16| {
        let config = SourceConfig { flows: 64, rate: Some(rate), ..SourceConfig::default() };
        let mut port = port(id, &format!("in{id}"), PortKind::Source(config));
        port.policy.forward = Forward::Port(PortId(9));
        port
    };
    let mut ports: Vec<_> = (0..count).map(source).collect();
    ports.push(port(9, "out", PortKind::Sink));
    Host { ports, ..Host::default() }
}

/// By worker: its queues.
fn queues(engine: &Engine) -> Vec<usize> {
    engine.workers().map(|worker| worker.queues).collect()
}

#[test]
fn a_new_worker_gets_its_part_of_the_queues_and_totals_never_decrease() {
    let _alone = alone();
    if !has_two_cores() {
        return;
    }
    let mut rig = Rig::new(&on(&[0]));
    let mut host = sources(6, 20_000);
    let sent = |engine: &Engine| engine.ports().last().unwrap().tx_packets;
    let mut before = 0;
    for (cores, expected) in
        [(&[0][..], vec![6]), (&[0, 1], vec![3, 3]), (&[0], vec![6]), (&[1, 0], vec![3, 3])]
    {
        host.engine.cores = cores.to_vec();
        rig.engine.apply(&host).unwrap();
        assert_eq!(queues(&rig.engine), expected, "{cores:?}");
        assert!(sent(&rig.engine) >= before, "{cores:?}");
        before = sent(&rig.engine) + 10_000;
        assert!(rig.until(LIMIT, |engine| sent(engine) >= before), "{}", rig.describe());
    }
    rig.until(Duration::ZERO, |_| true);
    let is_of_workers = |notice: &&Notice| {
        matches!(
            notice,
            Notice::WorkerAdded { .. } | Notice::WorkerRemoved { .. } | Notice::WorkerMoved { .. }
        )
    };
    let notices: Vec<String> =
        rig.notices.iter().filter(is_of_workers).map(|notice| format!("{notice:?}")).collect();
    assert_eq!(
        notices,
        [
            "WorkerAdded { worker: WorkerId(1), core: 1 }",
            "WorkerRemoved { worker: WorkerId(1), core: 1 }",
            "WorkerAdded { worker: WorkerId(1), core: 0 }",
            "WorkerMoved { worker: WorkerId(0), from: 0, to: 1 }",
        ]
    );
    // A source misses packets if its worker gets no CPU time.
    let is_late = |(why, _): &(DropReason, u64)| *why == DropReason::RxMissed;
    assert!(rig.engine.ports().iter().all(|view| view.drops.iter().all(is_late)), "{}", rig.describe());
}

#[test]
fn a_flow_that_an_nf_has_dropped_stays_dropped_when_its_owner_changes() {
    let _alone = alone();
    if !has_two_cores() {
        return;
    }
    const NF_FLOWS: u32 = 64;
    let mut rig = Rig::new(&on(&[0]));
    let mut host = line(&["nf"], None, false);
    let source = SourceConfig { flows: NF_FLOWS, rate: Some(20_000), ..SourceConfig::default() };
    host.ports[0] = port(0, "in", PortKind::Source(source));
    host.nfs[0].flow_verdicts = 600;
    rig.engine.apply(&host).unwrap();
    let id = rig.attach("nf", "drop=600", false);
    let received = |engine: &Engine| counted(engine, id)[1];
    let dropped = |engine: &Engine| -> u64 { engine.chains()[0].drops.iter().map(|(_, count)| count).sum() };
    let pass = |rig: &mut Rig| {
        let enough = dropped(&rig.engine) + 20 * u64::from(NF_FLOWS);
        assert!(rig.until(LIMIT, |engine| dropped(engine) >= enough), "{}", rig.describe());
    };
    assert!(rig.until(LIMIT, |engine| received(engine) >= u64::from(NF_FLOWS)), "{}", rig.describe());
    // Until the NF has had what was under way before its verdicts.
    pass(&mut rig);
    pass(&mut rig);
    let before = received(&rig.engine);
    for (cores, workers) in [(&[0, 1][..], 2), (&[1], 1), (&[0, 1], 2), (&[0], 1)] {
        host.engine.cores = cores.to_vec();
        rig.engine.apply(&host).unwrap();
        assert_eq!(rig.engine.workers().count(), workers);
        pass(&mut rig);
        assert_eq!(received(&rig.engine), before, "{cores:?}: the NF got packets of flows that it drops");
    }
}

#[test]
fn a_worker_waits_for_packets_of_an_nf_that_hangs_and_ends_when_they_are_back() {
    let _alone = alone();
    if !has_two_cores() {
        return;
    }
    let mut rig = Rig::new(&on(&[0, 1]));
    let mut host = sources(2, 50_000);
    host.groups = vec![group(0, 4096, 2048)];
    host.nfs = vec![nf(0, "a", 0)];
    host.chains = vec![chain(0, &[0], OnFailure::Bypass, 9)];
    host.rules = vec![rule(0, 0), rule(1, 0)];
    host.engine.cores = vec![0, 1];
    rig.engine.apply(&host).unwrap();
    assert_eq!(queues(&rig.engine), [1, 1]);
    let id = rig.attach("a", "hang=2000", false);
    let hangs = |engine: &Engine| {
        engine.instances().iter().any(|view| view.id == id && view.state == InstanceState::Hung)
    };
    assert!(rig.until(LIMIT, hangs), "{}", rig.describe());
    host.engine.cores = vec![0];
    rig.engine.apply(&host).unwrap();
    let leaving: Vec<bool> = rig.engine.workers().map(|worker| worker.is_leaving).collect();
    assert_eq!(leaving, [false, true], "the NF has packets of both");
    // Attempts to move its queue take two seconds.
    assert!(rig.until(LIMIT, |engine| queues(engine) == [2, 0]), "{}", rig.describe());
    // The others pass.
    let sent = |engine: &Engine| engine.ports().last().unwrap().tx_packets;
    let enough = sent(&rig.engine) + 10_000;
    assert!(rig.until(LIMIT, |engine| sent(engine) >= enough), "{}", rig.describe());
    assert!(rig.buffers_out() > 0);
    rig.kill(id);
    assert!(rig.until(LIMIT, |engine| engine.workers().count() == 1), "{}", rig.describe());
    assert!(rig.until(LIMIT, |engine| !engine.is_settling()), "{}", rig.describe());
    assert_eq!(rig.buffers_out(), 0, "{}", rig.describe());
    // And it can come back.
    host.engine.cores = vec![0, 1];
    rig.engine.apply(&host).unwrap();
    assert_eq!(queues(&rig.engine), [1, 1]);
}

#[test]
fn cores_that_no_worker_can_follow_are_refused_and_nothing_changes() {
    let _alone = alone();
    if !has_two_cores() {
        return;
    }
    let nodes = vec![vec![0], vec![1]];
    let mut rig = Rig::new(&EngineConfig { nodes, ..on(&[0]) });
    let mut host = sources(2, 20_000);
    host.engine = rig.engine.host().engine.clone();
    rig.engine.apply(&host).unwrap();
    let mut refused = |rig: &mut Rig, cores: &[u32]| {
        host.engine.cores = cores.to_vec();
        let error = rig.engine.apply(&host).unwrap_err();
        assert_eq!(rig.engine.host().engine.cores, [0]);
        assert_eq!((rig.engine.workers().count(), queues(&rig.engine)), (1, vec![2]));
        match error {
            ApplyError::Cores(error) => error,
            error => panic!("{cores:?}: {error}"),
        }
    };
    assert!(matches!(refused(&mut rig, &[0, 1]), CoresError::NewNode { core: 1, node: 1, .. }));
    assert!(matches!(refused(&mut rig, &[1]), CoresError::OtherNode { worker: 0, core: 1, .. }));
    assert!(matches!(refused(&mut rig, &[0, 4000]), CoresError::Start(_)));
    assert!(matches!(refused(&mut rig, &[4000]), CoresError::Start(_)));
    let sent = |engine: &Engine| engine.ports().last().unwrap().tx_packets;
    let enough = sent(&rig.engine) + 10_000;
    assert!(rig.until(LIMIT, |engine| sent(engine) >= enough), "{}", rig.describe());

    // A configuration that fails for another reason takes the worker back that it had added.
    let mut rig = Rig::new(&on(&[0]));
    let mut host = sources(2, 20_000);
    rig.engine.apply(&host).unwrap();
    let wrong = PortKind::Pcap { input: Some("/nonexistent/in.pcap".into()), output: None, paced: false };
    host.ports.push(port(3, "wrong", wrong));
    host.engine.cores = vec![0, 1];
    assert!(matches!(rig.engine.apply(&host), Err(ApplyError::Port(_))));
    assert_eq!((rig.engine.workers().count(), queues(&rig.engine)), (1, vec![2]));
    host.ports.pop();
    rig.engine.apply(&host).unwrap();
    assert_eq!(queues(&rig.engine), [1, 1]);
}
