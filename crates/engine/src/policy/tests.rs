// SPDX-License-Identifier: Apache-2.0
//! Policies that change while others are compiled, against a linear scan of the rules that are in force.

use std::sync::Arc;

use netvm_model::{Forward, Host, PortConfig, PortKind};
use netvm_policy::arbitrary::{Generator, LAST_PORT, rules};
use netvm_policy::{Actions, Cube, Match, QueueId, Rule, RuleId, RuleParts, decide};
use netvm_wire::{FlowKey, FrameBuilder, MacAddr};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{Compiler, Policy};
use crate::ids::PortId;
use crate::manager::traces::render;
use crate::memory::Memory;
use crate::snapshot::Snapshot;
use crate::worker::trace::Step;
use crate::worker::{Hypothetical, Tracer};

fn compiler() -> Compiler {
    Compiler::new(crate::memory::eal_for_tests())
}

fn host(rules: Vec<Rule>) -> Host {
    let port = |n: u16| PortConfig::new(PortId(n), format!("p{n}"), PortKind::Sink);
    Host { ports: (0..=LAST_PORT.0).map(port).collect(), rules, ..Host::default() }
}

/// The rules that a policy says match a packet, and the queue that they choose.
fn matching_rules(
    policy: &Policy,
    from: PortId,
    to: Option<PortId>,
    key: &FlowKey,
) -> (Vec<RuleId>, Option<QueueId>) {
    let lookup = match to {
        None => policy.ingress(from).map(|ingress| &ingress.lookup),
        Some(to) => policy.egress(to).and_then(|egress| egress.lookup(from)),
    };
    let Some(lookup) = lookup else { return (Vec::new(), None) };
    let mut number = [0];
    lookup.decide(&[policy.used.mask(*key)], &mut number);
    let decision = policy.decision(number[0]);
    (decision.rules.to_vec(), decision.queue)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn at_every_moment_the_rules_accepted_so_far_decide(
        (first, more, edits, seed) in (rules(0..12), rules(20), vec((0u8..8, any::<u64>()), 40), any::<u64>()),
    ) {
        let compiler = compiler();
        let mut generator = Generator::new(seed);
        let rules = first.iter().chain(&more);
        let all: Vec<Cube> = rules.filter_map(|rule| rule.matches.cubes().ok()).flatten().collect();
        let keys: Vec<FlowKey> = (0..30).map(|_| generator.key(&all)).collect();
        let mut fresh = more;
        let mut next_id = 0;
        let mut numbered = |mut rule: Rule| {
            rule.id = RuleId(next_id);
            next_id += 1;
            rule
        };
        let mut host = host(first.into_iter().map(&mut numbered).collect());
        let mut running = Arc::new(compiler.compile(&host, &Policy::default()).unwrap());
        // What is being compiled, and what the policy in force was when that began.
        let mut compiling: Option<(Host, Arc<Policy>)> = None;
        for (kind, at) in edits {
            let place = |length: usize| (at % length.max(1) as u64) as usize;
            let rules = &mut host.rules;
            let mut compiled = None;
            match kind {
                0..=2 => {
                    if let Some(rule) = fresh.pop() {
                        rules.insert(place(rules.len() + 1), numbered(rule));
                    }
                }
                3 | 4 if !rules.is_empty() => fresh.push(rules.remove(place(rules.len()))),
                5 if !rules.is_empty() => {
                    let place = place(rules.len());
                    let is_active = rules[place].is_active();
                    rules[place].set_active(!is_active);
                }
                _ => match compiling.take() {
                    None => compiling = Some((host.clone(), Arc::clone(&running))),
                    Some((host, before)) => compiled = Some(compiler.compile(&host, &before).unwrap()),
                },
            }
            let carried = compiled.and_then(|compiled| compiler.carried_over(&host, &compiled, &running));
            let changed = carried.or_else(|| compiler.change(&host, &running));
            running = Arc::new(match changed {
                Some(policy) => policy,
                None => compiler.compile(&host, &running).unwrap(),
            });
            for (key, from) in keys.iter().zip((0..=LAST_PORT.0).cycle()).map(|(key, from)| (key, PortId(from))) {
                for to in [None, Some(PortId(1))] {
                    let expected = decide(&host.rules, from, to, key);
                    let expected = (expected.rules, expected.actions.queue);
                    prop_assert_eq!(matching_rules(&running, from, to, key), expected);
                }
            }
        }
    }
}

#[test]
fn a_trace_has_the_queue_on_the_way_in_and_on_the_way_out() {
    let rule = |id, to: &[PortId], queue| {
        let matches = Match { to: to.to_vec(), ..Match::default() };
        let actions = Actions { queue: Some(QueueId(queue)), ..Actions::default() };
        Rule::from(RuleParts { id: RuleId(id), name: String::new(), matches, actions })
    };
    let mut host = host(vec![rule(0, &[], 3), rule(1, &[PortId(1)], 4)]);
    host.ports[0].policy.forward = Forward::Port(PortId(1));
    let policy = compiler().compile(&host, &Policy::default()).unwrap();
    let frame = FrameBuilder::new(MacAddr([2; 6]), MacAddr([4; 6]));
    let frame =
        frame.ip("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()).udp(1, 2).to_vec().unwrap();
    let snapshot = Snapshot { policy: Arc::new(policy), ..Snapshot::default() };
    let packet = Hypothetical::of(PortId(0), &frame);
    let mut tracer = Tracer::new(Arc::new(Memory::for_tests(512, 0, 16))).unwrap();
    let steps = render::steps(&tracer.trace(&snapshot, packet, 0).unwrap(), &snapshot.policy);
    let queues = steps.iter().filter(|step| matches!(step, Step::Queued(_) | Step::Out(_)));
    let expected = [Step::Queued(QueueId(3)), Step::Queued(QueueId(4)), Step::Out(PortId(1))];
    assert!(queues.eq(&expected), "{steps:?}");
}
