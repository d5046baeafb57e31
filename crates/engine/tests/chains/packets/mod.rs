// SPDX-License-Identifier: Apache-2.0
//! NFs that make, copy, hold and send packets: what leaves, in which order, and what becomes of their buffers.

use std::time::Duration;

use crate::support::nf::packets::MADE;
use crate::support::pcap::{Scratch, finish};
use crate::support::{Rig, all_is_free, line, nothing_is_out, port, rule, source};
use netvm_engine::{DropReason, Engine, Notice, ThreadView, Violation};
use netvm_model::{EngineConfig, Host, Output, PortKind};

const TIMEOUT: Duration = Duration::from_secs(20);
const COUNT: u64 = 20_000;
const SIZE: u64 = 60;

/// Packets through an NF that may hold `hold` of them.
fn through(kind: &str, hold: u16, count: u64) -> Rig {
    let mut host = line(&["a"], Some(count), true);
    host.nfs[0].hold = hold;
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host).unwrap();
    rig.attach("a", kind, false);
    let all = |engine: &Engine| thread(engine).delivered >= count && thread(engine).returned >= count;
    assert!(rig.until(TIMEOUT, all), "{}", rig.describe());
    rig
}

fn thread(engine: &Engine) -> ThreadView {
    engine.instances()[0].threads[0].clone()
}

fn out_of(engine: &Engine) -> (u64, u64) {
    let port = &engine.ports()[1];
    (port.tx_packets, port.tx_bytes)
}

/// The NF is asked to leave, and has left; nothing of it stays.
fn leave(rig: &mut Rig) {
    let id = rig.engine.instances()[0].id;
    rig.engine.dismiss(id);
    rig.await_end(id);
    assert!(rig.until(TIMEOUT, |engine| nothing_is_out(engine) && all_is_free(engine)), "{}", rig.describe());
}

fn kill(rig: &mut Rig) {
    let id = rig.engine.instances()[0].id;
    rig.kill(id);
    let is_clean = |engine: &Engine| !engine.is_settling() && nothing_is_out(engine) && all_is_free(engine);
    assert!(rig.until(TIMEOUT, is_clean), "{}", rig.describe());
}

#[test]
fn what_an_nf_makes_leaves_with_the_packets_that_it_got() {
    let mut rig = through("make", 0, COUNT);
    // A stock that is empty makes it leave some out.
    let made = |engine: &Engine| (out_of(engine).1 - COUNT * SIZE) / MADE as u64;
    assert!(rig.until(TIMEOUT, |engine| out_of(engine).0 == COUNT + made(engine)), "{}", rig.describe());
    assert!(made(&rig.engine) > COUNT / 100, "{}", rig.describe());
    let view = thread(&rig.engine);
    assert!(view.violations.is_empty() && view.drops.is_empty(), "{view:?}");
    assert!((1..=256 * 2).contains(&rig.buffers_out()), "its stock: {}", rig.describe());
    leave(&mut rig);
}

#[test]
fn no_buffer_is_lost_when_an_nf_with_a_stock_and_held_packets_is_killed() {
    let mut rig = through("copy", 0, COUNT);
    assert!(rig.buffers_out() > 0, "{}", rig.describe());
    kill(&mut rig);
    for (kind, held) in [("keep", 700), ("delay=300", 300)] {
        let mut rig = through(kind, 700, COUNT);
        assert!(rig.until(TIMEOUT, |engine| thread(engine).buffers == held), "{}", rig.describe());
        assert!(rig.until(TIMEOUT, |engine| out_of(engine).0 == COUNT - u64::from(held)));
        kill(&mut rig);
        let reclaimed = |notice: &Notice| matches!(notice, Notice::Reclaimed { buffers, .. } if *buffers == u64::from(held));
        assert!(rig.notices.iter().any(reclaimed), "{:?}", rig.notices);
    }
}

#[test]
fn an_nf_that_holds_packets_does_not_hang_and_sends_them_when_it_is_asked_to_leave() {
    let mut rig = through("delay=100", 100, 1000);
    // Longer than its `hang_timeout`; audits of the group leave it alone, too.
    rig.attach("a", "forward", true);
    let standby = rig.engine.instances()[1].id;
    rig.kill(standby);
    rig.until(Duration::from_millis(1500), |_| false);
    assert!(!rig.notices.iter().any(|notice| matches!(notice, Notice::Hung { .. })), "{:?}", rig.notices);
    assert_eq!((out_of(&rig.engine).0, rig.buffers_out()), (900, 100), "{}", rig.describe());
    leave(&mut rig);
    assert_eq!(out_of(&rig.engine).0, 1000, "{}", rig.describe());
}

#[test]
fn packets_keep_their_order_through_an_nf_that_holds_each_for_a_while() {
    let scratch = Scratch::new();
    let frames: Vec<Vec<u8>> =
        (0..3000u32).map(|n| [&[0; 14], &n.to_be_bytes()[..], &[0; 42]].concat()).collect();
    let mut host = line(&["a"], None, false);
    host.nfs[0].hold = 40;
    host.ports[1] = scratch.port(1, &[]);
    let playing = Host { ports: vec![scratch.port(0, &frames), host.ports[1].clone()], ..host.clone() };
    host.ports[0].kind = PortKind::Sink;
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host).unwrap();
    let id = rig.attach("a", "delay=37", false);
    rig.engine.apply(&playing).unwrap();
    let all = |engine: &Engine| {
        engine.ports().iter().any(|port| port.done == Some(true)) && thread(engine).buffers == 37
    };
    assert!(rig.until(TIMEOUT, all), "{}", rig.describe());
    rig.engine.dismiss(id);
    rig.await_end(id);
    finish(&mut rig);
    rig.engine.apply(&Host::default()).unwrap();
    let sent = scratch.sent(1);
    assert!(
        sent == frames,
        "{} of {} in order",
        sent.iter().zip(&frames).filter(|(a, b)| a == b).count(),
        frames.len()
    );
}

#[test]
fn an_nf_holds_nothing_without_the_key_and_needs_an_ingress_port_to_pass_on_what_it_made() {
    let rig = through("keep", 0, 1000);
    assert_eq!((out_of(&rig.engine).0, rig.buffers_out()), (1000, 0), "{}", rig.describe());
    let mut rig = through("portless", 0, 1000);
    assert_eq!(out_of(&rig.engine).0, 1000);
    let refused = |engine: &Engine| {
        thread(engine).drops.iter().any(|(why, count)| *why == DropReason::NoIngress && *count > 0)
    };
    assert!(rig.until(TIMEOUT, refused), "{}", rig.describe());
    leave(&mut rig);
}

#[test]
fn a_made_packet_does_not_leave_by_a_port_that_its_group_may_not_use() {
    let mut host = line(&["a"], Some(1000), true);
    host.chains[0].output = Output::Ingress;
    host.groups[0].may_send_to = Some(vec![]);
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host).unwrap();
    rig.attach("a", "make", false);
    let refused = |engine: &Engine| {
        thread(engine).drops.iter().any(|(why, count)| *why == DropReason::NoIngress && *count > 0)
    };
    assert!(rig.until(TIMEOUT, refused), "{}", rig.describe());
    leave(&mut rig);
}

#[test]
fn what_an_nf_claims_to_keep_is_refused_beyond_its_quota_and_counted() {
    let mut host = line(&["a"], Some(2000), false);
    (host.nfs[0].allocate, host.nfs[0].hold) = (10, 5);
    host.ports[0] = port(0, "in", source(60, Some(2000), true));
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host).unwrap();
    rig.attach("a", "grab", false);
    let done = |engine: &Engine| {
        thread(engine).delivered >= 2000 && {
            let drops: u64 = thread(engine).drops.iter().map(|(_, count)| count).sum();
            out_of(engine).0 + drops >= 2000
        }
    };
    assert!(rig.until(TIMEOUT, done), "{}", rig.describe());
    let view = thread(&rig.engine);
    let not_out = view.violations.iter().find(|(kind, _)| *kind == Violation::BufferNotOut);
    // A second hold, the second return, and both releases.
    assert!(not_out.is_some_and(|(_, count)| *count >= 3 * 2000), "{view:?}");
    assert!(rig.buffers_out() <= 15 * rig.engine.workers().count() as u32, "{}", rig.describe());
    kill(&mut rig);
}

#[test]
fn an_nf_of_the_layout_before_attaches_and_gets_no_empty_buffers() {
    let mut rig = through("old-layout", 9, COUNT);
    assert!(rig.until(TIMEOUT, |engine| out_of(engine).0 == COUNT), "{}", rig.describe());
    kill(&mut rig);
}

#[test]
fn a_worker_that_ends_gets_back_what_an_nf_keeps_of_it() {
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 2) {
        println!("SKIP: two workers need two cores");
        return;
    }
    let on = |cores: &[u32]| EngineConfig { cores: cores.to_vec(), ..EngineConfig::default() };
    let mut host = Host { engine: on(&[0, 1]), ..line(&["a"], None, false) };
    host.ports.push(port(2, "in2", source(60, None, false)));
    host.rules.push(rule(2, 0));
    let mut rig = Rig::new(&host.engine);
    rig.engine.apply(&host).unwrap();
    rig.attach("a", "make", false);
    let both = |engine: &Engine| {
        engine.workers().filter(|worker| worker.counters.busy_packets.get() > 1000).count() == 2
    };
    assert!(rig.until(TIMEOUT, both), "{}", rig.describe());
    assert!(rig.until(TIMEOUT, |engine| out_of(engine).0 > 10_000), "{}", rig.describe());
    rig.engine.apply(&Host { engine: on(&[0]), ..host }).unwrap();
    assert!(rig.until(TIMEOUT, |engine| engine.workers().count() == 1), "{}", rig.describe());
    let sent = out_of(&rig.engine).0;
    assert!(rig.until(TIMEOUT, |engine| out_of(engine).0 > sent + 10_000), "{}", rig.describe());
    leave(&mut rig);
}
