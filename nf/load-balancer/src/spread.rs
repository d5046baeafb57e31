// SPDX-License-Identifier: Apache-2.0
//! Shares of traffic by weight: by hash, or in rotation.
//!
//! Hashes map to slots. Each slot belongs to the target with the highest score, by weighted rendezvous hashing: a
//! target of weight w draws a number u in (0, 1) for each slot, its score is w / -ln u, and on average it wins its
//! share of the weights. A removed target's slots go to the others, and an added one takes slots from each; no other
//! slot changes its owner, so no flow moves needlessly. Slots are computed when targets change and looked up per
//! packet. The owners of slots are predictable; the slot of a flow is not, as its hash has a random key.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::Target;

const SLOTS: usize = 4096;

/// The targets' shares.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spread {
    /// Target index of each slot; empty without targets.
    slots: Vec<u8>,
    /// A rotation in which each target occurs as often as its weight.
    turns: Vec<u8>,
    turn: usize,
}

impl Spread {
    /// Shares of the `targets` that `takes_part` selects.
    pub(crate) fn new(targets: &[Target], takes_part: impl Fn(usize) -> bool) -> Self {
        let those: Vec<(u8, &Target)> =
            (0u8..).zip(targets).filter(|(n, _)| takes_part(usize::from(*n))).collect();
        let slots = (0..SLOTS).filter_map(|slot| winner(slot, &those)).collect();
        Self { slots, turns: round(&those), turn: 0 }
    }

    /// The target for a hash.
    #[inline]
    pub(crate) fn by_hash(&self, hash: u64) -> Option<usize> {
        self.slots.get(hash as usize % SLOTS).map(|target| usize::from(*target))
    }

    /// The next target of the rotation.
    #[inline]
    pub(crate) fn in_turn(&mut self) -> Option<usize> {
        let target = *self.turns.get(self.turn)?;
        self.turn = if self.turn + 1 == self.turns.len() { 0 } else { self.turn + 1 };
        Some(usize::from(target))
    }
}

fn winner(slot: usize, targets: &[(u8, &Target)]) -> Option<u8> {
    let score = |target: &Target| {
        // A fixed key, so that load balancers with the same flow key select alike.
        let mut hasher = DefaultHasher::new();
        (target.role.as_str(), slot).hash(&mut hasher);
        let draw = ((hasher.finish() >> 12) as f64 + 0.5) / (1u64 << 52) as f64;
        f64::from(target.weight) / -draw.ln()
    };
    let scores = targets.iter().map(|(n, target)| (*n, score(target)));
    scores.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(n, _)| n)
}

/// Smooth weighted round robin: in each turn all targets gain their weight, and the target with the highest total is
/// next and pays the sum of the weights.
fn round(targets: &[(u8, &Target)]) -> Vec<u8> {
    let total: i32 = targets.iter().map(|(_, target)| i32::from(target.weight)).sum();
    let mut credit = vec![0; targets.len()];
    let mut turn = || {
        for (credit, (_, target)) in credit.iter_mut().zip(targets) {
            *credit += i32::from(target.weight);
        }
        let richest = (0..targets.len()).rev().max_by_key(|n| credit[*n])?;
        credit[richest] -= total;
        Some(targets[richest].0)
    };
    (0..total).filter_map(|_| turn()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn targets(weights: &[u16]) -> Vec<Target> {
        weights
            .iter()
            .enumerate()
            .map(|(n, weight)| Target { role: format!("role{n}"), weight: *weight })
            .collect()
    }

    #[test]
    fn slots_are_shared_by_weight() {
        let spread = Spread::new(&targets(&[3, 1, 4]), |_| true);
        for (n, share) in [(0, 3.0 / 8.0), (1, 1.0 / 8.0), (2, 4.0 / 8.0)] {
            let slots = spread.slots.iter().filter(|slot| **slot == n).count() as f64;
            // Five standard deviations of a binomial distribution.
            let (mean, deviation) = (4096.0 * share, f64::sqrt(4096.0 * share * (1.0 - share)));
            assert!((slots - mean).abs() < 5.0 * deviation, "{n}: {slots} of {mean}");
        }
    }

    #[test]
    fn turns_are_as_many_as_the_weights_and_far_apart() {
        let mut spread = Spread::new(&targets(&[5, 1, 1]), |_| true);
        let turns: Vec<_> = (0..14).filter_map(|_| spread.in_turn()).collect();
        assert_eq!(turns, [0, 0, 1, 0, 2, 0, 0, 0, 0, 1, 0, 2, 0, 0]);
    }

    #[test]
    fn without_targets_nothing_is_selected() {
        let mut spread = Spread::new(&targets(&[1, 2]), |_| false);
        assert_eq!((spread.by_hash(7), spread.in_turn()), (None, None));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn only_the_slots_of_a_removed_target_move(weights in prop::collection::vec(1u16..=100, 2..8), lost in any::<prop::sample::Index>()) {
            let targets = targets(&weights);
            let lost = lost.index(targets.len());
            let (all, fewer) = (Spread::new(&targets, |_| true), Spread::new(&targets, |n| n != lost));
            for hash in 0..SLOTS as u64 {
                let (before, after) = (all.by_hash(hash), fewer.by_hash(hash));
                prop_assert_ne!(after, Some(lost));
                prop_assert!(before == after || before == Some(lost), "{before:?} {after:?}");
            }
            let turns = |spread: &Spread, n: usize| spread.turns.iter().filter(|turn| usize::from(**turn) == n).count();
            for (n, weight) in weights.iter().enumerate() {
                prop_assert_eq!(turns(&all, n), usize::from(*weight));
            }
        }
    }
}
