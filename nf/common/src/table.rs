// SPDX-License-Identifier: Apache-2.0
//! A bounded table with least-recently-used eviction.
//!
//! All slots are allocated at the start; operations take constant time on average and do not allocate. A randomly keyed
//! hash selects a chain of slots; a list orders the slots by last use. Time is any monotonic number; NFs use cycles.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

use rapidhash::quality::RandomState;

/// A hash map with a fast hash and a random key.
pub type FastMap<K, V> = HashMap<K, V, RandomState>;

const NIL: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Slot<K, V> {
    /// `None` if the slot is free.
    entry: Option<(K, V)>,
    used: u64,
    /// Next slot of the chain or of the free list.
    next: u32,
    newer: u32,
    older: u32,
}

/// A map of at most `capacity` entries, ordered by last use.
#[derive(Clone, Debug)]
pub struct LruTable<K, V> {
    slots: Vec<Slot<K, V>>,
    chains: Box<[u32]>,
    hasher: RandomState,
    capacity: usize,
    free: u32,
    newest: u32,
    oldest: u32,
    length: usize,
}

impl<K: Copy + Eq + Hash, V> LruTable<K, V> {
    /// A table of at most `capacity` entries, at least one.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(1, NIL as usize - 1);
        Self {
            slots: Vec::with_capacity(capacity),
            chains: vec![NIL; capacity.next_power_of_two()].into_boxed_slice(),
            hasher: RandomState::new(),
            capacity,
            free: NIL,
            newest: NIL,
            oldest: NIL,
            length: 0,
        }
    }

    /// Number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether the table is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The entry of `key`; marks it as used.
    #[inline]
    pub fn get(&mut self, key: &K, now: u64) -> Option<&mut V> {
        let index = self.find(self.chain_of(key), key)?;
        self.touch(index, now);
        self.slots[index as usize].entry.as_mut().map(|(_, value)| value)
    }

    /// The time of last use and the entry of `key`; does not mark it as used.
    #[must_use]
    pub fn peek(&self, key: &K) -> Option<(u64, &V)> {
        let index = self.find(self.chain_of(key), key)?;
        let slot = &self.slots[index as usize];
        slot.entry.as_ref().map(|(_, value)| (slot.used, value))
    }

    /// Inserts or replaces an entry, as used now. Returns the evicted entry if the table was full.
    pub fn insert(&mut self, key: K, value: V, now: u64) -> Option<(K, V)> {
        let chain = self.chain_of(&key);
        if let Some(index) = self.find(chain, &key) {
            self.slots[index as usize].entry = Some((key, value));
            self.touch(index, now);
            return None;
        }
        let evicted = if self.length == self.capacity { self.pop_oldest() } else { None };
        let slot =
            Slot { entry: Some((key, value)), used: now, next: self.chains[chain], newer: NIL, older: NIL };
        let index = self.free;
        let index = if index == NIL {
            self.slots.push(slot);
            self.slots.len() as u32 - 1
        } else {
            self.free = self.slots[index as usize].next;
            self.slots[index as usize] = slot;
            index
        };
        self.chains[chain] = index;
        self.link_newest(index);
        self.length += 1;
        evicted
    }

    /// Removes an entry.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let index = self.find(self.chain_of(key), key)?;
        self.take(index).map(|(_, value)| value)
    }

    /// Removes the least recently used entry.
    pub fn pop_oldest(&mut self) -> Option<(K, V)> {
        if self.oldest == NIL { None } else { self.take(self.oldest) }
    }

    /// Removes the least recently used entry if it was last used before `since`. Repeat until `None` to expire idle
    /// entries.
    pub fn pop_unused_since(&mut self, since: u64) -> Option<(K, V)> {
        let oldest = self.slots.get(self.oldest as usize)?;
        if oldest.used < since { self.take(self.oldest) } else { None }
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.chains.fill(NIL);
        (self.free, self.newest, self.oldest, self.length) = (NIL, NIL, NIL, 0);
    }

    /// Entries, most recently used first.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let slot = |index: u32| self.slots.get(index as usize);
        let list = std::iter::successors(slot(self.newest), move |newer| slot(newer.older));
        list.filter_map(|slot| slot.entry.as_ref().map(|(key, value)| (key, value)))
    }

    /// Visits a large table in parts: the entries of `count` slots from slot `from` on, unordered, and the next slot,
    /// `None` at the end. An entry that stays in the table occurs once.
    pub fn part(&self, from: usize, count: usize) -> (impl Iterator<Item = (&K, &V)>, Option<usize>) {
        let end = from.saturating_add(count).min(self.slots.len());
        let slots = self.slots.get(from..end).unwrap_or_default();
        let entries = slots.iter().filter_map(|slot| slot.entry.as_ref().map(|(key, value)| (key, value)));
        (entries, (end < self.slots.len()).then_some(end))
    }

    #[inline]
    fn chain_of(&self, key: &K) -> usize {
        self.hasher.hash_one(key) as usize & (self.chains.len() - 1)
    }

    #[inline]
    fn find(&self, chain: usize, key: &K) -> Option<u32> {
        let mut index = self.chains[chain];
        while let Some(slot) = self.slots.get(index as usize) {
            if slot.entry.as_ref().is_some_and(|(other, _)| other == key) {
                return Some(index);
            }
            index = slot.next;
        }
        None
    }

    #[inline]
    fn touch(&mut self, index: u32, now: u64) {
        self.slots[index as usize].used = now;
        if self.newest != index {
            self.unlink(index);
            self.link_newest(index);
        }
    }

    fn take(&mut self, index: u32) -> Option<(K, V)> {
        let entry = self.slots[index as usize].entry.take()?;
        let chain = self.chain_of(&entry.0);
        let next = self.slots[index as usize].next;
        if self.chains[chain] == index {
            self.chains[chain] = next;
        } else {
            let mut before = self.chains[chain];
            while self.slots[before as usize].next != index {
                before = self.slots[before as usize].next;
            }
            self.slots[before as usize].next = next;
        }
        self.unlink(index);
        self.slots[index as usize].next = self.free;
        self.free = index;
        self.length -= 1;
        Some(entry)
    }

    fn unlink(&mut self, index: u32) {
        let (newer, older) = (self.slots[index as usize].newer, self.slots[index as usize].older);
        match self.slots.get_mut(newer as usize) {
            Some(slot) => slot.older = older,
            None => self.newest = older,
        }
        match self.slots.get_mut(older as usize) {
            Some(slot) => slot.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn link_newest(&mut self, index: u32) {
        let older = self.newest;
        let slot = &mut self.slots[index as usize];
        (slot.newer, slot.older) = (NIL, older);
        match self.slots.get_mut(older as usize) {
            Some(slot) => slot.newer = index,
            None => self.oldest = index,
        }
        self.newest = index;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reference model: a list in the order of use.
    #[derive(Default)]
    struct Model {
        capacity: usize,
        /// Oldest first: key, value, time of last use.
        entries: Vec<(u8, u32, u64)>,
    }

    impl Model {
        fn position(&self, key: u8) -> Option<usize> {
            self.entries.iter().position(|entry| entry.0 == key)
        }

        fn get(&mut self, key: u8, now: u64) -> Option<u32> {
            let entry = self.entries.remove(self.position(key)?);
            self.entries.push((key, entry.1, now));
            Some(entry.1)
        }

        fn insert(&mut self, key: u8, value: u32, now: u64) -> Option<(u8, u32)> {
            let known = self.position(key).map(|at| self.entries.remove(at));
            let full = known.is_none() && self.entries.len() == self.capacity;
            let evicted = full.then(|| self.entries.remove(0)).map(|entry| (entry.0, entry.1));
            self.entries.push((key, value, now));
            evicted
        }

        fn pop_unused_since(&mut self, since: u64) -> Option<(u8, u32)> {
            let due = self.entries.first().is_some_and(|entry| entry.2 < since);
            due.then(|| self.entries.remove(0)).map(|entry| (entry.0, entry.1))
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Get(u8),
        Insert(u8, u32),
        Remove(u8),
        Expire(u64),
        Clear,
    }

    fn step() -> impl Strategy<Value = Step> {
        let key = 0u8..24;
        prop_oneof![
            4 => key.clone().prop_map(Step::Get),
            6 => (key.clone(), any::<u32>()).prop_map(|(key, value)| Step::Insert(key, value)),
            2 => key.prop_map(Step::Remove),
            1 => (0u64..12).prop_map(Step::Expire),
            1 => Just(Step::Clear),
        ]
    }

    proptest! {
        #[test]
        fn behaves_as_a_list_in_the_order_of_use(
            capacity in 1usize..16, steps in prop::collection::vec(step(), 1..200),
        ) {
            let mut table = LruTable::new(capacity);
            let mut model = Model { capacity, ..Model::default() };
            for (now, step) in (100..).zip(steps) {
                match step {
                    Step::Get(key) => prop_assert_eq!(table.get(&key, now).copied(), model.get(key, now)),
                    Step::Insert(key, value) => {
                        prop_assert_eq!(table.insert(key, value, now), model.insert(key, value, now));
                    }
                    Step::Remove(key) => {
                        let expected = model.position(key).map(|at| model.entries.remove(at).1);
                        prop_assert_eq!(table.remove(&key), expected);
                    }
                    Step::Expire(age) => loop {
                        let expected = model.pop_unused_since(now - age);
                        prop_assert_eq!(table.pop_unused_since(now - age), expected);
                        if expected.is_none() {
                            break;
                        }
                    },
                    Step::Clear => {
                        table.clear();
                        model.entries.clear();
                    }
                }
                let expected: Vec<_> = model.entries.iter().rev().map(|entry| (entry.0, entry.1)).collect();
                let entries: Vec<_> = table.iter().map(|(key, value)| (*key, *value)).collect();
                prop_assert_eq!(&entries, &expected);
                prop_assert_eq!((table.len(), table.is_empty()), (model.entries.len(), model.entries.is_empty()));
                let (mut parts, mut from) = (Vec::new(), Some(0));
                while let Some(start) = from {
                    let (part, next) = table.part(start, 3);
                    parts.extend(part.map(|(key, value)| (*key, *value)));
                    from = next;
                }
                parts.sort_unstable();
                let mut sorted = expected.clone();
                sorted.sort_unstable();
                prop_assert_eq!(parts, sorted);
                for entry in &model.entries {
                    prop_assert_eq!(table.peek(&entry.0), Some((entry.2, &entry.1)));
                }
            }
        }
    }

    #[test]
    fn a_full_table_allocates_no_more() {
        let mut table = LruTable::new(1000);
        for key in 0..5000u32 {
            table.insert(key, (), u64::from(key));
        }
        assert_eq!((table.len(), table.slots.len(), table.slots.capacity()), (1000, 1000, 1000));
        assert!(table.peek(&4000).is_some() && table.peek(&3999).is_none());
    }
}
