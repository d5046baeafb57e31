// SPDX-License-Identifier: Apache-2.0
//! The policy changes under full load: no packet is lost, and new rules act at once.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::{Rig, port};
use netvm_clock as clock;
use netvm_engine::{Compiler, DropReason, Engine, Policy};
use netvm_model::{EngineConfig, Forward, Host, PortKind, SourceConfig};
use netvm_policy::{Action, Actions, Match, PortId, Rule, RuleId, RuleParts};
use netvm_policy_import::ImportedRule;
use netvm_policy_import::classbench::{self, Flags};
use netvm_wire::{IpNet, PortRange};
use netvm_workload::rules as sets;

/// Rules of a set.
const RULES: u32 = 1000;
/// Rules that change alone.
const CHANGES: u32 = 1000;
/// The number of the first of these.
const FIRST: u32 = 1 << 14;
const FLOWS: u32 = 1024;
/// The time in which a new rule must act.
const MAX_RULE_DELAY: Duration = Duration::from_millis(10);

fn rule(id: u32, source: Ipv4Addr, destination_ports: PortRange, terminal: Action) -> Rule {
    let matches = Match {
        source: vec![IpNet::new(source.into(), 32).unwrap()],
        destination_ports: vec![destination_ports],
        ..Match::default()
    };
    Rule::from(RuleParts {
        id: RuleId(id),
        name: String::new(),
        matches,
        actions: Actions { terminal: Some(terminal), ..Actions::default() },
    })
}

/// Sends a flow of the source elsewhere.
fn diverts(id: u32, flow: u32) -> Rule {
    rule(id, Ipv4Addr::from_bits(0x0a00_0000 | flow), PortRange::ANY, Action::Port(PortId(2)))
}

/// Rules that match none of the packets.
fn others(first: u32, count: u32) -> impl Iterator<Item = Rule> {
    (first..first + count).map(|n| {
        let ports = PortRange::new((n % 500) as u16, (n % 500 + n % 7) as u16).unwrap();
        rule(n, Ipv4Addr::from_bits(0xac10_0000 | n), ports, Action::Drop)
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

/// Ends the traffic, checks that no packet was lost, and returns how many were received and diverted.
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

/// How long threads of this process waited for a CPU, except the rule compiler.
fn waited() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    let waited = tasks.filter_map(|task| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        if name.trim_end() == THREAD_NAME {
            return None;
        }
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
    let _alone = super::alone();
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
        rig.engine.apply_with(next, policy).unwrap();
        applying.push(started.elapsed());
        // They are in force.
        let seen = rig.engine.rule_counts()[&RuleId(0)].packets;
        let on = |engine: &Engine| engine.rule_counts()[&RuleId(0)].packets > seen;
        assert!(rig.until(Duration::from_secs(10), on), "{}", rig.describe());
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

/// A compilation beside the changes, as the daemon does it.
struct BackgroundCompilation(JoinHandle<Policy>);

/// The name of its thread.
const THREAD_NAME: &str = "beside";

impl BackgroundCompilation {
    fn start(compiler: Compiler, host: Host, before: Arc<Policy>) -> Self {
        let main = move || {
            let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), 10);
            compiler.compile(&host, &before).unwrap()
        };
        Self(std::thread::Builder::new().name(THREAD_NAME.to_owned()).spawn(main).unwrap())
    }
}

/// Adds [`CHANGES`] rules one by one to others, which are compiled anew again and again meanwhile.
fn add_one_by_one(mut rules: Vec<Rule>) {
    let count = rules.len();
    let mut rig = start(&host(rules.clone()));
    assert!(rig.until(Duration::from_secs(10), |engine| engine.ports()[1].tx_packets > 0));
    let (mut took, mut compiling, mut applying) = (Vec::new(), Vec::new(), Vec::new());
    let (mut anew, mut full, mut most) = (0, 0, 0);
    let mut beside: Option<BackgroundCompilation> = None;
    let delayed = waited();
    for n in 0..CHANGES {
        rules.insert(0, diverts(FIRST + n, n));
        let next = host(rules.clone());
        let (compiler, before) = (rig.engine.compiler(), rig.engine.policy());
        let started = Instant::now();
        // What has been compiled meanwhile takes the place of the old one with the changes since.
        let ended = beside.take_if(|beside| beside.0.is_finished());
        let compiled = ended.map(|beside| beside.0.join().unwrap());
        anew += u32::from(compiled.is_some());
        let carried = compiled.and_then(|compiled| compiler.carried_over(&next, &compiled, &before));
        let policy = carried.or_else(|| compiler.change(&next, &before)).unwrap_or_else(|| {
            full += 1;
            let compiled = beside.take().unwrap().0.join().unwrap();
            compiler.carried_over(&next, &compiled, &before).unwrap()
        });
        most = most.max(policy.changes());
        if policy.changes() > 100 && beside.is_none() {
            beside = Some(BackgroundCompilation::start(compiler, next.clone(), Arc::clone(&before)));
        }
        compiling.push(started.elapsed());
        rig.engine.apply_with(next, Arc::new(policy)).unwrap();
        applying.push(started.elapsed());
        while rig.engine.rule_count(RuleId(FIRST + n)).packets == 0 {
            rig.engine.service();
            assert!(started.elapsed() < Duration::from_secs(10), "rule {n}: {}", rig.describe());
            std::thread::sleep(Duration::from_micros(20));
        }
        took.push(started.elapsed());
        rig.engine.service();
    }
    let delayed = (waited() - delayed) / CHANGES;
    let (middle, longest) = (median(&mut took), *took.last().unwrap());
    println!(
        "{CHANGES} rules added one by one to {count}: each acts after {middle:.1?} (median; compiled after \
         {:.1?}, put into force after {:.1?}; 99 % within {:.1?}, longest {longest:.1?}); {anew} times everything was \
         compiled anew beside, {most} changes at most over what was compiled, {full} waited; longest turn {:.1?}",
        median(&mut compiling),
        median(&mut applying),
        took[took.len() * 99 / 100],
        longest_turn(&rig.engine)
    );
    let (received, diverted) = stop(&mut rig);
    println!("{received} packets, none lost, {diverted} diverted");
    assert!(diverted > 0);
    if delayed > MAX_RULE_DELAY / 10 {
        println!("SKIP: how soon rules act: threads waited {delayed:.1?} for a CPU each time");
        return;
    }
    assert!(middle < MAX_RULE_DELAY, "{middle:?}");
}

#[test]
fn single_rules_act_at_once() {
    let _alone = super::alone();
    add_one_by_one(others(FIRST + CHANGES, RULES).collect());
}

/// With 8,000 rules of an access list, which allow what they match.
#[test]
fn single_rules_act_at_once_among_thousands() {
    let _alone = super::alone();
    let text = sets::filter_set(&sets::ACL1, 8000, sets::SEED);
    let lets_pass = Actions { terminal: Some(Action::Allow), ..Actions::default() };
    let imported = classbench::parse(&text, lets_pass, Flags::Ignore).unwrap();
    let named = imported.rules.into_iter().zip(FIRST + CHANGES..);
    let rule = |(rule, id): (ImportedRule, u32)| {
        Rule::from(RuleParts {
            id: RuleId(id),
            name: String::new(),
            matches: rule.matches,
            actions: rule.actions,
        })
    };
    add_one_by_one(named.map(rule).collect());
}
