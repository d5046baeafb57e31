// SPDX-License-Identifier: Apache-2.0
//! Heavy hitters: Space-Saving (Metwally, Agrawal, El Abbadi, Efficient computation of frequent and top-k elements in
//! data streams, ICDT 2005), with weights. With m counters and a total weight W, each count is at most W / m too high
//! and never too low, and every key of more than W / m is there.

use std::collections::HashMap;
use std::hash::Hash;

use rapidhash::quality::RandomState;

/// A key and what is known of its weight: `count - error` to `count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hitter<K> {
    /// The key.
    pub key: K,
    /// Its weight, or more.
    pub count: u64,
    /// By how much `count` is too high at most.
    pub error: u64,
}

/// Counts the heaviest keys of a stream in bounded memory.
#[derive(Clone, Debug)]
pub struct SpaceSaving<K> {
    /// A heap: the lightest first.
    heap: Vec<Hitter<K>>,
    places: HashMap<K, usize, RandomState>,
    counters: usize,
    total: u64,
}

impl<K: Copy + Eq + Hash + Ord> SpaceSaving<K> {
    /// With so many counters, at least one.
    #[must_use]
    pub fn new(counters: usize) -> Self {
        let counters = counters.max(1);
        let places = HashMap::with_capacity_and_hasher(counters + 1, RandomState::new());
        Self { heap: Vec::with_capacity(counters), places, counters, total: 0 }
    }

    /// Adds weight to a key.
    pub fn add(&mut self, key: K, weight: u64) {
        self.total = self.total.saturating_add(weight);
        if let Some(place) = self.places.get(&key).copied() {
            if let Some(hitter) = self.heap.get_mut(place) {
                hitter.count = hitter.count.saturating_add(weight);
            }
            self.sink(place);
        } else if self.heap.len() < self.counters {
            self.heap.push(Hitter { key, count: weight, error: 0 });
            self.places.insert(key, self.heap.len() - 1);
            self.rise(self.heap.len() - 1);
        } else if let Some(lightest) = self.heap.first_mut() {
            self.places.remove(&lightest.key);
            let error = lightest.count;
            *lightest = Hitter { key, count: error.saturating_add(weight), error };
            self.places.insert(key, 0);
            self.sink(0);
        }
    }

    /// Adds what another sketch knows of its keys.
    pub fn merge(&mut self, other: &Self) {
        for Hitter { key, count, error } in &other.heap {
            self.add(*key, *count);
            let place = self.places.get(key).copied();
            if let Some(hitter) = place.and_then(|place| self.heap.get_mut(place)) {
                hitter.error = hitter.error.saturating_add(*error);
            }
        }
    }

    /// Weight of all keys.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// The bound of every error: the total divided by the number of counters.
    #[must_use]
    pub const fn bound(&self) -> u64 {
        self.total / self.counters as u64
    }

    /// The heaviest `count` keys, heaviest first.
    #[must_use]
    pub fn top(&self, count: usize) -> Vec<Hitter<K>> {
        let mut all = self.heap.clone();
        all.sort_unstable_by_key(|hitter| (std::cmp::Reverse(hitter.count), hitter.key));
        all.truncate(count);
        all
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        for place in [a, b] {
            if let Some(hitter) = self.heap.get(place) {
                self.places.insert(hitter.key, place);
            }
        }
    }

    fn count_at(&self, place: usize) -> u64 {
        self.heap.get(place).map_or(u64::MAX, |hitter| hitter.count)
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let (left, right) = (2 * place + 1, 2 * place + 2);
            let child = if self.count_at(right) < self.count_at(left) { right } else { left };
            if self.count_at(place) <= self.count_at(child) {
                return;
            }
            self.swap(place, child);
            place = child;
        }
    }

    fn rise(&mut self, mut place: usize) {
        while place > 0 && self.count_at(place) < self.count_at((place - 1) / 2) {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against exact counts: the bounds hold for every key.
        #[test]
        fn errors_are_within_the_bound(
            stream in prop::collection::vec((0u8..60, 0u64..1000), 0..400),
            counters in 1usize..40,
        ) {
            let mut sketch = SpaceSaving::new(counters);
            let mut exact: HashMap<u8, u64> = HashMap::new();
            for (key, weight) in stream {
                sketch.add(key, weight);
                *exact.entry(key).or_default() += weight;
            }
            let total: u64 = exact.values().sum();
            prop_assert_eq!((sketch.total(), sketch.bound()), (total, total / counters as u64));
            let top = sketch.top(usize::MAX);
            for hitter in &top {
                let truth = exact[&hitter.key];
                prop_assert!(truth <= hitter.count && hitter.count - hitter.error <= truth);
                prop_assert!(hitter.error <= sketch.bound());
            }
            for (key, truth) in exact {
                prop_assert!(truth <= sketch.bound() || top.iter().any(|hitter| hitter.key == key));
            }
            prop_assert!(top.is_sorted_by_key(|hitter| std::cmp::Reverse(hitter.count)));
        }
    }
}
