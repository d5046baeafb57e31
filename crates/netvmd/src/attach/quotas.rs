// SPDX-License-Identifier: Apache-2.0
//! How many connections of the attach socket each user may have. In: a connection and its user. Out: a permit, or none.
//!
//! Every user may connect. So those who may attach as no role have few places of their own together, however many they
//! are, and root has a reserve. An attached NF counts, until its connection is closed for good.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::runtime::lock;

/// Most connections of a user that are in their handshake or closing. netvmd closes further ones.
const HANDSHAKES_OF_EACH: usize = 16;
/// Most connections, attached ones included.
const CONNECTIONS: usize = 512;
/// Of them, only for root.
const RESERVE: usize = 64;
/// Most connections of users who may attach as no role.
const UNLISTED: usize = 64;
/// Most connections of users who are being looked up.
const UNDECIDED: usize = 256;

/// What is known of a connection's user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    Root,
    /// May attach as some role.
    Expected,
    /// May attach as no role.
    Unlisted,
    /// Is being looked up.
    Undecided,
}

#[derive(Debug, Default)]
struct Table {
    connections: BTreeMap<Class, usize>,
    /// Connections that are not attached, by user.
    handshakes: BTreeMap<u32, usize>,
    /// Users who could attach as some role when they connected last.
    expected: BTreeSet<u32>,
}

/// The quotas of an attach socket.
#[derive(Debug, Default)]
pub(super) struct Quotas(Mutex<Table>);

/// Counts a connection until dropped.
#[derive(Debug)]
pub(super) struct Permit {
    quotas: Arc<Quotas>,
    uid: u32,
    class: Mutex<Class>,
    /// Whether it counts as a handshake of its user.
    is_handshake: AtomicBool,
}

impl Table {
    fn has_room(&self, class: Class) -> bool {
        let count = |class| self.connections.get(&class).copied().unwrap_or_default();
        match class {
            Class::Root => count(Class::Root) + count(Class::Expected) < CONNECTIONS,
            Class::Expected => count(Class::Root) + count(Class::Expected) < CONNECTIONS - RESERVE,
            Class::Unlisted => count(Class::Unlisted) < UNLISTED,
            Class::Undecided => count(Class::Undecided) < UNDECIDED,
        }
    }
}

fn decrement<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl Quotas {
    /// A permit for a new connection; `None` if its user has too many, or others like it.
    pub(super) fn begin(self: &Arc<Self>, uid: u32) -> Option<Permit> {
        let mut table = lock(&self.0);
        let class = match uid {
            0 => Class::Root,
            uid if table.expected.contains(&uid) => Class::Expected,
            _ => Class::Undecided,
        };
        let handshakes = table.handshakes.get(&uid).copied().unwrap_or_default();
        if handshakes >= HANDSHAKES_OF_EACH || !table.has_room(class) {
            return None;
        }
        *table.handshakes.entry(uid).or_default() += 1;
        *table.connections.entry(class).or_default() += 1;
        Some(Permit {
            quotas: Arc::clone(self),
            uid,
            class: Mutex::new(class),
            is_handshake: AtomicBool::new(true),
        })
    }
}

impl Permit {
    /// Says whether the user may attach as some role; `false` if there are too many like it.
    pub(super) fn decide(&self, is_expected: bool) -> bool {
        let mut class = lock(&self.class);
        let decided = match (*class, is_expected) {
            (Class::Root, _) => return true,
            (_, true) => Class::Expected,
            (_, false) => Class::Unlisted,
        };
        let mut table = lock(&self.quotas.0);
        if is_expected {
            table.expected.insert(self.uid);
        } else {
            table.expected.remove(&self.uid);
        }
        if *class == decided {
            return true;
        }
        let has_room = table.has_room(decided);
        if has_room {
            decrement(&mut table.connections, &*class);
            *table.connections.entry(decided).or_default() += 1;
            *class = decided;
        }
        has_room
    }

    /// The NF is attached, so the connection is no handshake of its user any more.
    pub(super) fn attached(&self) {
        if self.is_handshake.swap(false, Ordering::Relaxed) {
            decrement(&mut lock(&self.quotas.0).handshakes, &self.uid);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.attached();
        let class = *lock(&self.class);
        decrement(&mut lock(&self.quotas.0).connections, &class);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_users_leave_room_for_root_and_configured_ones() {
        let quotas = Arc::new(Quotas::default());
        let mut silent = Vec::new();
        for uid in 100_000..100_070 {
            for _ in 0..HANDSHAKES_OF_EACH {
                let permit = quotas.begin(uid).filter(|permit| permit.decide(false));
                silent.extend(permit);
            }
        }
        assert_eq!(silent.len(), UNLISTED);
        let configured = quotas.begin(1000).unwrap();
        assert!(configured.decide(true));
        let root: Vec<_> = (0..HANDSHAKES_OF_EACH).map(|_| quotas.begin(0).unwrap()).collect();
        assert!(root.iter().all(|permit| permit.decide(false)));
        assert!(quotas.begin(0).is_none(), "handshakes have a limit for each user");
        root[0].attached();
        assert!(quotas.begin(0).is_some());
        // While users cannot be looked up, root and those who are known still have their places.
        let slow: Vec<_> = (0..1000).filter_map(|n| quotas.begin(200_000 + n)).collect();
        assert_eq!(slow.len(), UNDECIDED);
        assert!(quotas.begin(1000).is_some() && quotas.begin(0).is_some());
        drop((silent, root, slow, configured));
        let table = lock(&quotas.0);
        assert!(table.connections.is_empty() && table.handshakes.is_empty());
    }

    #[test]
    fn configured_users_leave_a_reserve_for_root() {
        let quotas = Arc::new(Quotas::default());
        let attach = |uid| {
            let permit = quotas.begin(uid).filter(|permit| permit.decide(true))?;
            permit.attached();
            Some(permit)
        };
        let attached: Vec<_> = (0..1000).filter_map(|_| attach(1000)).collect();
        assert_eq!(attached.len(), CONNECTIONS - RESERVE);
        let root: Vec<_> = (0..1000).filter_map(|_| attach(0)).collect();
        assert_eq!(root.len(), RESERVE);
    }
}
