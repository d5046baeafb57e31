// SPDX-License-Identifier: Apache-2.0
//! [`Exceptions`]: connections that another worker has than the hash of one of their directions says.
//!
//! ```text
//!  hash of both ends, with a random key ──▶ one of two lines of eight entries: [ tag: 56 bits │ worker + 1: 8 bits ]
//! ```
//!
//! Workers add and remove entries by compare-and-swap, and read without a lock. A packet that has the tag of another
//! connection by chance (one in 2^52) goes to a worker that does not know it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use netvm_flow_table::NoMemory;

/// Entries of a line.
const WAYS: usize = 8;
const WORKER: u64 = 0xff;
const FREE: u64 = 0;

#[derive(Default)]
#[repr(align(64))]
struct Line([AtomicU64; WAYS]);

/// See the module.
pub(crate) struct Exceptions {
    /// A power of two.
    lines: Box<[Line]>,
    count: AtomicU32,
}

impl Exceptions {
    /// For so many connections.
    pub(crate) fn new(most: u32) -> Result<Self, NoMemory> {
        // Two thirds are in use at most, so that one of two lines has room.
        let count = (most as usize * 3 / 2).div_ceil(WAYS).max(1).next_power_of_two();
        let mut lines = Vec::new();
        let bytes = count.saturating_mul(size_of::<Line>());
        lines.try_reserve_exact(count).map_err(|_| NoMemory { bytes })?;
        lines.resize_with(count, Line::default);
        Ok(Self { lines: lines.into(), count: AtomicU32::new(0) })
    }

    pub(crate) fn len(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The lines where an entry with this hash can be.
    fn lines(&self, hash: u64) -> [&Line; 2] {
        [hash, hash >> 32].map(|place| &self.lines[place as usize & (self.lines.len() - 1)])
    }

    /// The entries of both.
    fn entries(&self, hash: u64) -> impl Iterator<Item = &AtomicU64> {
        self.lines(hash).into_iter().flat_map(|line| &line.0)
    }

    /// Gives the connection with this hash to a worker. Returns false if there is no room, or another one has it. Of
    /// two workers that add it at once, at most one succeeds.
    pub(crate) fn add(&self, hash: u64, worker: u8) -> bool {
        if self.owner(hash).is_some() {
            return false;
        }
        let entry = hash & !WORKER | (u64::from(worker) + 1);
        let take = |place: &AtomicU64| {
            place.load(Ordering::Relaxed) == FREE
                && place.compare_exchange(FREE, entry, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        };
        // The emptier one first.
        let free = |line: &Line| line.0.iter().filter(|place| place.load(Ordering::Relaxed) == FREE).count();
        let [one, other] = self.lines(hash);
        let [emptier, fuller] = if free(one) >= free(other) { [one, other] } else { [other, one] };
        if !emptier.0.iter().chain(&fuller.0).any(take) {
            return false;
        }
        self.count.fetch_add(1, Ordering::SeqCst);
        let is_same = |place: &&AtomicU64| (place.load(Ordering::SeqCst) ^ entry) & !WORKER == 0;
        let is_alone = self.entries(hash).filter(is_same).count() <= self.times(hash);
        if !is_alone {
            self.remove(hash, worker);
        }
        is_alone
    }

    /// How often an entry is among [`Exceptions::entries`].
    fn times(&self, hash: u64) -> usize {
        let mask = self.lines.len() as u64 - 1;
        if hash & mask == hash >> 32 & mask { 2 } else { 1 }
    }

    /// Undoes one [`Exceptions::add`], if there was one.
    pub(crate) fn remove(&self, hash: u64, worker: u8) {
        let entry = hash & !WORKER | (u64::from(worker) + 1);
        let free = |place: &AtomicU64| {
            place.load(Ordering::Relaxed) == entry
                && place.compare_exchange(entry, FREE, Ordering::Release, Ordering::Relaxed).is_ok()
        };
        let is_removed = self.entries(hash).any(free);
        self.count.fetch_sub(u32::from(is_removed), Ordering::Release);
    }

    /// The worker of connections with this hash.
    pub(crate) fn owner(&self, hash: u64) -> Option<u8> {
        let entries = self.entries(hash).map(|place| place.load(Ordering::Acquire));
        let mut same = entries.filter(|entry| *entry != FREE && (entry ^ hash) & !WORKER == 0);
        same.next().map(|entry| (entry & WORKER) as u8 - 1)
    }
}

#[cfg(test)]
mod tests {
    use netvm_wire::FlowHasher;

    use super::*;

    #[test]
    fn a_connection_has_one_entry() {
        let exceptions = Exceptions::new(1).unwrap();
        assert!(exceptions.add(1 << 20, 0) && !exceptions.add(1 << 20, 1) && !exceptions.add(1 << 20, 0));
        exceptions.remove(1 << 20, 0);
        assert!(exceptions.add(1 << 20, 1));
        assert_eq!((exceptions.owner(1 << 20), exceptions.len()), (Some(1), 1));
    }

    #[test]
    fn of_workers_that_add_the_same_one_at_once_one_has_it() {
        let exceptions = Exceptions::new(64).unwrap();
        let rounds = |worker: u8| {
            (0..2000u64)
                .filter(|n| {
                    exceptions.add((n % 8 + 1) << 20, worker) && {
                        assert_eq!(exceptions.owner((n % 8 + 1) << 20), Some(worker));
                        exceptions.remove((n % 8 + 1) << 20, worker);
                        true
                    }
                })
                .count()
        };
        let added: usize = std::thread::scope(|scope| {
            let threads = [0, 1].map(|worker| scope.spawn(move || rounds(worker)));
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!(added > 0 && exceptions.is_empty());
    }

    #[test]
    fn entries_come_and_go() {
        let exceptions = Exceptions::new(10_000).unwrap();
        let hashes = |n: u64| FlowHasher::with_key(1).words([n; 5]);
        let added: Vec<u64> = (0..10_000).map(hashes).collect();
        assert!(
            added.iter().all(|hash| exceptions.add(*hash, 31)),
            "there is room for as many as were asked for"
        );
        assert!(added.iter().all(|hash| exceptions.owner(*hash) == Some(31)));
        assert_eq!(exceptions.owner(hashes(10_000)), None);
        exceptions.remove(added[0], 30);
        assert_eq!(exceptions.owner(added[0]), Some(31), "of another worker");
        added.iter().for_each(|hash| exceptions.remove(*hash, 31));
        assert!(exceptions.is_empty() && added.iter().all(|hash| exceptions.owner(*hash).is_none()));
    }
}
