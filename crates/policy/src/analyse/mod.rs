// SPDX-License-Identifier: Apache-2.0
//! Finds rules that may not do what their author expects.

mod index;
mod lowered;
mod possible;
mod scan;
mod single;
mod subtract;

use crate::rule::Rule;

use lowered::Lowered;
use scan::Scan;

pub use possible::Impossible;
pub use single::about;

/// Most warnings of [`Kind::Overlap`].
pub const MAX_OVERLAPS: usize = 32;

/// A problem of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// It never applies: the other rule decides all its packets.
    Shadowed,
    /// It never applies: several earlier rules, of which the other is the first, decide all its packets.
    ShadowedTogether,
    /// The other rule has the same packets and actions.
    Duplicate,
    /// The other rule has the same packets and decides differently.
    Contradiction,
    /// The other rule decides some of its packets differently, and neither contains the other, so their order matters.
    Overlap,
    /// No packet can match.
    Impossible(Impossible),
}

/// A problem of a rule, by indexes in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Warning {
    /// The problem.
    pub kind: Kind,
    /// The rule.
    pub rule: usize,
    /// The earlier rule involved.
    pub other: Option<usize>,
}

/// The result of an analysis.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Analysis {
    /// At most one for each rule, in order; names the first earlier rule that is the reason.
    pub warnings: Vec<Warning>,
    /// Number of rules with overlaps beyond [`MAX_OVERLAPS`], which have no warning.
    pub more_overlaps: usize,
    /// The first rule that was not analysed, because a comparison would take more than about a second or its sets are
    /// too large.
    pub unfinished: Option<usize>,
}

/// Analyses each rule against the earlier ones. No false warnings; finds rules that several earlier ones shadow
/// together only if these are few.
#[must_use]
pub fn analyse(rules: &[Rule]) -> Analysis {
    let mut found = Analysis::default();
    let lowered = Lowered::of(rules, &mut found);
    Scan::new(rules, &lowered).run(&mut found);
    found.warnings.sort_unstable_by_key(|warning| warning.rule);
    found
}

impl Analysis {
    fn warn(&mut self, kind: Kind, rule: usize, other: Option<usize>) {
        self.warnings.push(Warning { kind, rule, other });
    }
}

#[cfg(test)]
mod tests {
    use netvm_ids::{PortId, RuleId};
    use netvm_wire::{IpNet, IpProto, PortRange};
    use proptest::prelude::*;

    use super::*;
    use crate::arbitrary::{LAST_PORT, rules_and_keys};
    use crate::matching::Match;
    use crate::reference::decide;
    use crate::rule::{Action, Actions, RuleParts, When};
    use crate::span::{Masked, Span};

    fn rule(source: &str, port: u16, terminal: Option<Action>) -> Rule {
        let source: IpNet = source.parse().unwrap();
        Rule::from(RuleParts {
            id: RuleId(0),
            name: String::new(),
            matches: Match {
                source: vec![source],
                destination_ports: (port > 0).then(|| PortRange::single(port)).into_iter().collect(),
                ..Match::default()
            },
            actions: Actions { terminal, ..Actions::default() },
        })
    }

    fn kinds(rules: &[Rule]) -> Vec<(usize, Kind, Option<usize>)> {
        analyse(rules).warnings.iter().map(|found| (found.rule, found.kind, found.other)).collect()
    }

    const DROP: Option<Action> = Some(Action::Drop);
    const ALLOW: Option<Action> = Some(Action::Allow);

    #[test]
    fn each_kind_is_found() {
        let rules = [
            rule("10.0.0.0/8", 0, None),
            rule("10.0.0.0/9", 0, DROP),
            rule("10.1.0.0/16", 80, DROP),
            rule("10.0.0.0/9", 0, DROP),
            rule("10.0.0.0/9", 0, ALLOW),
            rule("10.128.0.0/9", 0, ALLOW),
            rule("10.0.0.0/8", 22, None),
            rule("0.0.0.0/0", 443, ALLOW),
            rule("0.0.0.0/0", 0, DROP),
        ];
        let expected = [
            (2, Kind::Shadowed, Some(1)),
            (3, Kind::Duplicate, Some(1)),
            (4, Kind::Contradiction, Some(1)),
            (6, Kind::ShadowedTogether, Some(1)),
            (7, Kind::Overlap, Some(1)),
        ];
        assert_eq!(kinds(&rules), expected);
    }

    #[test]
    fn rules_of_different_ports_are_independent() {
        let mut rules =
            [rule("10.0.0.0/8", 0, DROP), rule("10.1.0.0/16", 0, ALLOW), rule("10.2.0.0/16", 0, ALLOW)];
        rules[0].matches.from = vec![PortId(1), PortId(2)];
        rules[1].matches.from = vec![PortId(3)];
        rules[2].matches.to = vec![PortId(1)];
        assert_eq!(kinds(&rules), []);
        rules[1].matches.from = vec![PortId(2)];
        assert_eq!(kinds(&rules), [(1, Kind::Shadowed, Some(0))]);
    }

    #[test]
    fn a_rule_that_does_not_always_apply_shadows_none_that_applies_at_other_times() {
        let mut rules =
            [rule("10.0.0.0/8", 0, DROP), rule("10.0.0.0/8", 0, ALLOW), rule("10.1.0.0/16", 0, ALLOW)];
        let at = |text: &str| When { times: vec![text.parse().unwrap()], load: None };
        rules[0].set_when(at("Mon"));
        assert_eq!(kinds(&rules), [(2, Kind::Shadowed, Some(1))]);
        rules[1].set_when(at("Tue"));
        assert_eq!(kinds(&rules), []);
        rules[2].set_when(at("Mon"));
        assert_eq!(kinds(&rules), [(2, Kind::Shadowed, Some(0))]);
        rules[1].set_when(at("Mon"));
        assert_eq!(kinds(&rules), [(1, Kind::Contradiction, Some(0)), (2, Kind::Shadowed, Some(0))]);
    }

    #[test]
    fn impossible_matches_are_found() {
        let mut rules = vec![rule("10.0.0.0/8", 0, DROP); 3];
        rules[0].matches.destination = vec!["2001:db8::/32".parse().unwrap()];
        rules[1].matches.protocol = vec![IpProto::UDP];
        rules[1].matches.tcp_flags = Some(Masked::<u8>::new(2, 2));
        rules[2].matches.icmp_type = vec![Span::single(8)];
        rules[2].matches.protocol = vec![IpProto::TCP, IpProto::ICMPV6];
        let impossible = |rule, why| (rule, Kind::Impossible(why), None);
        let expected = [
            impossible(0, Impossible::Families),
            impossible(1, Impossible::TcpFlags),
            impossible(2, Impossible::Icmp),
        ];
        assert_eq!(kinds(&rules), expected);
    }

    #[test]
    fn overlaps_are_counted_and_some_reported() {
        let mut rules: Vec<Rule> = (1..100).map(|port| rule("0.0.0.0/0", port, DROP)).collect();
        rules.extend((1..100).map(|n| rule(&format!("10.{n}.0.0/16"), 0, ALLOW)));
        let found = analyse(&rules);
        assert_eq!((found.warnings.len(), found.more_overlaps), (MAX_OVERLAPS, 99 - MAX_OVERLAPS));
    }

    #[test]
    fn an_incomplete_analysis_is_reported() {
        let mut wide = rule("10.0.0.0/8", 0, DROP);
        let odd = |n: u16| PortRange::single(n * 2 + 1);
        wide.matches.source_ports = (0..100).map(odd).collect();
        wide.matches.destination_ports = (0..100).map(odd).collect();
        let found = analyse(&[rule("10.0.0.0/8", 0, ALLOW), wide, rule("10.0.0.0/9", 0, ALLOW)]);
        assert_eq!(found.unfinished, Some(1));
        assert_eq!(found.warnings, [Warning { kind: Kind::Shadowed, rule: 2, other: Some(0) }]);
    }

    /// Rule `a` shadows rule `b`.
    fn shadows(a: &Rule, b: &Rule) -> bool {
        let [cubes, later] = [a, b].map(|rule| rule.matches.cubes().unwrap());
        let from = |rule: &Rule| -> Vec<PortId> {
            let ports = (0..=LAST_PORT.0 + 1).map(PortId);
            ports.filter(|port| rule.matches.from.is_empty() || rule.matches.from.contains(port)).collect()
        };
        let to = |rule: &Rule| rule.matches.to.clone();
        a.actions.terminal.is_some()
            && a.applies_with(b)
            && later.iter().all(|later| cubes.iter().any(|cube| cube.covers(later)))
            && from(b).iter().all(|port| from(a).contains(port))
            && to(a).is_empty() == to(b).is_empty()
            && to(b).iter().all(|port| to(a).contains(port))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn warnings_are_right((rules, keys) in rules_and_keys(1..16, 1..32)) {
            let warnings = analyse(&rules).warnings;
            for Warning { kind, rule, other } in &warnings {
                let never = !matches!(kind, Kind::Overlap) && rules[*rule].actions.terminal.is_some();
                let ports = || (0..=LAST_PORT.0).map(PortId);
                let directions = ports().flat_map(|from| ports().map(Some).chain([None]).map(move |to| (from, to)));
                for (from, to) in directions.filter(|_| never) {
                    for key in &keys {
                        let decision = decide(&rules, from, to, key);
                        prop_assert!(!decision.rules.contains(&rules[*rule].id), "{:?} {:?} {:?}", kind, other, key);
                    }
                }
            }
            let told = |rule: usize, kinds: fn(Kind) -> bool| {
                warnings.iter().any(|found| found.rule == rule && kinds(found.kind))
            };
            for (n, rule) in rules.iter().enumerate() {
                if rules[..n].iter().any(|earlier| shadows(earlier, rule)) {
                    prop_assert!(told(n, |kind| !matches!(kind, Kind::Overlap | Kind::ShadowedTogether)));
                } else {
                    prop_assert!(!told(n, |kind| matches!(kind, Kind::Shadowed | Kind::Contradiction)));
                }
            }
        }
    }
}
