// SPDX-License-Identifier: Apache-2.0
//! Sets of numbers as sorted ranges, for intersection and complement.

/// Disjoint, non-adjacent ranges in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<(u128, u128)>);

impl Ranges {
    /// A range; `first` must not exceed `last`.
    pub(crate) fn one(first: u128, last: u128) -> Self {
        Self([(first, last)].into())
    }

    /// One value.
    pub(crate) fn single(value: u128) -> Self {
        Self::one(value, value)
    }

    /// All numbers from 0 to `highest`.
    pub(crate) fn all(highest: u128) -> Self {
        Self::one(0, highest)
    }

    /// The union of ranges.
    pub(crate) fn union(ranges: impl IntoIterator<Item = (u128, u128)>) -> Self {
        let mut sorted: Vec<_> = ranges.into_iter().collect();
        sorted.sort_unstable();
        let mut joined: Vec<(u128, u128)> = Vec::with_capacity(sorted.len());
        for (first, last) in sorted {
            match joined.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => joined.push((first, last)),
            }
        }
        Self(joined)
    }

    /// The ranges.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u128, u128)> + '_ {
        self.0.iter().copied()
    }

    /// Whether the set is empty.
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The complement within 0 to `highest`.
    pub(crate) fn complement(&self, highest: u128) -> Self {
        let mut gaps = Vec::with_capacity(self.0.len() + 1);
        let mut next = Some(0);
        for (first, last) in self.iter() {
            if let Some(start) = next
                && start < first
                && start <= highest
            {
                gaps.push((start, (first - 1).min(highest)));
            }
            next = last.checked_add(1);
        }
        if let Some(start) = next
            && start <= highest
        {
            gaps.push((start, highest));
        }
        Self(gaps)
    }

    /// The intersection.
    pub(crate) fn intersect(&self, other: &Self) -> Self {
        let (mut left, mut right) = (self.iter().peekable(), other.iter().peekable());
        let mut common = Vec::new();
        while let (Some(a), Some(b)) = (left.peek().copied(), right.peek().copied()) {
            let (first, last) = (a.0.max(b.0), a.1.min(b.1));
            if first <= last {
                common.push((first, last));
            }
            let _ = if a.1 < b.1 { left.next() } else { right.next() };
        }
        Self(common)
    }

    /// The fewest prefixes (value, length) of `bits`-bit numbers with the same values.
    pub(crate) fn prefixes(&self, bits: u8) -> Vec<(u128, u8)> {
        let mut prefixes = Vec::new();
        for (mut first, last) in self.iter() {
            loop {
                // The largest aligned block that starts at `first` and ends within the range.
                let mut free = (first.trailing_zeros() as u8).min(bits);
                while first | block(free) > last {
                    free -= 1;
                }
                prefixes.push((first, bits - free));
                match (first | block(free)).checked_add(1) {
                    Some(next) if next <= last => first = next,
                    _ => break,
                }
            }
        }
        prefixes
    }
}

/// Ones in the lowest bits.
const fn block(bits: u8) -> u128 {
    if bits == 0 { 0 } else { u128::MAX >> (128 - bits as u32) }
}

/// First and last number of a prefix of `bits`-bit numbers; bits of `value` beyond the length are ignored.
pub(crate) const fn prefix_range(value: u128, length: u8, bits: u8) -> (u128, u128) {
    let free = block(bits.saturating_sub(length));
    (value & !free, value | free)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(values: &[u8]) -> Ranges {
        Ranges::union(values.iter().map(|value| (u128::from(*value), u128::from(*value))))
    }

    fn values(ranges: &Ranges) -> Vec<u8> {
        ranges.iter().flat_map(|(first, last)| first as u8..=last as u8).collect()
    }

    #[test]
    fn the_smallest_and_largest_numbers_work() {
        let all = Ranges::all(u128::MAX);
        assert!(all.complement(u128::MAX).is_empty());
        assert_eq!(all.prefixes(128), [(0, 0)]);
        assert_eq!(Ranges::single(u128::MAX).complement(u128::MAX), Ranges::one(0, u128::MAX - 1));
        assert_eq!(Ranges::single(u128::MAX).prefixes(128), [(u128::MAX, 128)]);
        assert_eq!(Ranges::union([(0, u128::MAX), (5, 6)]), all);
        assert_eq!(Ranges::union([]).complement(7), Ranges::all(7));
        assert_eq!(Ranges::one(5, 20).complement(7), Ranges::one(0, 4));
        assert_eq!(Ranges::one(10, 20).complement(7), Ranges::one(0, 7));
        assert_eq!(prefix_range(0x0a01_0203, 8, 32), (0x0a00_0000, 0x0aff_ffff));
        assert_eq!(prefix_range(1, 0, 128), (0, u128::MAX));
    }

    proptest! {
        /// Compares with sets of bytes.
        #[test]
        fn they_are_sets(a: Vec<u8>, b: Vec<u8>) {
            let in_both = (0..=255).filter(|value| a.contains(value) && b.contains(value));
            prop_assert_eq!(values(&of(&a).intersect(&of(&b))), in_both.collect::<Vec<u8>>());
            let outside = (0..=255).filter(|value| !a.contains(value));
            prop_assert_eq!(values(&of(&a).complement(255)), outside.collect::<Vec<u8>>());
            let prefixes = of(&a).prefixes(8);
            let covered = Ranges::union(prefixes.iter().map(|(value, length)| prefix_range(*value, *length, 8)));
            prop_assert_eq!(covered, of(&a));
        }
    }
}
