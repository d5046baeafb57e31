//! Limits hold for all workers together.

use std::time::{Duration, Instant};

use netvm_config::model::{EngineConfig, Forward, Host, PortKind, SourceConfig};
use netvm_engine::{Engine, PortId};
use netvm_policy::{Action, Actions, Match, Rule, RuleId, RuleParts};
use netvm_wire::{FrameBuilder, MacAddr};

use crate::support::pcap::{Scratch, finish};
use crate::support::{Rig, port};

fn two_workers() -> EngineConfig {
    EngineConfig { cores: vec![0, 1], ..EngineConfig::default() }
}

#[test]
fn answers_to_rejected_packets_have_one_limit_for_all_workers() {
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
    assert!(rig.until(Duration::from_secs(20), |engine| received(engine) >= 2001), "{}", rig.story());
    assert!(start.elapsed() > Duration::from_millis(95), "at the rate, not twice as fast");
    // It is over: nothing more is due.
    rig.until(Duration::from_millis(100), |_| false);
    assert_eq!(received(&rig.engine), 2001, "{}", rig.story());
}
