// SPDX-License-Identifier: Apache-2.0
//! Sets of ports, one for each port or VLAN of a bridge.
//!
//! A set has as many words as the highest port of the bridge needs: one on a small host, 16 on the largest.

/// Bits of a word.
const BITS: usize = 64;

/// Sets of the same size, by number.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct PortSets {
    words: usize,
    bits: Box<[u64]>,
}

/// One set: a bit for each port.
#[derive(Clone, Copy)]
pub(crate) struct PortSet<'a>(&'a [u64]);

impl PortSets {
    /// `sets` empty sets of ports below `ports`.
    pub fn new(sets: usize, ports: usize) -> Self {
        let words = ports.div_ceil(BITS);
        Self { words, bits: vec![0; sets * words].into() }
    }

    /// Adds a port to a set. Ignores invalid numbers.
    pub fn insert(&mut self, set: usize, port: u16) {
        let port = usize::from(port);
        let word = self.bits.get_mut(set * self.words + port / BITS).filter(|_| port / BITS < self.words);
        if let Some(word) = word {
            *word |= 1 << (port % BITS);
        }
    }

    /// The set with this number; the empty one, if there is none.
    #[inline]
    pub fn get(&self, set: usize) -> PortSet<'_> {
        let first = set * self.words;
        PortSet(self.bits.get(first..first + self.words).unwrap_or_default())
    }
}

impl PortSet<'_> {
    /// Whether the set contains a port.
    #[inline]
    pub fn contains(self, port: u16) -> bool {
        let port = usize::from(port);
        self.0.get(port / BITS).is_some_and(|word| word >> (port % BITS) & 1 != 0)
    }
}

impl<'a> PortSet<'a> {
    /// The ports from `first` on that are in both sets, in ascending order.
    #[inline]
    pub fn common(self, other: Self, first: u16) -> impl Iterator<Item = u16> + 'a {
        ports_of(self.0.iter().zip(other.0).map(|(word, other)| word & other), first)
    }

    /// The same, of those that are in a third set, too.
    #[inline]
    pub fn common_to_three(self, others: [Self; 2], first: u16) -> impl Iterator<Item = u16> + 'a {
        let [second, third] = others;
        let all = self.0.iter().zip(second.0).zip(third.0);
        ports_of(all.map(|((word, second), third)| word & second & third), first)
    }
}

/// The ports from `first` on whose bits are set in these words.
#[inline]
fn ports_of<'a>(words: impl Iterator<Item = u64> + 'a, first: u16) -> impl Iterator<Item = u16> + 'a {
    let (skipped, below) = (usize::from(first) / BITS, (1 << (usize::from(first) % BITS)) - 1);
    let words = (0..).zip(words).skip(skipped).map(move |(number, word): (u16, u64)| {
        (number, if usize::from(number) == skipped { word & !below } else { word })
    });
    words.filter(|(_, word)| *word != 0).flat_map(|(number, word)| {
        let rest = |word: &u64| Some(word & (word - 1)).filter(|rest| *rest != 0);
        std::iter::successors(Some(word), rest)
            .map(move |word| number * BITS as u16 + word.trailing_zeros() as u16)
    })
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn ports() -> impl Strategy<Value = BTreeSet<u16>> {
        prop::collection::btree_set(0..1024u16, 0..60)
    }

    proptest! {
        #[test]
        fn behave_like_btree_sets(first in ports(), second in ports(), from in 0..1100u16) {
            let highest = first.iter().chain(&second).max().map_or(0, |port| usize::from(*port) + 1);
            let mut sets = PortSets::new(3, highest);
            first.iter().for_each(|port| sets.insert(0, *port));
            second.iter().for_each(|port| sets.insert(2, *port));
            for (number, ports) in [(0, &first), (1, &BTreeSet::new()), (2, &second), (3, &BTreeSet::new())] {
                prop_assert!((0..1100).all(|port| sets.get(number).contains(port) == ports.contains(&port)));
                prop_assert_eq!(
                    sets.get(number).common(sets.get(number), 0).collect::<Vec<_>>(),
                    ports.iter().copied().collect::<Vec<_>>()
                );
            }
            prop_assert_eq!(
                sets.get(0).common(sets.get(2), from).collect::<Vec<_>>(),
                first.intersection(&second).copied().filter(|port| *port >= from).collect::<Vec<_>>()
            );
            let three = |third: usize| {
                sets.get(0).common_to_three([sets.get(2), sets.get(third)], from).collect::<Vec<_>>()
            };
            prop_assert_eq!(three(0), sets.get(0).common(sets.get(2), from).collect::<Vec<_>>());
            prop_assert!(three(1).is_empty());
        }
    }

    #[test]
    fn invalid_numbers_are_ignored() {
        let mut sets = PortSets::new(2, 100);
        let empty = sets.clone();
        sets.insert(0, 128);
        sets.insert(2, 1);
        assert!(sets == empty);
        assert!(PortSets::new(2, 0).get(0).common(sets.get(1), 0).next().is_none());
    }
}
