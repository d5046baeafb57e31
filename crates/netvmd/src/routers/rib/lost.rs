// SPDX-License-Identifier: Apache-2.0
//! Neighbours that the kernel knew a while ago. In: neighbours that come and go. Out: whether one was known, so that
//! the packets by which it is learned again do not compete with those of a scan.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// Most neighbours that are remembered: as many as a kernel's table has by default.
const MAX_LOST: usize = 1024;

/// A neighbour's address, and the index of its interface.
type Key = (IpAddr, u32);

/// Neighbours that were lost; of too many, those of late.
#[derive(Debug, Default)]
pub struct LostNeighbours {
    /// With the number of the loss.
    all: BTreeMap<Key, u64>,
    /// In the order of their losses, with some that were found meanwhile.
    order: VecDeque<(u64, Key)>,
    last: u64,
}

impl LostNeighbours {
    /// Remembers a neighbour; returns one that is forgotten for it.
    pub fn add(&mut self, key: Key) -> Option<Key> {
        self.last += 1;
        self.all.insert(key, self.last);
        self.order.push_back((self.last, key));
        let mut forgotten = None;
        while self.order.len() > MAX_LOST {
            let Some((number, key)) = self.order.pop_front() else { break };
            if self.all.get(&key) == Some(&number) {
                self.all.remove(&key);
                forgotten = Some(key);
            }
        }
        forgotten
    }

    /// Forgets a neighbour that is known again.
    pub fn remove(&mut self, key: Key) {
        self.all.remove(&key);
    }

    /// Whether a neighbour was lost.
    pub fn has(&self, key: Key) -> bool {
        self.all.contains_key(&key)
    }

    /// Whether a neighbour with this address was lost on any interface.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.all.range((address, 0)..=(address, u32::MAX)).next().is_some()
    }

    /// The addresses in a range.
    pub fn inside(&self, range: &RangeInclusive<IpAddr>) -> impl Iterator<Item = IpAddr> {
        let keys = self.all.range((*range.start(), 0)..=(*range.end(), u32::MAX));
        keys.map(|((address, _), _)| *address)
    }

    /// All addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.all.keys().map(|(address, _)| *address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_neighbours_lost_of_late_are_remembered() {
        let key = |n: u32| (IpAddr::from((0x0a00_0000 | n).to_be_bytes()), 2);
        let mut lost = LostNeighbours::default();
        assert!((0..MAX_LOST as u32).all(|n| lost.add(key(n)).is_none()));
        lost.remove(key(0));
        // What was found needs no other to be forgotten.
        assert_eq!(lost.add(key(5000)), None);
        assert_eq!(lost.add(key(5001)), Some(key(1)));
        // Lost again, so it is not the next to be forgotten.
        lost.add(key(3));
        assert_eq!(lost.add(key(5002)), None);
        assert!(lost.has(key(3)) && lost.has_address(key(3).0) && !lost.has(key(2)) && !lost.has(key(1)));
        // One that comes and goes all the time takes the place of few others.
        for _ in 0..10 * MAX_LOST {
            lost.add(key(7));
            lost.remove(key(7));
        }
        assert!(lost.order.len() <= MAX_LOST);
    }
}
