//! Policies that change while others are compiled, against a linear scan of the rules that are in force.

use std::sync::Arc;

use netvm_config::model::{Host, PortConfig, PortKind};
use netvm_policy::arbitrary::{Generator, LAST_PORT, rules};
use netvm_policy::{Cube, Rule, RuleId, decide};
use netvm_wire::FlowKey;
use proptest::collection::vec;
use proptest::prelude::*;

use super::{Compiler, Policy};
use crate::ids::PortId;

fn compiler() -> Compiler {
    Compiler::new(crate::memory::eal_for_tests())
}

fn host(rules: Vec<Rule>) -> Host {
    let port = |n: u16| PortConfig::new(PortId(n), format!("p{n}"), PortKind::Sink);
    Host { ports: (0..=LAST_PORT.0).map(port).collect(), rules, ..Host::default() }
}

/// The rules that a policy says match a packet.
fn matching_rules(policy: &Policy, from: PortId, to: Option<PortId>, key: &FlowKey) -> Vec<RuleId> {
    let lookup = match to {
        None => policy.ingress(from).map(|ingress| &ingress.lookup),
        Some(to) => policy.egress(to).and_then(|egress| egress.lookup(from)),
    };
    let Some(lookup) = lookup else { return Vec::new() };
    let mut number = [0];
    lookup.decide(&[policy.used.mask(*key)], &mut number);
    policy.decision(number[0]).rules.to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn at_every_moment_the_rules_accepted_so_far_decide(
        (first, more, edits, seed) in (rules(0..12), rules(20), vec((0u8..7, any::<u64>()), 40), any::<u64>()),
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
                    prop_assert_eq!(matching_rules(&running, from, to, key), decide(&host.rules, from, to, key).rules);
                }
            }
        }
    }
}
