//! Sets of ports.

use std::fmt;
use std::ops::{BitAnd, BitAndAssign};

use crate::fdb::MAX_PORTS;

const WORDS: usize = 4;

/// A set of ports: one bit for each possible port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PortSet([u64; WORDS]);

impl PortSet {
    /// The empty set.
    pub const EMPTY: Self = Self([0; WORDS]);
    /// Every port.
    pub const ALL: Self = Self([u64::MAX; WORDS]);

    /// Adds a port. Ignores invalid port numbers.
    pub fn insert(&mut self, port: u16) {
        if let Some(word) = self.0.get_mut(usize::from(port / 64)) {
            *word |= 1 << (port % 64);
        }
    }

    /// Removes a port.
    pub fn remove(&mut self, port: u16) {
        if let Some(word) = self.0.get_mut(usize::from(port / 64)) {
            *word &= !(1 << (port % 64));
        }
    }

    /// Whether the set contains a port.
    #[inline]
    #[must_use]
    pub fn contains(self, port: u16) -> bool {
        self.0.get(usize::from(port / 64)).is_some_and(|word| word >> (port % 64) & 1 != 0)
    }

    /// Number of ports in the set.
    #[must_use]
    pub fn len(self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether the set is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::EMPTY
    }

    /// The ports in ascending order.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = u16> {
        (0..).zip(self.0).flat_map(|(number, word)| {
            let rest = |word: &u64| Some(word & (word - 1)).filter(|rest| *rest != 0);
            std::iter::successors(Some(word).filter(|word| *word != 0), rest)
                .map(move |word| number * 64 + word.trailing_zeros() as u16)
        })
    }
}

const _: () = assert!(cfg!(loom) || WORDS * 64 == MAX_PORTS);

impl BitAnd for PortSet {
    type Output = Self;

    #[inline]
    fn bitand(mut self, other: Self) -> Self {
        self &= other;
        self
    }
}

impl BitAndAssign for PortSet {
    #[inline]
    fn bitand_assign(&mut self, other: Self) {
        for (word, other) in self.0.iter_mut().zip(other.0) {
            *word &= other;
        }
    }
}

impl FromIterator<u16> for PortSet {
    fn from_iter<I: IntoIterator<Item = u16>>(ports: I) -> Self {
        let mut set = Self::EMPTY;
        ports.into_iter().for_each(|port| set.insert(port));
        set
    }
}

impl fmt::Debug for PortSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn ports() -> impl Strategy<Value = BTreeSet<u16>> {
        prop::collection::btree_set(0..256u16, 0..60)
    }

    proptest! {
        #[test]
        fn behaves_like_a_btree_set(ports in ports(), others in ports()) {
            let set = |ports: &BTreeSet<u16>| ports.iter().copied().collect::<PortSet>();
            prop_assert_eq!(set(&ports).iter().collect::<Vec<_>>(), ports.iter().copied().collect::<Vec<_>>());
            prop_assert!((0..1000).all(|port| set(&ports).contains(port) == ports.contains(&port)));
            prop_assert_eq!(set(&ports).len() as usize, ports.len());
            prop_assert_eq!(set(&ports).is_empty(), ports.is_empty());
            prop_assert_eq!(set(&ports) & set(&others), set(&ports.intersection(&others).copied().collect()));
            let mut without = set(&ports);
            others.iter().for_each(|port| without.remove(*port));
            prop_assert_eq!(without, set(&ports.difference(&others).copied().collect()));
        }
    }

    #[test]
    fn invalid_ports_are_ignored() {
        let mut set = PortSet::ALL;
        set.insert(256);
        set.remove(300);
        assert_eq!((set, set.len()), (PortSet::ALL, 256));
    }
}
