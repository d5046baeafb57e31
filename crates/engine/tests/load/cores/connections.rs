// SPDX-License-Identifier: Apache-2.0
//! Connections over several workers: both directions have one owner, which keeps them when cores change.

use std::sync::mpsc::channel;
use std::time::Duration;

use super::has_two_cores;
use crate::alone;
use crate::support::Rig;
use crate::support::pcap::Scratch;
use netvm_engine::{ConnectionFilter, ConnectionView, DropReason, PortId};
use netvm_model::{AclDefault, Action, Actions, EngineConfig, Forward, Host, Match, Rule, RuleId, RuleParts};
use netvm_wire::{ConnState, FrameBuilder, MacAddr};

pub(super) const LIMIT: Duration = Duration::from_secs(30);
pub(super) const CONNECTIONS: u16 = 400;
/// Packets that belong to no connection.
const UNSOLICITED: u16 = 50;

pub(super) fn frame(from: [u8; 4], to: [u8; 4], ports: [u16; 2]) -> Vec<u8> {
    let frame = FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
    frame.ip(from.into(), to.into()).udp(ports[0], ports[1]).to_vec().unwrap()
}

pub(super) fn client(n: u16) -> [u8; 4] {
    [10, 0, (n >> 8) as u8, n as u8]
}

pub(super) const SERVER: [u8; 4] = [192, 0, 2, 1];

fn requests() -> Vec<Vec<u8>> {
    (0..CONNECTIONS).map(|n| frame(client(n), SERVER, [1000 + n, 53])).collect()
}

/// Answers to all requests, in another order, and packets that nobody has asked for.
fn answers() -> Vec<Vec<u8>> {
    let asked = (0..CONNECTIONS).rev().map(|n| frame(SERVER, client(n), [53, 1000 + n]));
    let unasked = (0..UNSOLICITED).map(|n| frame(SERVER, client(n), [53, 9]));
    asked.chain(unasked).collect()
}

/// Port 0 asks, and port 1 may only answer.
fn host(scratch: &Scratch, asks: bool, answers_too: bool) -> Host {
    let frames = |wanted: bool, frames: fn() -> Vec<Vec<u8>>| if wanted { frames() } else { Vec::new() };
    let mut ports =
        vec![scratch.port(0, &frames(asks, requests)), scratch.port(1, &frames(answers_too, answers))];
    for (n, port) in ports.iter_mut().enumerate() {
        port.policy.track = true;
        port.policy.forward = Forward::Port(PortId(1 - n as u16));
    }
    ports[1].policy.acl_in = AclDefault::Deny;
    let matches = Match { from: vec![PortId(1)], state: vec![ConnState::Established], ..Match::default() };
    let actions = Actions { terminal: Some(Action::Allow), ..Actions::default() };
    let rule = RuleParts { id: RuleId(0), name: "answers".to_owned(), matches, actions };
    Host { ports, rules: vec![Rule::from(rule)], ..Host::default() }
}

pub(super) fn on(cores: &[u32], host: Host) -> Host {
    Host { engine: EngineConfig { cores: cores.to_vec(), ..EngineConfig::default() }, ..host }
}

pub(super) fn connections(rig: &mut Rig) -> Vec<ConnectionView> {
    let (sender, found) = channel();
    rig.engine.connections().read(ConnectionFilter::default(), 10_000, move |all| drop(sender.send(all)));
    let mut all = None;
    assert!(rig.until(LIMIT, |_| {
        all = found.try_recv().ok();
        all.is_some()
    }));
    all.unwrap()
}

/// The packets that have left a port, and those that it has dropped as denied.
fn counts_of(engine: &netvm_engine::Engine) -> (u64, u64) {
    let ports = engine.ports();
    let denied = ports[1].drops.iter().find(|(reason, _)| *reason == DropReason::Denied);
    (ports[0].tx_packets, denied.map_or(0, |(_, count)| *count))
}

/// Begins connections on these cores; answers come after each of the changes.
fn answers_pass_after(cores: &[&[u32]]) {
    let scratch = Scratch::new();
    let mut rig = Rig::new(&EngineConfig { cores: cores[0].to_vec(), ..EngineConfig::default() });
    rig.engine.apply(&on(cores[0], host(&scratch, true, false))).unwrap();
    assert!(rig.until(LIMIT, |engine| engine.connection_counts().begun == u64::from(CONNECTIONS)));
    let mut before = counts_of(&rig.engine);
    assert_eq!(before, (0, 0));
    for cores in cores {
        rig.engine.apply(&on(cores, host(&scratch, false, false))).unwrap();
        assert!(rig.until(LIMIT, |engine| !engine.is_settling()));
        rig.engine.apply(&on(cores, host(&scratch, false, true))).unwrap();
        let all = u64::from(CONNECTIONS + UNSOLICITED);
        let has_all = |engine: &netvm_engine::Engine| {
            let port = &engine.ports()[1];
            port.rx_packets + port.rx_dropped >= all
        };
        assert!(rig.until(LIMIT, has_all), "{cores:?}: {}", rig.describe());
        let due = (before.0 + u64::from(CONNECTIONS), before.1 + u64::from(UNSOLICITED));
        let of = |engine: &netvm_engine::Engine| counts_of(engine) == due;
        assert!(rig.until(LIMIT, of), "{cores:?}: {:?}, {due:?} expected", counts_of(&rig.engine));
        before = due;
        let known = connections(&mut rig);
        assert_eq!(known.len(), usize::from(CONNECTIONS), "{cores:?}");
        assert!(known.iter().all(|it| it.state == "replied" && it.port == PortId(0)));
        let workers = known.iter().map(|it| it.worker).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(workers.len(), cores.len(), "{cores:?}: each worker owns some");
    }
}

#[test]
fn answers_find_their_connections_on_any_worker() {
    let _alone = alone();
    answers_pass_after(&[&[0]]);
    if has_two_cores() {
        answers_pass_after(&[&[0, 1]]);
    }
}

#[test]
fn connections_outlive_changes_of_cores() {
    let _alone = alone();
    if has_two_cores() {
        answers_pass_after(&[&[0, 1], &[1], &[0, 1]]);
    }
}

#[test]
fn flushed_connections_are_gone_and_those_that_go_on_begin_again() {
    let _alone = alone();
    let scratch = Scratch::new();
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host(&scratch, true, false)).unwrap();
    assert!(rig.until(LIMIT, |engine| engine.connection_counts().begun == u64::from(CONNECTIONS)));
    let (sender, flushed) = channel();
    let some =
        ConnectionFilter { address: Some("10.0.0.0/24".parse().unwrap()), ..ConnectionFilter::default() };
    rig.engine.connections().flush(some, move |count| sender.send(count).unwrap_or_default());
    let mut count = None;
    assert!(rig.until(LIMIT, |_| {
        count = flushed.try_recv().ok();
        count.is_some()
    }));
    assert_eq!(count, Some(256));
    assert_eq!(connections(&mut rig).len(), usize::from(CONNECTIONS) - 256);
    rig.engine.apply(&host(&scratch, false, false)).unwrap();
    rig.engine.apply(&host(&scratch, true, false)).unwrap();
    assert!(rig.until(LIMIT, |engine| engine.connection_counts().begun == u64::from(CONNECTIONS) + 256));
    // Without a port that tracks, the tables are gone.
    let mut untracked = host(&scratch, false, false);
    untracked.rules.clear();
    untracked.ports.iter_mut().for_each(|port| port.policy.track = false);
    rig.engine.apply(&untracked).unwrap();
    assert!(connections(&mut rig).is_empty());
}
