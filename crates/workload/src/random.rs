// SPDX-License-Identifier: Apache-2.0
//! Pseudo-random numbers, the same on every machine.

/// SplitMix64 (G. L. Steele, D. Lea, C. H. Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

/// The increment of SplitMix64, 2^64 divided by the golden ratio.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    /// Numbers of this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// A number below `end`; 0 if `end` is 0.
    pub const fn below(&mut self, end: u64) -> u64 {
        // The upper half of the product, as D. Lemire's Fast Random Integer Generation in an Interval (2019), section
        // 3.
        ((self.bits() as u128 * end as u128) >> 64) as u64
    }

    /// A number from `first` to `last`, both included.
    pub const fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// True in `share` of 1,000 cases.
    pub const fn per_mille(&mut self, share: u64) -> bool {
        self.below(1000) < share
    }

    /// An entry of the list, each as often as its weight says. The list must not be empty.
    pub fn weighted<'a, T>(&mut self, list: &'a [(T, u32)]) -> &'a T {
        let mut left = self.below(list.iter().map(|(_, weight)| u64::from(*weight)).sum());
        let mut entries = list.iter();
        let last = entries.next_back();
        for (entry, weight) in entries {
            match left.checked_sub(u64::from(*weight)) {
                Some(less) => left = less,
                None => return entry,
            }
        }
        last.map_or_else(|| unreachable!("the list is not empty"), |(entry, _)| entry)
    }

    /// An entry of a slice that is not empty.
    pub const fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len() as u64) as usize]
    }

    /// Random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.bits().to_le_bytes()[..part.len()]);
        }
        bytes
    }
}

/// A hash of a number.
pub(crate) const fn mix(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs for seed 0 of the authors' reference implementation (splitmix64.c).
    #[test]
    fn numbers_are_those_of_the_reference() {
        let mut random = Random::new(0);
        assert_eq!([random.bits(), random.bits()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
    }

    #[test]
    fn weights_are_shares() {
        let mut random = Random::new(1);
        let list = [('a', 1), ('b', 0), ('c', 3)];
        let drawn: Vec<char> = (0..4000).map(|_| *random.weighted(&list)).collect();
        let count = |it: char| drawn.iter().filter(|other| **other == it).count();
        assert_eq!(count('b'), 0);
        assert!((900..1100).contains(&count('a')), "{}", count('a'));
        assert!((0..100).all(|_| (3..=5).contains(&random.between(3, 5))));
    }
}
