// SPDX-License-Identifier: Apache-2.0
//! NFs that do not return packets as they got them: in another order, changed, twice, or by another NF.

use std::time::Duration;

use crate::support::pcap::{Scratch, finish};
use crate::support::{Rig, all_is_free, chain, line, nf, nothing_is_out, port, rule, source};
use netvm_engine::{DropReason, Engine, Violation};
use netvm_model::{EngineConfig, Host, OnFailure, PortKind};

const TIMEOUT: Duration = Duration::from_secs(20);
const COUNT: u64 = 50_000;
const SIZE: u16 = 60;

fn through(kind: &str) -> Rig {
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&line(&["a"], Some(COUNT), true)).unwrap();
    rig.attach("a", kind, false);
    let done = |engine: &Engine| engine.instances()[0].threads[0].returned >= COUNT;
    assert!(rig.until(TIMEOUT, done), "{}", rig.describe());
    assert!(rig.until(TIMEOUT, is_whole), "{}", rig.describe());
    rig
}

fn is_whole(engine: &Engine) -> bool {
    nothing_is_out(engine) && all_is_free(engine)
}

#[test]
fn every_packet_leaves_whatever_their_order() {
    for kind in ["reversed", "late"] {
        let rig = through(kind);
        assert_eq!(rig.sent(1), COUNT, "{kind}: {}", rig.describe());
        assert!(rig.engine.instances()[0].threads[0].violations.is_empty(), "{kind}: {}", rig.describe());
    }
}

#[test]
fn packets_leave_as_the_nf_left_them() {
    let rig = through("trimmed");
    let views = rig.engine.ports();
    let out = &views[1];
    assert_eq!((out.tx_packets, out.tx_bytes), (COUNT, COUNT * u64::from(SIZE - 4)), "{}", rig.describe());
}

/// As captures and guests may have them.
#[test]
fn frames_without_a_whole_header_leave_as_they_came_whatever_their_order() {
    for kind in ["forward", "reversed", "late"] {
        let scratch = Scratch::new();
        let mut frames: Vec<Vec<u8>> = (0..400).map(|n| vec![n as u8; 1 + n % 30]).collect();
        let mut host = line(&["a"], None, false);
        host.ports[1] = scratch.port(1, &[]);
        let playing = Host { ports: vec![scratch.port(0, &frames), host.ports[1].clone()], ..host.clone() };
        host.ports[0].kind = PortKind::Sink;
        let mut rig = Rig::new(&EngineConfig::default());
        rig.engine.apply(&host).unwrap();
        rig.attach("a", kind, false);
        rig.engine.apply(&playing).unwrap();
        finish(&mut rig);
        rig.engine.apply(&Host::default()).unwrap();
        let mut sent = scratch.sent(1);
        frames.sort();
        sent.sort();
        assert!(sent == frames, "{kind}: {} of {} left", sent.len(), frames.len());
    }
}

#[test]
fn what_would_reach_out_of_its_buffer_is_dropped_and_counted() {
    let rig = through("stretched");
    let view = &rig.engine.instances()[0].threads[0];
    let [(DropReason::BadSpan, dropped)] = view.drops[..] else { panic!("{}", rig.describe()) };
    assert!(dropped > COUNT / 10 && rig.sent(1) + dropped == COUNT, "{}", rig.describe());
}

#[test]
fn what_is_returned_twice_leaves_once() {
    let mut rig = through("twice");
    let all = |engine: &Engine| engine.instances()[0].threads[0].returned >= 2 * COUNT;
    assert!(rig.until(TIMEOUT, all), "{}", rig.describe());
    assert_eq!(rig.sent(1), COUNT, "{}", rig.describe());
    let violations = &rig.engine.instances()[0].threads[0].violations;
    assert_eq!(violations[..], [(Violation::BufferNotOut, COUNT)], "{}", rig.describe());
}

#[test]
fn drops_and_packets_that_go_on_take_turns() {
    let rig = through("dropping");
    let dropped = rig.engine.instances()[0].threads[0].drops.iter().map(|(_, count)| count).sum::<u64>();
    assert!(dropped > COUNT / 10 && rig.sent(1) + dropped == COUNT, "{}", rig.describe());
}

/// The first NF of a chain drops packets, so the last one returns fewer than the first received; and one NF returns
/// packets that two received.
#[test]
fn what_was_handed_to_others_comes_back_by_the_last() {
    let mut host: Host = line(&["a", "b", "last"], Some(COUNT), true);
    host.chains[0] = chain(0, &[0, 2], OnFailure::Drop, 1);
    host.ports.push(port(2, "in2", source(SIZE, Some(COUNT), true)));
    host.chains.push(chain(1, &[1, 2], OnFailure::Drop, 1));
    host.rules.push(rule(2, 1));
    assert_eq!(host.nfs[2], nf(2, "last", 0));
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host).unwrap();
    rig.attach("a", "third", false);
    rig.attach("b", "forward", false);
    rig.attach("last", "forward", false);
    let done = |engine: &Engine| {
        let chains = engine.chains();
        let counted = |n: usize| chains[n].left + chains[n].drops.iter().map(|(_, count)| count).sum::<u64>();
        counted(0) == COUNT && counted(1) == COUNT && is_whole(engine)
    };
    assert!(rig.until(TIMEOUT, done), "{}", rig.describe());
    assert_eq!(
        rig.engine.chains()[0].drops[..],
        [(DropReason::Verdict, COUNT.div_ceil(3))],
        "{}",
        rig.describe()
    );
    assert!(
        rig.engine.instances().iter().all(|view| view.threads[0].violations.is_empty()),
        "{}",
        rig.describe()
    );
}
