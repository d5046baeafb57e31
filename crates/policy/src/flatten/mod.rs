// SPDX-License-Identifier: Apache-2.0
//! Flattens rules, of which several can apply to a packet, to a list of which the first match holds all actions.
//!
//! Processes rules from the last to the first. A rule with a terminal action goes to the front of the list. One without
//! goes to the front as its intersection with each element, in the same order, and then by itself. Elements that it
//! contains become unreachable and are dropped, so a rule that counts everything costs nothing.
//!
//! The list after a rule does not depend on earlier rules. So a list for slightly changed rules reuses the old one: the
//! part after the change, the changed rules, and one element for each rule before.

mod edit;
mod side;

use std::sync::Arc;

use netvm_ids::RuleId;
use thiserror::Error;

use crate::cubes::{Cube, TooManyCubes};
use crate::decision::Decision;
use crate::rule::Rule;

pub use edit::Edit;
pub use side::{EgressClasses, Side, egress_classes, ingress_classes};

/// An element of a flattened list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flat {
    /// Its packets: those in any of these cubes; never empty. Shared with the rule's cubes.
    pub cubes: Arc<[Cube]>,
    /// Their decision.
    pub decision: Decision,
}

impl AsRef<[Cube]> for Flat {
    fn as_ref(&self) -> &[Cube] {
        &self.cubes
    }
}

/// Rules cannot be flattened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FlattenError {
    /// A rule's sets are too large.
    #[error("rule {rule}: {why}")]
    Sets {
        /// The rule.
        rule: RuleId,
        /// Their size.
        why: TooManyCubes,
    },
    /// The list has too many cubes.
    #[error(
        "with rule {rule} the policy has more than {limit} combinations of values: it has too many rules, or rules without a terminal action that overlap too many later ones"
    )]
    TooLarge {
        /// The first rule, from the end, that does not fit.
        rule: RuleId,
        /// Most cubes of a list.
        limit: usize,
    },
}

/// The flattened list for a side. The default applies to packets that no element matches.
#[derive(Clone, Debug, Default)]
pub struct FlatList {
    flats: Arc<[Arc<Flat>]>,
    cubes: usize,
}

/// Rules before and after an edit.
#[derive(Clone, Copy, Debug)]
pub struct Edited<'a> {
    /// The rules before.
    pub before: &'a [Rule],
    /// The rules after.
    pub rules: &'a [Rule],
    /// What differs.
    pub edit: Edit,
}

/// Flattens rules for a side to at most `limit` cubes.
///
/// # Errors
/// [`FlattenError`], naming the rule.
pub fn flatten(rules: &[Rule], side: Side, limit: usize) -> Result<FlatList, FlattenError> {
    let mut list = ReverseList { limit, ..ReverseList::default() };
    list.put(rules, side)?;
    list.flats.reverse();
    Ok(FlatList { flats: list.flats.into(), cubes: list.cubes })
}

impl FlatList {
    /// The elements, in order.
    #[must_use]
    pub const fn flats(&self) -> &Arc<[Arc<Flat>]> {
        &self.flats
    }

    /// As [`flatten`], from the list for the rules before an edit: reuses unchanged parts, unless a rule without a
    /// terminal action precedes the change.
    ///
    /// # Errors
    /// [`FlattenError`], naming the rule.
    pub fn changed(&self, edited: Edited<'_>, side: Side, limit: usize) -> Result<Self, FlattenError> {
        let Edited { before, rules, edit } = edited;
        let concerns = |rules: &[Rule]| rules.iter().any(|rule| side.has(rule));
        if !concerns(&before[edit.gone()]) && !concerns(&rules[edit.added()]) {
            return Ok(self.clone());
        }
        let ahead = Extent::of(&rules[..edit.added().start], side);
        let gone = Extent::of(&before[edit.gone()], side);
        let (Some(ahead), Some(gone)) = (ahead, gone) else { return flatten(rules, side, limit) };
        let Some(behind) = self.flats.get(ahead.flats + gone.flats..) else {
            return flatten(rules, side, limit);
        };
        let cubes = self.cubes - ahead.cubes - gone.cubes;
        let mut list = ReverseList { flats: Vec::new(), cubes, limit };
        // Rules with a terminal action leave what is behind them as it is.
        let as_it_is = if Extent::of(&rules[edit.added()], side).is_some() {
            behind
        } else {
            list.flats.extend(behind.iter().rev().cloned());
            &[]
        };
        // A full run names the rule that does not fit.
        if list.put(&rules[edit.added()], side).is_err() || list.cubes + ahead.cubes > limit {
            return flatten(rules, side, limit);
        }
        let flats = self.flats[..ahead.flats].iter().chain(list.flats.iter().rev()).chain(as_it_is).cloned();
        Ok(Self { flats: flats.collect(), cubes: list.cubes + ahead.cubes })
    }
}

/// The size of the list part that rules with terminal actions make.
#[derive(Clone, Copy, Default)]
struct Extent {
    flats: usize,
    cubes: usize,
}

impl Extent {
    /// `None` where one has no terminal action, or too many cubes.
    fn of(rules: &[Rule], side: Side) -> Option<Self> {
        rules.iter().filter(|rule| side.has(rule)).try_fold(Self::default(), |sum, rule| {
            rule.actions.terminal?;
            let cubes = rule.cubes().ok()?.len();
            Some(Self { flats: sum.flats + usize::from(cubes > 0), cubes: sum.cubes + cubes })
        })
    }
}

/// The list in reverse order.
#[derive(Default)]
struct ReverseList {
    flats: Vec<Arc<Flat>>,
    cubes: usize,
    limit: usize,
}

impl ReverseList {
    /// Prepends rules, from the last to the first.
    fn put(&mut self, rules: &[Rule], side: Side) -> Result<(), FlattenError> {
        for rule in rules.iter().rev().filter(|rule| side.has(rule)) {
            let cubes = rule.cubes().map_err(|why| FlattenError::Sets { rule: rule.id, why })?;
            let fits = if rule.actions.terminal.is_some() {
                self.push(Flat { cubes: Arc::clone(cubes), decision: Decision::of(rule) })
            } else {
                self.overlay(cubes, &Decision::of(rule))
            };
            if !fits {
                return Err(FlattenError::TooLarge { rule: rule.id, limit: self.limit });
            }
        }
        Ok(())
    }

    /// Prepends an element; false if it does not fit.
    fn push(&mut self, flat: Flat) -> bool {
        self.cubes += flat.cubes.len();
        if !flat.cubes.is_empty() {
            self.flats.push(Arc::new(flat));
        }
        self.cubes <= self.limit
    }

    /// Puts a rule without a terminal action in front; whether it fits.
    fn overlay(&mut self, cubes: &[Cube], decision: &Decision) -> bool {
        let mut both = Vec::new();
        let mut added = 0;
        // The rule's cubes that no single cube of the list contains.
        let mut alone: Vec<Cube> = cubes.to_vec();
        for flat in &mut self.flats {
            let mut common = Vec::new();
            let mut out_of_reach = Vec::new();
            for (place, later) in flat.cubes.iter().enumerate() {
                let before = common.len();
                for cube in cubes {
                    // Most do not intersect, which is cheaper to check than the intersection.
                    if let Some(both) = cube.meets(later).then(|| cube.intersect(later)).flatten() {
                        common.push(both);
                        alone.retain(|cube| !later.covers(cube));
                    }
                }
                if common[before..].contains(later) {
                    out_of_reach.push(place);
                }
            }
            if common.is_empty() {
                continue;
            }
            added += common.len();
            if added > self.limit {
                return false;
            }
            let common = if common == *flat.cubes { Arc::clone(&flat.cubes) } else { common.into() };
            both.push(Flat { cubes: common, decision: decision.then(&flat.decision) });
            if !out_of_reach.is_empty() {
                let is_left = |place: &usize| out_of_reach.binary_search(place).is_err();
                let left = flat.cubes.iter().enumerate().filter(|(place, _)| is_left(place));
                let cubes = left.map(|(_, cube)| *cube).collect();
                *flat = Arc::new(Flat { cubes, decision: flat.decision.clone() });
            }
        }
        self.flats.retain(|flat| !flat.cubes.is_empty());
        self.cubes = self.flats.iter().map(|flat| flat.cubes.len()).sum();
        let alone = Flat { cubes: alone.into(), decision: decision.clone() };
        self.push(alone) && both.into_iter().all(|flat| self.push(flat))
    }
}

#[cfg(test)]
mod tests {
    use netvm_ids::PortId;
    use netvm_wire::PortRange;
    use proptest::prelude::*;

    use super::*;
    use crate::arbitrary::{LAST_PORT, rules, rules_and_keys};
    use crate::matching::Match;
    use crate::reference::decide;
    use crate::rule::{Action, Actions, RuleParts};

    const LIMIT: usize = 1 << 20;
    const SIDE: Side = Side::Ingress { from: PortId(0) };

    fn rule(id: u32, ports: std::ops::RangeInclusive<u16>, terminal: Option<Action>) -> Rule {
        Rule::from(RuleParts {
            id: RuleId(id),
            name: String::new(),
            matches: Match {
                ether_type: vec![netvm_wire::EtherType::IPV4],
                source_ports: PortRange::new(*ports.start(), *ports.end()).into_iter().collect(),
                ..Match::default()
            },
            actions: Actions { terminal, ..Actions::default() },
        })
    }

    fn summary(rules: &[Rule]) -> Vec<(Vec<u32>, usize)> {
        let flats = flatten(rules, SIDE, LIMIT).unwrap();
        let ids = |flat: &Arc<Flat>| flat.decision.rules.iter().map(|id| id.0).collect();
        flats.flats().iter().map(|flat| (ids(flat), flat.cubes.len())).collect()
    }

    #[test]
    fn a_rule_that_counts_everything_costs_nothing() {
        let drop = Some(Action::Drop);
        let rules = [rule(0, 0..=65_535, None), rule(1, 0..=9, drop), rule(2, 20..=29, drop)];
        assert_eq!(summary(&rules), [(vec![0, 1], 1), (vec![0, 2], 1), (vec![0], 1)]);
        let rules = [rule(0, 5..=9, None), rule(1, 0..=65_535, drop)];
        assert_eq!(summary(&rules), [(vec![0, 1], 1), (vec![1], 1)]);
    }

    #[test]
    fn a_list_that_grows_too_large_names_the_rule() {
        // Ranges that all overlap: each doubles the list.
        let rules: Vec<Rule> = (0..16).map(|n| rule(n, (n as u16)..=100 + n as u16, None)).collect();
        let error = flatten(&rules, SIDE, 100).unwrap_err();
        assert!(matches!(error, FlattenError::TooLarge { limit: 100, .. }), "{error}");
        assert!(flatten(&rules[..4], SIDE, 100).is_ok());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn the_first_match_has_the_actions_of_all_matching_rules(
            (rules, keys) in rules_and_keys(0..10, 1..24),
            from in 0..=LAST_PORT.0 + 1,
            to in prop::option::of(0..=LAST_PORT.0 + 1),
        ) {
            let from = PortId(from);
            let to = to.map(PortId);
            let side = to.map_or(Side::Ingress { from }, |to| Side::Egress { from, to });
            match flatten(&rules, side, LIMIT) {
                Ok(list) => {
                    let flats = list.flats();
                    prop_assert!(flats.iter().all(|flat| !flat.cubes.is_empty()));
                    for key in &keys {
                        let first = flats.iter().find(|flat| flat.cubes.iter().any(|cube| cube.contains(key)));
                        let decision = first.map(|flat| flat.decision.clone()).unwrap_or_default();
                        prop_assert_eq!(decision, decide(&rules, from, to, key));
                    }
                }
                Err(error) => prop_assert_eq!(error.to_string().contains("more than 1048576"), true),
            }
        }

        #[test]
        fn a_changed_list_equals_a_new_one(
            first in rules(0..10),
            edits in prop::collection::vec((any::<prop::sample::Index>(), prop::option::of(rules(1))), 1..8),
            limit in prop::sample::select(vec![LIMIT, 40]),
        ) {
            let mut before = first;
            let Ok(mut list) = flatten(&before, SIDE, limit) else { return Ok(()) };
            for (at, more) in edits {
                let mut rules = before.clone();
                match more {
                    Some(more) => drop(rules.splice(at.index(rules.len() + 1)..at.index(rules.len() + 1), more)),
                    None if rules.is_empty() => continue,
                    None => drop(rules.remove(at.index(rules.len()))),
                }
                let edit = Edit::between(&before, &rules, Rule::is_clone_of);
                let changed = list.changed(Edited { before: &before, rules: &rules, edit }, SIDE, limit);
                let rebuilt = flatten(&rules, SIDE, limit);
                prop_assert_eq!(changed.as_ref().err(), rebuilt.as_ref().err());
                let (Ok(changed), Ok(rebuilt)) = (changed, rebuilt) else { continue };
                prop_assert_eq!(changed.flats(), rebuilt.flats());
                prop_assert_eq!(changed.cubes, rebuilt.cubes);
                (before, list) = (rules, changed);
            }
        }
    }
}
