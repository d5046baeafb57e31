// SPDX-License-Identifier: Apache-2.0
//! A [`LruTable`] that the threads of an NF share.

use std::hash::{BuildHasher, Hash};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rapidhash::quality::RandomState;

use crate::LruTable;

/// Number of parts of a [`SharedTable`].
const PARTS: usize = 16;
/// Entries of a part that expire while its lock is held.
const EXPIRED_AT_ONCE: usize = 256;

/// An [`LruTable`] that threads share, in parts with a lock each, held during a lookup. Clones share the table. Each
/// part has its own order of use and evictions.
#[derive(Debug)]
pub struct SharedTable<K, V> {
    parts: Arc<[Mutex<LruTable<K, V>>]>,
    hasher: RandomState,
}

impl<K, V> Clone for SharedTable<K, V> {
    fn clone(&self) -> Self {
        Self { parts: Arc::clone(&self.parts), hasher: self.hasher }
    }
}

impl<K: Copy + Eq + Hash, V> SharedTable<K, V> {
    /// A table of at most `capacity` entries, rounded up to a multiple of the number of parts.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let part = || Mutex::new(LruTable::new(capacity.div_ceil(PARTS)));
        Self { parts: (0..PARTS).map(|_| part()).collect(), hasher: RandomState::new() }
    }

    /// The part of `key`.
    pub fn part_of(&self, key: &K) -> MutexGuard<'_, LruTable<K, V>> {
        self.part(self.hasher.hash_one(key))
    }

    /// The part of a key with this hash, in a table in which all parts are found by hashes of the caller. An attacker
    /// must not be able to choose them.
    pub fn part(&self, hash: u64) -> MutexGuard<'_, LruTable<K, V>> {
        Self::lock(&self.parts[hash as usize % PARTS])
    }

    /// Removes entries that were last used before `since`, a bounded number at a time, as other threads wait for the
    /// locks. Returns the number that remain.
    pub fn expire(&self, since: u64) -> usize {
        let left = |mut part: MutexGuard<'_, LruTable<K, V>>| {
            for _ in 0..EXPIRED_AT_ONCE {
                if part.pop_unused_since(since).is_none() {
                    break;
                }
            }
            part.len()
        };
        self.parts().map(left).sum()
    }

    /// All parts in turn.
    pub fn parts(&self) -> impl Iterator<Item = MutexGuard<'_, LruTable<K, V>>> {
        self.parts.iter().map(Self::lock)
    }

    /// After a panic the part may be inconsistent, but not unsound; the NF ends anyway.
    fn lock(part: &Mutex<LruTable<K, V>>) -> MutexGuard<'_, LruTable<K, V>> {
        part.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_a_table_of_bounded_size() {
        let table = SharedTable::new(160);
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let table = table.clone();
                scope.spawn(move || {
                    for key in thread * 1000..thread * 1000 + 500 {
                        table.part_of(&key).insert(key, thread, 0);
                    }
                });
            }
        });
        let held: Vec<_> =
            table.parts().flat_map(|part| part.iter().map(|(k, v)| (*k, *v)).collect::<Vec<_>>()).collect();
        assert!(held.len() > 100 && held.len() <= 160, "{}", held.len());
        for (key, thread) in held {
            assert_eq!((key / 1000, table.part_of(&key).peek(&key)), (thread, Some((0, &thread))));
        }
    }

    #[test]
    fn entries_expire_in_all_parts_a_bounded_number_at_a_time() {
        let table = SharedTable::new(16 * 1000);
        for hash in 0..16 * 400u64 {
            table.part(hash).insert(hash, (), hash % 2);
        }
        assert_eq!(table.expire(0), 16 * 400, "all were used at 0 or later");
        assert_eq!(table.expire(2), 16 * (400 - EXPIRED_AT_ONCE));
        assert_eq!(table.expire(2), 0);
    }
}
