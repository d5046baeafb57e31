// SPDX-License-Identifier: Apache-2.0
//! Selects the rules for ports.

use std::collections::{BTreeMap, HashMap};

use netvm_ids::{PortId, RuleId};

use crate::matching::Match;
use crate::rule::Rule;

/// The point of a rule lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// On receive.
    Ingress {
        /// The ingress port.
        from: PortId,
    },
    /// On transmit.
    Egress {
        /// The ingress port.
        from: PortId,
        /// The egress port.
        to: PortId,
    },
}

impl Side {
    /// Whether a match applies to the side.
    #[must_use]
    pub fn takes(self, matches: &Match) -> bool {
        let (from, out) = match self {
            Self::Ingress { from } => (from, matches.to.is_empty()),
            Self::Egress { from, to } => (from, matches.to.contains(&to)),
        };
        out && (matches.from.is_empty() || matches.from.contains(&from))
    }

    /// Whether a rule applies now, and to the side.
    #[must_use]
    pub fn has(self, rule: &Rule) -> bool {
        rule.is_active() && self.takes(&rule.matches)
    }

    /// The rules of the side, in order. Sides with equal rules can share a classifier.
    #[must_use]
    pub fn rules(self, rules: &[Rule]) -> Vec<RuleId> {
        rules.iter().filter(|rule| self.has(rule)).map(|rule| rule.id).collect()
    }
}

/// Classes of ports that no rule distinguishes, which can share a classifier for [`Side::Ingress`]. In the order of
/// `ports`.
#[must_use]
pub fn ingress_classes(rules: &[Rule], ports: &[PortId]) -> Vec<Vec<PortId>> {
    classes(rules.iter().filter(|rule| !rule.matches.is_egress()).map(|rule| &rule.matches.from[..]), ports)
}

/// Classes of ports that rules on transmitted packets do not distinguish.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct EgressClasses {
    /// Classes of ingress ports.
    pub from: Vec<Vec<PortId>>,
    /// Classes of egress ports.
    pub to: Vec<Vec<PortId>>,
}

/// As [`ingress_classes`] for [`Side::Egress`]: a class of `from` and a class of `to` can share a classifier.
#[must_use]
pub fn egress_classes(rules: &[Rule], ports: &[PortId]) -> EgressClasses {
    let egress = || rules.iter().map(|rule| &rule.matches).filter(|matches| matches.is_egress());
    EgressClasses {
        from: classes(egress().map(|matches| &matches.from[..]), ports),
        to: classes(egress().map(|matches| &matches.to[..]), ports),
    }
}

/// Groups ports that occur in the same sets.
fn classes<'a>(sets: impl Iterator<Item = &'a [PortId]>, ports: &[PortId]) -> Vec<Vec<PortId>> {
    let mut named: HashMap<PortId, Vec<usize>> = HashMap::new();
    for (n, set) in sets.enumerate() {
        for port in set {
            let by = named.entry(*port).or_default();
            if by.last() != Some(&n) {
                by.push(n);
            }
        }
    }
    let mut classes: Vec<Vec<PortId>> = Vec::new();
    let mut places: BTreeMap<&[usize], usize> = BTreeMap::new();
    for port in ports {
        let by = named.get(port).map_or(&[][..], Vec::as_slice);
        let place = *places.entry(by).or_insert(classes.len());
        match classes.get_mut(place) {
            Some(class) => class.push(*port),
            None => classes.push(vec![*port]),
        }
    }
    classes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::arbitrary::{LAST_PORT, rules};

    proptest! {
        #[test]
        fn ports_of_a_class_have_the_same_rules(rules in rules(0..12)) {
            let ports: Vec<PortId> = (0..=LAST_PORT.0 + 2).map(PortId).collect();
            let ingress = ingress_classes(&rules, &ports);
            let mut all: Vec<PortId> = ingress.concat();
            all.sort();
            prop_assert_eq!(&all, &ports);
            for class in &ingress {
                for from in class {
                    let side = |from| Side::Ingress { from };
                    prop_assert_eq!(side(*from).rules(&rules), side(class[0]).rules(&rules));
                }
            }
            // Ports that no rule names share a class.
            prop_assert!(ingress.iter().any(|class| class.ends_with(&ports[ports.len() - 2..])));
            let egress = egress_classes(&rules, &ports);
            for (froms, tos) in egress.from.iter().flat_map(|from| egress.to.iter().map(move |to| (from, to))) {
                for (from, to) in froms.iter().flat_map(|from| tos.iter().map(move |to| (*from, *to))) {
                    let first = Side::Egress { from: froms[0], to: tos[0] };
                    prop_assert_eq!(Side::Egress { from, to }.rules(&rules), first.rules(&rules));
                }
            }
        }
    }
}
