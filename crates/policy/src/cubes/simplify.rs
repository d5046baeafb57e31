// SPDX-License-Identifier: Apache-2.0
//! Simplifies sets of values.

use crate::span::{Masked, Span};

/// Merges ranges that overlap or touch; sorted. Inverted ranges are empty.
pub(crate) fn spans<T: Copy + Ord + Into<u32>>(set: impl IntoIterator<Item = Span<T>>) -> Vec<Span<T>> {
    let mut set: Vec<Span<T>> = set.into_iter().filter(|span| span.first <= span.last).collect();
    set.sort_unstable_by_key(|span| span.first);
    let mut out: Vec<Span<T>> = Vec::with_capacity(set.len());
    for span in set {
        match out.last_mut() {
            Some(top) if span.first.into() <= top.last.into() + 1 => top.last = top.last.max(span.last),
            _ => out.push(span),
        }
    }
    out
}

/// Which pairs of equal masks may merge.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Join {
    /// Those that differ in the mask's last bit: prefixes stay prefixes.
    Prefixes,
    /// Those that differ in any one bit.
    Masks,
}

/// Removes contained elements and merges neighbours. The result is minimal for prefixes, and correct for other masks.
pub(crate) fn masked(set: impl IntoIterator<Item = Masked<u128>>, join: Join) -> Vec<Masked<u128>> {
    let mut set: Vec<Masked<u128>> = set.into_iter().filter(|one| one.value & !one.mask == 0).collect();
    // A prefix sorts directly before all that it covers.
    set.sort_unstable_by_key(|one| (one.value, one.mask));
    let mut out: Vec<Masked<u128>> = Vec::with_capacity(set.len());
    for one in set {
        if out.last().is_some_and(|top| top.covers(&one)) {
            continue;
        }
        out.push(one);
        while let [.., a, b] = out[..] {
            let Some(both) = joined(a, b, join) else { break };
            out.truncate(out.len() - 2);
            out.push(both);
        }
    }
    out
}

fn joined(a: Masked<u128>, b: Masked<u128>, join: Join) -> Option<Masked<u128>> {
    let bit = a.value ^ b.value;
    let last = a.mask & a.mask.wrapping_neg();
    let may = a.mask == b.mask && bit.is_power_of_two() && (join == Join::Masks || bit == last);
    may.then(|| Masked::<u128>::new(a.value, a.mask & !bit))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn neighbours_merge() {
        let span = |first: u16, last| Span { first, last };
        assert_eq!(spans([span(80, 90), span(443, 443), span(91, 100), span(65_535, 65_535)]).len(), 3);
        assert_eq!(spans([span(1, 65_535), span(0, 0)]), [span(0, 65_535)]);
        assert_eq!(spans([span(2, 1)]), []);
        let net =
            |value: u128, length: u32| Masked::<u128>::new(value, u32::MAX.unbounded_shl(32 - length).into());
        let ten = 10 << 24;
        assert_eq!(
            masked([net(ten, 9), net(ten | 1 << 23, 9), net(ten | 5, 32)], Join::Prefixes),
            [net(ten, 8)]
        );
        assert_eq!(masked([net(1 << 31, 1), net(0, 1)], Join::Prefixes), [Masked::<u128>::ANY]);
    }

    proptest! {
        #[test]
        fn ranges_hold_the_same_values(set in vec((0u8..60, 0u8..60), 0..8)) {
            let set: Vec<_> = set.into_iter().map(|(first, last)| Span { first, last }).collect();
            let values = |set: &[Span<u8>]| (0..=255).filter(|n| set.iter().any(|s| s.contains(*n))).collect::<Vec<u8>>();
            let out = spans(set.clone());
            prop_assert_eq!(values(&out), values(&set));
            prop_assert!(out.windows(2).all(|pair| pair[0].last + 1 < pair[1].first));
        }

        #[test]
        fn masks_hold_the_same_values(set in vec((0u128..64, 0u128..64), 0..8)) {
            let set: Vec<_> = set.into_iter().map(|(value, mask)| Masked::<u128>::new(value, mask)).collect();
            check(&set, Join::Masks)?;
        }

        #[test]
        fn prefixes_stay_prefixes(set in vec((0u128..64, 0u32..=6), 0..8)) {
            let set: Vec<_> = set.into_iter().map(|(value, n)| Masked::<u128>::new(value, 63 & 63 << n)).collect();
            let out = check(&set, Join::Prefixes)?;
            prop_assert!(out.iter().all(|one| (one.mask | one.mask.wrapping_sub(1)) & 63 == 63 || one.mask == 0));
        }
    }

    fn check(set: &[Masked<u128>], join: Join) -> Result<Vec<Masked<u128>>, TestCaseError> {
        let values = |set: &[Masked<u128>]| {
            (0..64).filter(|n| set.iter().any(|one| one.contains(*n))).collect::<BTreeSet<_>>()
        };
        let out = masked(set.iter().copied(), join);
        prop_assert_eq!(values(&out), values(set));
        prop_assert!(out.len() <= set.len());
        Ok(out)
    }
}
