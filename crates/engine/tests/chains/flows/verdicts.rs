// SPDX-License-Identifier: Apache-2.0
//! Per-flow verdicts of real NF processes: drop the rest of a flow, or bypass this NF; how long a verdict holds, and
//! which ones the engine refuses.

use std::time::{Duration, Instant};

use crate::support::{Rig, line, port};
use netvm_engine::{DropReason, Engine, FlowVerdict, InstanceId, RoleId, ThreadView};
use netvm_model::{EngineConfig, Host, PortKind, SourceConfig};
use netvm_region::NfCounter;

const TIMEOUT: Duration = Duration::from_secs(30);
/// For what must not happen.
const QUIET_TIME: Duration = Duration::from_millis(400);
/// The source's flows, by the last byte of their address.
const FLOWS: u32 = 64;

/// A chain of roles. `says` lists the roles that may return per-flow verdicts, with the longest idle time in seconds.
fn host(roles: &[&str], rate: u64, says: &[(usize, u16)]) -> Host {
    let mut host = line(roles, None, false);
    let source = SourceConfig { flows: FLOWS, rate: Some(rate), ..SourceConfig::default() };
    host.ports[0] = port(0, "in", PortKind::Source(source));
    for (role, seconds) in says {
        host.nfs[*role].flow_verdicts = *seconds;
    }
    host
}

fn thread(engine: &Engine, id: InstanceId) -> ThreadView {
    engine.instances().iter().find(|view| view.id == id).unwrap().threads[0].clone()
}

fn received(engine: &Engine, id: InstanceId) -> u64 {
    thread(engine, id).standard[NfCounter::Received as usize]
}

fn dropped(engine: &Engine, reason: DropReason) -> u64 {
    engine.chains()[0].drops.iter().find(|(why, _)| *why == reason).map_or(0, |(_, count)| *count)
}

fn flows(rig: &mut Rig) -> Vec<(u8, Vec<FlowVerdict>)> {
    let (tell, told) = std::sync::mpsc::channel();
    rig.engine.read_flows(1000, move |flows, _| tell.send(flows).unwrap());
    let mut flows = Vec::new();
    assert!(rig.until(TIMEOUT, |_| told.try_recv().is_ok_and(|read| {
        flows = read;
        true
    })));
    let number = |flow: &netvm_engine::FlowView| match flow.key.source.to_ip() {
        std::net::IpAddr::V4(address) => address.octets()[3],
        std::net::IpAddr::V6(_) => panic!("the source sends IPv4"),
    };
    flows.iter().map(|flow| (number(flow), flow.verdicts.clone())).collect()
}

/// Waits until a counter has not changed for a while in which `moves` has.
fn stands_still(rig: &mut Rig, still: impl Fn(&Engine) -> u64, moves: impl Fn(&Engine) -> u64) -> bool {
    let (mut last, mut since, mut moved) = (u64::MAX, Instant::now(), 0);
    rig.until(TIMEOUT, |engine| {
        if still(engine) != last {
            (last, since, moved) = (still(engine), Instant::now(), moves(engine));
        }
        since.elapsed() > QUIET_TIME && moves(engine) > moved
    })
}

#[test]
fn an_inner_hop_disappears_from_the_path_of_flows_that_skip_it_until_it_dies() {
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host(&["a", "b", "c"], 20_000, &[(1, 60)])).unwrap();
    let (a, b, c) =
        (rig.attach("a", "pass", false), rig.attach("b", "skip=3600", false), rig.attach("c", "pass", false));
    let still = |engine: &Engine| received(engine, b);
    assert!(stands_still(&mut rig, still, |engine| engine.chains()[0].left), "{}", rig.describe());
    let decided = thread(&rig.engine, b);
    assert!(decided.counts.flows_decided >= FLOWS.into() && decided.counts.flows_refused == 0, "{decided:?}");
    // The way from a to c is a ring of their own: the engine hands nothing to c.
    let before = (received(&rig.engine, a), received(&rig.engine, c), thread(&rig.engine, c).delivered);
    assert!(rig.until(TIMEOUT, |engine| received(engine, a) > before.0 + 1000
        && received(engine, c) > before.1 + 1000));
    assert_eq!(thread(&rig.engine, c).delivered, before.2, "{}", rig.describe());
    let flows = flows(&mut rig);
    assert_eq!(flows.len(), FLOWS as usize);
    for (flow, verdicts) in flows {
        let [verdict] = verdicts[..] else { panic!("flow {flow}: {verdicts:?}") };
        assert_eq!((verdict.role, verdict.drops), (RoleId(1), false));
        assert!(verdict.left > 50.0 && verdict.left <= 60.0, "bounded by the configuration: {verdict:?}");
    }
    let chain = rig.engine.chains()[0].clone();
    assert!(chain.left <= chain.entered && chain.left + 2000 > chain.entered, "{}", rig.describe());
    // What it said goes with it.
    rig.kill(b);
    let next = rig.attach("b", "pass", false);
    let seen = |engine: &Engine| received(engine, next) > 1000;
    assert!(rig.until(TIMEOUT, seen), "{}", rig.describe());
}

#[test]
fn the_first_and_the_last_hop_can_be_skipped_together() {
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host(&["a", "b", "c"], 20_000, &[(0, 60), (2, 60)])).unwrap();
    let (a, _, c) = (
        rig.attach("a", "skip=60", false),
        rig.attach("b", "pass", false),
        rig.attach("c", "skip=60", false),
    );
    let still = |engine: &Engine| received(engine, a) + received(engine, c);
    assert!(stands_still(&mut rig, still, |engine| engine.chains()[0].left), "{}", rig.describe());
    for (flow, verdicts) in flows(&mut rig) {
        assert_eq!(verdicts.len(), 2, "flow {flow}: {verdicts:?}");
    }
}

#[test]
fn the_rest_of_a_flow_is_dropped_at_the_entry_until_the_nf_takes_it_back() {
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host(&["a"], 20_000, &[(0, 3600)])).unwrap();
    let a = rig.attach("a", "withdraw=3000", false);
    let still = |engine: &Engine| received(engine, a);
    assert!(
        stands_still(&mut rig, still, |engine| dropped(engine, DropReason::FlowVerdict)),
        "{}",
        rig.describe()
    );
    assert_eq!(rig.engine.chains()[0].left, 0);
    assert!(rig.until(TIMEOUT, |engine| engine.chains()[0].left > 1000), "{}", rig.describe());
    assert!(flows(&mut rig).iter().all(|(_, verdicts)| verdicts.is_empty()));
}

#[test]
fn a_word_ends_when_its_flow_is_idle_for_longer() {
    let mut rig = Rig::new(&EngineConfig::default());
    // Each flow has a packet every 2.6 seconds, and every 0.13 seconds.
    for (rate, holds) in [(25, false), (500, true)] {
        rig.engine.apply(&Host::default()).unwrap();
        rig.engine.apply(&host(&["a"], rate, &[(0, 1)])).unwrap();
        let a = rig.attach("a", "drop=3600", false);
        assert!(rig.until(TIMEOUT, |engine| received(engine, a) >= u64::from(FLOWS) * 2
            || dropped(engine, DropReason::FlowVerdict) >= u64::from(FLOWS) * 2));
        assert_eq!(dropped(&rig.engine, DropReason::FlowVerdict) > 0, holds, "{}", rig.describe());
        rig.kill(a);
    }
}

#[test]
fn an_nf_decides_about_the_flow_that_came_in_whatever_it_makes_of_the_packet() {
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host(&["a", "b"], 20_000, &[(0, 60)])).unwrap();
    let (a, b) = (rig.attach("a", "forge=7", false), rig.attach("b", "pass", false));
    assert!(
        rig.until(TIMEOUT, |engine| dropped(engine, DropReason::FlowVerdict) > 100),
        "{}",
        rig.describe()
    );
    let told: Vec<u8> =
        flows(&mut rig).iter().filter(|(_, verdicts)| !verdicts.is_empty()).map(|(flow, _)| *flow).collect();
    assert_eq!(told, [7], "{}", rig.describe());
    assert!(received(&rig.engine, b) > 0 && thread(&rig.engine, a).counts.flows_decided > 0);
}

#[test]
fn only_an_nf_that_may_and_that_is_at_that_hop_decides() {
    let mut rig = Rig::new(&EngineConfig::default());
    // One that the configuration gives no say is heard for its packets alone.
    rig.engine.apply(&host(&["a", "b"], 20_000, &[(1, 60)])).unwrap();
    let (a, _) = (rig.attach("a", "drop-one=3", false), rig.attach("b", "pass", false));
    let refused = |engine: &Engine| thread(engine, a).counts.flows_refused > 100;
    assert!(rig.until(TIMEOUT, refused), "{}", rig.describe());
    assert_eq!(dropped(&rig.engine, DropReason::FlowVerdict), 0);
    assert!(dropped(&rig.engine, DropReason::Verdict) > 100);
    assert!(flows(&mut rig).iter().all(|(_, verdicts)| verdicts.is_empty()));
}

#[test]
fn a_new_policy_leaves_what_nfs_said() {
    let mut rig = Rig::new(&EngineConfig::default());
    let host = host(&["a"], 20_000, &[(0, 60)]);
    rig.engine.apply(&host).unwrap();
    let a = rig.attach("a", "drop-one=9", false);
    assert!(rig.until(TIMEOUT, |engine| dropped(engine, DropReason::FlowVerdict) > 10), "{}", rig.describe());
    let seen = thread(&rig.engine, a).counts.flows_decided;
    let mut other = host.clone();
    let mut more = crate::support::rule(1, 0);
    more.id = netvm_model::RuleId(99);
    other.rules.insert(0, more);
    rig.engine.apply(&other).unwrap();
    let before = dropped(&rig.engine, DropReason::FlowVerdict);
    assert!(
        rig.until(TIMEOUT, |engine| dropped(engine, DropReason::FlowVerdict) > before + 100),
        "{}",
        rig.describe()
    );
    assert_eq!(thread(&rig.engine, a).counts.flows_decided, seen, "it was not asked again");
}
