//! The policy changes under full load: no packet is lost, and new rules act at once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod support;

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use netvm_config::model::{EngineConfig, Forward, Host, PortKind, SourceConfig};
use netvm_engine::{DropReason, Engine};
use netvm_policy::{Actions, Match, PortId, Rule, RuleId, Verdict};
use netvm_region::clock;
use netvm_wire::{IpNet, PortRange};
use support::{Rig, port};

/// Rules of a set.
const RULES: u32 = 1000;
/// Rules that change alone.
const CHANGES: u32 = 1000;
const FLOWS: u32 = 1024;
/// How soon a new rule is to act.
const SOON: Duration = Duration::from_millis(10);

/// One test at a time: each keeps a core busy.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn rule(id: u32, source: Ipv4Addr, destination_ports: PortRange, verdict: Verdict) -> Rule {
    let matches = Match {
        source: vec![IpNet::new(source.into(), 32).unwrap()],
        destination_ports: vec![destination_ports],
        ..Match::default()
    };
    Rule {
        id: RuleId(id),
        name: String::new(),
        matches,
        actions: Actions { verdict: Some(verdict), ..Actions::default() },
    }
}

/// Sends a flow of the source elsewhere.
fn diverts(id: u32, flow: u32) -> Rule {
    rule(id, Ipv4Addr::from_bits(0x0a00_0000 | flow), PortRange::ANY, Verdict::Port(PortId(2)))
}

/// Rules that match nothing of what flows.
fn others(first: u32, count: u32) -> impl Iterator<Item = Rule> {
    (first..first + count).map(|n| {
        let ports = PortRange::new((n % 500) as u16, (n % 500 + n % 7) as u16).unwrap();
        rule(n, Ipv4Addr::from_bits(0xac10_0000 | n), ports, Verdict::Drop)
    })
}

/// A source flat out, and two sinks, of which the second gets what a rule sends there.
fn host(rules: Vec<Rule>) -> Host {
    let source = SourceConfig { size: 60, flows: FLOWS, ..SourceConfig::default() };
    let mut ports = vec![
        port(0, "in", PortKind::Source(source)),
        port(1, "out", PortKind::Sink),
        port(2, "diverted", PortKind::Sink),
    ];
    ports[0].policy.forward = Forward::Port(PortId(1));
    Host { ports, rules, ..Host::default() }
}

/// Applies it, the sinks first.
fn start(host: &Host) -> Rig {
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&Host { ports: host.ports[1..].to_vec(), ..host.clone() }).unwrap();
    rig.engine.apply(host).unwrap();
    rig
}

/// Ends the traffic, and returns how many packets came, how many were diverted, and that none was lost.
fn stop(rig: &mut Rig) -> (u64, u64) {
    let host = rig.engine.host().clone();
    rig.engine.apply(&Host { ports: host.ports[1..].to_vec(), ..host }).unwrap();
    let counters = rig.engine.workers().next().unwrap().counters;
    let sent = [1, 2].map(|port| counters.ports[port].tx_packets.get());
    let received = counters.ports[0].rx_packets.get();
    for reason in DropReason::ALL {
        let drops: u64 = counters.ports.iter().map(|port| port.drops.get(reason)).sum();
        assert_eq!(drops, 0, "{}", reason.name());
    }
    assert_eq!(received, sent[0] + sent[1]);
    (received, sent[1])
}

/// Longest turn of a worker so far, time without the CPU included.
fn longest_turn(engine: &Engine) -> Duration {
    let turn = |worker: netvm_engine::WorkerView| worker.counters.longest_turn.get();
    let cycles = engine.workers().map(turn).max().unwrap();
    Duration::from_nanos(cycles * 1000 / clock::cycles_in_micros(1).max(1))
}

/// How long threads of this process were ready to run and had no CPU.
fn waited() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    let waited = tasks.filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').nth(1)?.parse::<u64>().ok()
    });
    Duration::from_nanos(waited.sum())
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
fn a_thousand_rules_are_replaced_and_nothing_is_lost() {
    let _alone = alone();
    // One rule is in every set: not one packet may escape it.
    let set = |first| [diverts(0, 0)].into_iter().chain(others(first, RULES)).collect::<Vec<_>>();
    let mut rig = start(&host(set(1)));
    let began = longest_turn(&rig.engine);
    let (mut compiling, mut applying) = (Vec::new(), Vec::new());
    for round in 1..=20 {
        let next = host(set(1 + RULES * (round % 2)));
        let (compiler, before) = (rig.engine.compiler(), rig.engine.policy());
        let started = Instant::now();
        let policy = Arc::new(compiler.compile(&next, &before).unwrap());
        compiling.push(started.elapsed());
        let started = Instant::now();
        rig.engine.apply_with(&next, policy).unwrap();
        applying.push(started.elapsed());
        // They are in force.
        let seen = rig.engine.rule_counts()[&RuleId(0)].packets;
        let on = |engine: &Engine| engine.rule_counts()[&RuleId(0)].packets > seen;
        assert!(rig.until(Duration::from_secs(10), on), "{}", rig.story());
    }
    println!(
        "{RULES} rules replaced 20 times: compiled in {:.1?}, put into force in {:.1?}, longest turn {:.1?} (before {began:.1?})",
        median(&mut compiling),
        median(&mut applying),
        longest_turn(&rig.engine)
    );
    let (received, diverted) = stop(&mut rig);
    println!("{received} packets, none lost");
    assert_eq!(
        diverted,
        received.div_ceil(FLOWS.into()),
        "packets escaped a rule that was there all the time"
    );
}

#[test]
fn single_rules_act_at_once() {
    let _alone = alone();
    let mut rules: Vec<Rule> = others(CHANGES, RULES).collect();
    let mut rig = start(&host(rules.clone()));
    assert!(rig.until(Duration::from_secs(10), |engine| engine.ports()[1].tx_packets > 0));
    let (mut took, mut compiling, mut applying, mut anew) = (Vec::new(), Vec::new(), Vec::new(), 0);
    let delayed = waited();
    for n in 0..CHANGES {
        rules.insert(0, diverts(n, n));
        let next = host(rules.clone());
        let started = Instant::now();
        let (compiler, before) = (rig.engine.compiler(), rig.engine.policy());
        let policy = match compiler.change(&next, &before) {
            Some(policy) => policy,
            None => {
                anew += 1;
                compiler.compile(&next, &before).unwrap()
            }
        };
        compiling.push(started.elapsed());
        rig.engine.apply_with(&next, Arc::new(policy)).unwrap();
        applying.push(started.elapsed());
        while rig.engine.rule_counts()[&RuleId(n)].packets == 0 {
            rig.engine.service();
            assert!(started.elapsed() < Duration::from_secs(10), "rule {n}: {}", rig.story());
            std::thread::yield_now();
        }
        took.push(started.elapsed());
        rig.engine.service();
    }
    let delayed = (waited() - delayed) / CHANGES;
    let (middle, longest) = (median(&mut took), *took.last().unwrap());
    println!(
        "{CHANGES} rules added one by one: each acts after {middle:.1?} (median; compiled after \
         {:.1?}, put into force after {:.1?}; 99 % within {:.1?}, longest {longest:.1?}); \
         {anew} times everything was compiled anew; longest turn {:.1?}",
        median(&mut compiling),
        median(&mut applying),
        took[took.len() * 99 / 100],
        longest_turn(&rig.engine)
    );
    let (received, diverted) = stop(&mut rig);
    println!("{received} packets, none lost, {diverted} diverted");
    assert!(diverted > 0);
    assert!(anew < CHANGES / 10, "single changes are to be overlays: {anew} of {CHANGES} were not");
    if delayed > SOON / 10 {
        println!("SKIP: how soon rules act: threads waited {delayed:.1?} for a CPU each time");
        return;
    }
    assert!(middle < SOON, "{middle:?}");
}
