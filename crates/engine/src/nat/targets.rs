// SPDX-License-Identifier: Apache-2.0
//! The targets of a rule for destinations. In: a hash of a connection's source. Out: the target that it leads to.
//!
//! A source has the same target at all times while that target is up, whatever becomes of others. While it is down, the
//! sources that have it are spread over those that are up. If none is, each source has its own: a check that is wrong
//! then stops nobody, and a client hears of its target itself that nothing listens there.

use std::sync::Arc;

use netvm_model::{Host, NatAction, NatRule, NatTarget};

use super::health::{DownFlag, TargetHealth};

/// The targets, in the order of the file.
#[derive(Clone, Debug, Default)]
pub(super) struct Targets {
    all: Arc<[(NatTarget, Option<DownFlag>)]>,
    /// The sum of their weights.
    weight: u64,
}

impl Targets {
    /// Those of a rule: none, if it does not lead to targets.
    pub(super) fn of(host: &Host, rule: &NatRule, health: &TargetHealth) -> Self {
        let NatAction::Destination(destination) = &rule.action else { return Self::default() };
        let flag = |target: &NatTarget| health.flag(&host.checked_target(rule, target)?);
        Self {
            all: destination.targets.iter().map(|target| (*target, flag(target))).collect(),
            weight: destination.targets.iter().map(|target| u64::from(target.weight)).sum(),
        }
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &NatTarget> {
        self.all.iter().map(|(target, _)| target)
    }

    /// The target of the sources with this hash.
    ///
    /// Cost: with more than one target, a step for each.
    pub(super) fn choose(&self, hash: u64) -> Option<NatTarget> {
        let own = nth(self.all.iter(), hash.checked_rem(self.weight)?)?;
        if is_up(own) {
            return Some(own.0);
        }
        let up = self.all.iter().filter(|it| is_up(it));
        let weight: u64 = up.clone().map(|(target, _)| u64::from(target.weight)).sum();
        // Another part of the hash: the sources of a target have the first one in common.
        let other = (hash / self.weight).checked_rem(weight).and_then(|place| nth(up, place));
        Some(other.unwrap_or(own).0)
    }
}

fn is_up((_, flag): &(NatTarget, Option<DownFlag>)) -> bool {
    flag.as_ref().is_none_or(|flag| !flag.is_down())
}

/// The item at a place, of which each takes as many as its weight.
fn nth<'a>(
    mut items: impl Iterator<Item = &'a (NatTarget, Option<DownFlag>)>,
    mut place: u64,
) -> Option<&'a (NatTarget, Option<DownFlag>)> {
    items.find(|(target, _)| match place.checked_sub(target.weight.into()) {
        Some(left) => {
            place = left;
            false
        }
        None => true,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Targets with ports 1, 2 and so on, of these weights.
    fn targets(weights: &[u16], down: &[bool]) -> Targets {
        let target = |(n, weight): (usize, &u16)| NatTarget {
            address: None,
            port: Some(n as u16 + 1),
            weight: *weight,
        };
        let all = weights.iter().enumerate().map(target);
        let flag = |is_down: &bool| {
            let flag = DownFlag::default();
            flag.set(*is_down);
            Some(flag)
        };
        Targets {
            all: all.zip(down.iter().map(flag)).collect(),
            weight: weights.iter().copied().map(u64::from).sum(),
        }
    }

    /// How many of 1,000 sources have each target.
    fn shares(targets: &Targets) -> BTreeMap<u16, u32> {
        let mut shares = BTreeMap::new();
        for source in 0..1000u64 {
            let hash = source.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            *shares.entry(targets.choose(hash).unwrap().port.unwrap()).or_default() += 1;
        }
        shares
    }

    #[test]
    fn sources_are_spread_by_weight_over_those_that_are_up() {
        let all = shares(&targets(&[1, 3], &[false, false]));
        assert!((200..300).contains(&all[&1]), "{all:?}");
        let rest = shares(&targets(&[2, 1, 1], &[true, false, false]));
        assert!(!rest.contains_key(&1) && (400..600).contains(&rest[&2]), "{rest:?}");
        assert!(Targets::default().choose(5).is_none());
    }

    #[test]
    fn a_source_keeps_its_target_while_others_fail_and_if_none_is_up() {
        let up = targets(&[1, 1, 1], &[false; 3]);
        let one_down = targets(&[1, 1, 1], &[false, true, false]);
        let all_down = targets(&[1, 1, 1], &[true; 3]);
        for hash in 0..1000u64 {
            let own = up.choose(hash).unwrap();
            assert_eq!(all_down.choose(hash), Some(own));
            let now = one_down.choose(hash).unwrap();
            assert!(now == own || own.port == Some(2) && now.port != Some(2), "{hash}: {own:?} {now:?}");
        }
    }
}
