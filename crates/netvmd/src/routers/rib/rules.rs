// SPDX-License-Identifier: Apache-2.0
//! Policy routing rules (`ip rule`): whether the tables `local`, then `main` decide for all packets of a family.

/// A policy routing rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its family is IPv4, else IPv6.
    pub is_v4: bool,
    /// The kernel tries rules with a lower number first.
    pub priority: u32,
    /// What it does.
    pub action: RuleAction,
}

/// The action of a rule. The first three look a table up for all packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleAction {
    /// Table `local`.
    Local,
    /// Table `main`.
    Main,
    /// Table `default`.
    Default,
    /// Another action, or only for some packets.
    Other,
}

impl Rule {
    /// The rules of a new namespace, which a kernel without policy routing follows, too.
    pub fn defaults(is_v4: bool) -> [Self; 3] {
        [(0, RuleAction::Local), (32766, RuleAction::Main), (32767, RuleAction::Default)]
            .map(|(priority, action)| Self { is_v4, priority, action })
    }
}

/// The rules of both families.
#[derive(Debug)]
pub struct Rules(Vec<Rule>);

impl Default for Rules {
    fn default() -> Self {
        Self([true, false].into_iter().flat_map(Rule::defaults).collect())
    }
}

impl Rules {
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds a rule where the kernel does: after those of its priority.
    pub fn add(&mut self, rule: Rule) {
        let place = self.0.iter().position(|other| other.priority > rule.priority);
        self.0.insert(place.unwrap_or(self.0.len()), rule);
    }

    /// Whether `local`, then `main` decide for all packets of a family. `default` may follow: the engine punts packets
    /// for which `main` has no route.
    pub fn are_default(&self, is_v4: bool) -> bool {
        let first = |action| {
            let mut actions = self.0.iter().filter(|rule| rule.is_v4 == is_v4).map(|rule| rule.action);
            actions.position(|one| one == action)
        };
        let (Some(local), Some(main)) = (first(RuleAction::Local), first(RuleAction::Main)) else {
            return false;
        };
        let is_before_main = |action| first(action).is_some_and(|place| place < main);
        local < main && !is_before_main(RuleAction::Default) && first(RuleAction::Other).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use RuleAction::{Default, Local, Main, Other};

    #[test]
    fn the_rules_are_default_only_if_local_then_main_decide() {
        for (actions, are_default) in [
            (&[(0, Local), (32766, Main), (32767, Default)][..], true),
            (&[(32767, Default), (32766, Main), (0, Local)], true),
            (&[(0, Local), (32766, Main)], true),
            (&[(5, Local), (5, Main), (5, Default)], true),
            // A second look-up finds nothing new.
            (&[(0, Local), (1, Local), (2, Main), (3, Local), (4, Default), (5, Main)], true),
            (&[(5, Main), (5, Local), (6, Default)], false),
            (&[(0, Main), (1, Local), (2, Main)], false),
            (&[(0, Local), (1, Default), (2, Main)], false),
            (&[(0, Local), (32767, Default)], false),
            (&[(32766, Main), (32767, Default)], false),
            (&[(0, Local), (32766, Other), (32766, Main), (32767, Default)], false),
            // Another table's routes are the kernel's, whatever `main` misses.
            (&[(0, Local), (32766, Main), (40000, Other)], false),
            (&[], false),
        ] {
            for is_v4 in [true, false] {
                let mut rules = Rules(Rule::defaults(!is_v4).to_vec());
                actions.iter().for_each(|&(priority, action)| rules.add(Rule { is_v4, priority, action }));
                assert_eq!(rules.are_default(is_v4), are_default, "{rules:?}");
                assert!(rules.are_default(!is_v4), "the other family's");
            }
        }
    }
}
