//! A hash index of fixed size: from hashes to numbers, by linear probing without tombstones.

use netvm_flow_table::{NoMemory, Table};

/// Numbers by hash. At most half of its places are in use, so that probes are short.
pub(crate) struct Index {
    /// Hash above number; [`FREE`] for a free place.
    places: Table<u64>,
    mask: u32,
}

const FREE: u64 = u64::MAX;

const fn number_of(place: u64) -> u32 {
    place as u32
}

const fn hash_of(place: u64) -> u32 {
    (place >> 32) as u32
}

impl Index {
    /// For at most `most` numbers, each less than `u32::MAX`.
    pub(crate) fn new(most: u32) -> Result<Self, NoMemory> {
        let order = most.max(1).next_power_of_two().trailing_zeros() + 1;
        Ok(Self { places: Table::try_new(FREE, order)?, mask: ((1u64 << order) - 1) as u32 })
    }

    /// Prefetches the place of a hash.
    pub(crate) fn prefetch(&self, hash: u32) {
        self.places.prefetch(hash as usize, 0);
    }

    /// The first number with this hash that `is_it` accepts.
    pub(crate) fn find(&self, hash: u32, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let mut at = hash;
        loop {
            match *self.places.at(at as usize) {
                FREE => return None,
                place if hash_of(place) == hash && is_it(number_of(place)) => return Some(number_of(place)),
                _ => at = at.wrapping_add(1),
            }
        }
    }

    pub(crate) fn insert(&mut self, hash: u32, number: u32) {
        let mut at = hash;
        while *self.places.at(at as usize) != FREE {
            at = at.wrapping_add(1);
        }
        *self.places.at_mut(at as usize) = u64::from(hash) << 32 | u64::from(number);
    }

    pub(crate) fn remove(&mut self, hash: u32, number: u32) {
        let wanted = u64::from(hash) << 32 | u64::from(number);
        let mut at = hash;
        loop {
            match *self.places.at(at as usize) {
                FREE => return,
                place if place == wanted => break,
                _ => at = at.wrapping_add(1),
            }
        }
        self.close_gap(at);
    }

    /// Moves entries back that a free place would hide.
    fn close_gap(&mut self, gap: u32) {
        let (mut gap, mut at) = (gap, gap);
        loop {
            at = at.wrapping_add(1);
            let place = *self.places.at(at as usize);
            if place == FREE {
                break;
            }
            // How far the entry is from where its search begins, and from the gap.
            let from_start = at.wrapping_sub(hash_of(place)) & self.mask;
            let from_gap = at.wrapping_sub(gap) & self.mask;
            if from_start >= from_gap {
                *self.places.at_mut(gap as usize) = place;
                gap = at;
            }
        }
        *self.places.at_mut(gap as usize) = FREE;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_has_what_a_set_has(steps in prop::collection::vec((any::<bool>(), 0u32..12, 0u32..6), 0..300)) {
            let (mut index, mut set) = (Index::new(32).unwrap(), BTreeSet::new());
            for (adds, number, spread) in steps {
                // Few hashes, some of which wrap.
                let hash = (u32::MAX - 2).wrapping_add(spread);
                if adds && set.len() < 32 && set.insert((hash, number)) {
                    index.insert(hash, number);
                } else if !adds && set.remove(&(hash, number)) {
                    index.remove(hash, number);
                }
                for spread in 0..6 {
                    let hash = (u32::MAX - 2).wrapping_add(spread);
                    for number in 0..12 {
                        let found = index.find(hash, |it| it == number).is_some();
                        prop_assert_eq!(found, set.contains(&(hash, number)));
                    }
                }
            }
        }
    }
}
