// SPDX-License-Identifier: Apache-2.0
//! Analyses one rule of a list: its problems and those that it causes for later rules. For an added rule, without
//! comparing a long list again.

use netvm_wire::IpNet;

use super::{Kind, Warning, analyse};
use crate::rule::Rule;

/// Most intersecting rules that are compared.
const MAX_COMPARED: usize = 1024;

/// Warnings about the rule at `place` and about later rules because of it, each for a pair of rules, in the order of
/// the other rules. Does not find effects of several rules together.
#[must_use]
pub fn about(rules: &[Rule], place: usize) -> Vec<Warning> {
    let Some(rule) = rules.get(place) else { return Vec::new() };
    let alone = analyse(std::slice::from_ref(rule)).warnings;
    if let Some(warning) = alone.first() {
        return vec![Warning { kind: warning.kind, rule: place, other: None }];
    }
    let Ok(cubes) = rule.cubes() else { return Vec::new() };
    let has_packets_of = |other: &Rule| {
        // Most share no address, which is cheaper to check than their cubes.
        let (a, b) = (&rule.matches, &other.matches);
        if !meet(&a.source, &b.source) || !meet(&a.destination, &b.destination) {
            return false;
        }
        let others = other.cubes();
        others.is_ok_and(|others| others.iter().any(|other| cubes.iter().any(|cube| cube.meets(other))))
    };
    let others = rules.iter().enumerate().filter(|(n, other)| *n != place && has_packets_of(other));
    let mut warnings = Vec::new();
    for (n, other) in others.take(MAX_COMPARED) {
        let (earlier, later) = (n.min(place), n.max(place));
        let pair = if n < place { [other, rule] } else { [rule, other] }.map(Clone::clone);
        let found = analyse(&pair).warnings.into_iter().find(|found| found.other.is_some());
        warnings.extend(found.map(|found| Warning { kind: found.kind, rule: later, other: Some(earlier) }));
    }
    warnings.sort_by_key(|warning| warning.kind == Kind::Overlap);
    warnings
}

/// Whether the sets share an address; an empty set means all.
fn meet(some: &[IpNet], others: &[IpNet]) -> bool {
    let both = |a: &IpNet, b: &IpNet| a.contains_net(*b) || b.contains_net(*a);
    some.is_empty() || others.is_empty() || some.iter().any(|a| others.iter().any(|b| both(a, b)))
}

#[cfg(test)]
mod tests {
    use netvm_ids::RuleId;

    use super::*;
    use crate::matching::Match;
    use crate::rule::{Action, Actions, RuleParts};

    fn rule(source: &str, destination: &str, terminal: Action) -> Rule {
        let net = |text: &str| -> Vec<IpNet> { vec![text.parse().unwrap()] };
        Rule::from(RuleParts {
            id: RuleId(0),
            name: String::new(),
            matches: Match { source: net(source), destination: net(destination), ..Match::default() },
            actions: Actions { terminal: Some(terminal), ..Actions::default() },
        })
    }

    #[test]
    fn a_rule_is_compared_with_earlier_and_later_ones() {
        let any = "0.0.0.0/0";
        let rules = [
            rule("10.0.0.0/8", any, Action::Drop),
            rule("192.168.0.0/16", any, Action::Drop),
            rule("10.1.0.0/16", any, Action::Allow),
            rule("10.1.2.0/24", any, Action::Drop),
            rule(any, "10.9.0.0/16", Action::Drop),
            rule("10.1.0.0/16", any, Action::Drop),
        ];
        let told = |place| -> Vec<_> {
            about(&rules, place).iter().map(|found| (found.kind, found.rule, found.other)).collect()
        };
        assert_eq!(
            told(2),
            [
                (Kind::Shadowed, 2, Some(0)),
                (Kind::Shadowed, 3, Some(2)),
                (Kind::Contradiction, 5, Some(2)),
                (Kind::Overlap, 4, Some(2)),
            ]
        );
        assert_eq!(told(1), []);
        assert_eq!(told(9), []);
    }
}
