// SPDX-License-Identifier: Apache-2.0
//! Filter sets: flattened rules agree with a linear scan, and the analysis is fast.

use std::time::Instant;

use netvm_policy::analyse::{Kind, analyse};
use netvm_policy::arbitrary::Generator;
use netvm_policy::{
    Action, Actions, Cube, PortId, Rule, RuleId, RuleParts, Side, UsedFields, decide, flatten,
};
use netvm_policy_import::classbench::{Flags, parse};

/// The rules of each set; every other one drops, and one in a hundred only counts.
fn sets() -> Vec<(String, Vec<Rule>)> {
    let sets = netvm_workload::data::filter_sets().unwrap().into_iter();
    sets.map(|(name, text)| {
        let imported = parse(&text, Actions::default(), Flags::Match).unwrap();
        let rules = imported.rules.into_iter().enumerate().map(|(n, rule)| {
            let terminal = if n % 2 == 0 { Action::Drop } else { Action::Allow };
            let actions = Actions { terminal: (n % 100 != 99).then_some(terminal), ..Actions::default() };
            Rule::from(RuleParts {
                id: RuleId(n as u32),
                name: String::new(),
                matches: rule.matches,
                actions,
            })
        });
        (name, rules.collect())
    })
    .collect()
}

fn cubes(rules: &[Rule]) -> Vec<Vec<Cube>> {
    rules.iter().map(|rule| rule.matches.cubes().unwrap()).collect()
}

#[test]
fn flattened_sets_agree_with_a_linear_scan() {
    for (name, rules) in sets() {
        let from = PortId(0);
        let started = Instant::now();
        let list = flatten(&rules, Side::Ingress { from }, 1 << 18).unwrap();
        let flats = list.flats();
        let took = started.elapsed();
        let count: usize = flats.iter().map(|flat| flat.cubes.len()).sum();
        println!("{name}: {} rules, {} flats, {count} cubes, {took:.1?}", rules.len(), flats.len());
        let cubes = cubes(&rules).concat();
        let used = UsedFields::of(&rules);
        let mut generator = Generator::new(rules.len() as u64);
        let mut matched = 0;
        for _ in 0..2_000 {
            let key = used.mask(generator.key(&cubes));
            let first = flats.iter().find(|flat| flat.cubes.iter().any(|cube| cube.contains(&key)));
            let decision = first.map(|flat| flat.decision.clone()).unwrap_or_default();
            matched += usize::from(first.is_some());
            assert_eq!(decision, decide(&rules, from, None, &key), "{name}: {key:?}");
        }
        assert!(matched > 500, "{name}: only {matched} keys matched");
    }
}

#[test]
fn the_problems_of_a_set_are_found() {
    for (name, rules) in sets() {
        let started = Instant::now();
        let found = analyse(&rules);
        let took = started.elapsed();
        let count =
            |kinds: fn(Kind) -> bool| found.warnings.iter().filter(|warning| kinds(warning.kind)).count();
        println!(
            "{name}: {} shadowed, {} together, {} twice, {} contradict, {} overlap, {} impossible, {took:.1?}",
            count(|kind| kind == Kind::Shadowed),
            count(|kind| kind == Kind::ShadowedTogether),
            count(|kind| kind == Kind::Duplicate),
            count(|kind| kind == Kind::Contradiction),
            count(|kind| kind == Kind::Overlap) + found.more_overlaps,
            count(|kind| matches!(kind, Kind::Impossible(_))),
        );
        assert_eq!(found.unfinished, None);
        if rules.len() > 1_000 {
            continue;
        }
        let cubes = cubes(&rules);
        for (n, later) in cubes.iter().enumerate() {
            let by_one = cubes[..n].iter().zip(&rules).any(|(cubes, rule)| {
                let all = || later.iter().all(|later| cubes.iter().any(|cube| cube.covers(later)));
                rule.actions.terminal.is_some() && all()
            });
            let told = found.warnings.iter().any(|warning| {
                warning.rule == n && !matches!(warning.kind, Kind::Overlap | Kind::ShadowedTogether)
            });
            assert!(told || !by_one, "{name}: rule {n}");
        }
    }
}
