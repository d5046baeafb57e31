//! The cubes of rules, remembered from one policy to the next: with thousands of rules of which one changes, most of the time
//! would go into those of the others.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use netvm_policy::{Cube, Match, Rule, RuleId, TooManyCubes};

/// Cubes that are remembered; those of rules beyond are made each time.
const MOST: usize = 1 << 16;

/// What rules come to, by number; good for as long as a rule matches the same.
#[derive(Debug, Default)]
pub(super) struct KnownCubes {
    rules: HashMap<RuleId, (Match, Arc<[Cube]>)>,
    count: usize,
}

impl KnownCubes {
    /// Those of a rule.
    pub(super) fn of(&mut self, rule: &Rule) -> Result<Arc<[Cube]>, TooManyCubes> {
        if let Some((_, cubes)) = self.rules.get(&rule.id).filter(|(matches, _)| *matches == rule.matches) {
            return Ok(Arc::clone(cubes));
        }
        let cubes: Arc<[Cube]> = rule.matches.cubes()?.into();
        if self.count + cubes.len() <= MOST {
            self.count += cubes.len();
            let old = self.rules.insert(rule.id, (rule.matches.clone(), Arc::clone(&cubes)));
            self.count -= old.map_or(0, |(_, cubes)| cubes.len());
        }
        Ok(cubes)
    }

    /// Forgets those of rules that are not among these.
    pub(super) fn keep(&mut self, rules: &[Rule]) {
        if self.rules.len() > rules.len() {
            let there: HashSet<RuleId> = rules.iter().map(|rule| rule.id).collect();
            self.rules.retain(|rule, _| there.contains(rule));
            self.count = self.rules.values().map(|(_, cubes)| cubes.len()).sum();
        }
    }
}

#[cfg(test)]
mod tests {
    use netvm_policy::Actions;

    use super::*;

    #[test]
    fn what_is_remembered_is_what_the_rule_matches_now() {
        let mut known = KnownCubes::default();
        let rule = |id: u32, dscp: u8| Rule {
            id: RuleId(id),
            name: String::new(),
            matches: Match { dscp: vec![netvm_policy::Span::single(dscp)], ..Match::default() },
            actions: Actions::default(),
        };
        for rule in [rule(1, 5), rule(1, 5), rule(1, 6), rule(2, 5)] {
            assert_eq!(*known.of(&rule).unwrap(), rule.matches.cubes().unwrap());
        }
        known.keep(&[rule(2, 5)]);
        assert_eq!((known.rules.len(), known.count), (1, rule(2, 5).matches.cubes().unwrap().len()));
        assert_eq!(*known.of(&rule(1, 7)).unwrap(), rule(1, 7).matches.cubes().unwrap());
    }
}
