// SPDX-License-Identifier: Apache-2.0
//! Two versions of a router's tables: workers read one while the control plane writes the other ("left-right",
//! Ramalhete and Correia, 2013, with reference counts instead of read indicators).
//!
//! ```text
//!  publish   the spare has no reader: apply the pending updates and publish it; the live version becomes the spare
//!            the spare still has a reader: keep the update for the next call
//! ```
//!
//! It costs the memory of two tables, and nothing blocks: a reader that keeps a version only delays later updates.

use std::mem;
use std::sync::Arc;

use crate::tables::Tables;
use crate::update::Update;

/// Control plane side of one router's tables.
#[derive(Default)]
pub struct Versions {
    live: Arc<Tables>,
    spare: Arc<Tables>,
    /// Updates in the live version that the spare lacks.
    spare_lag: Update,
    /// Updates in neither version.
    pending: Update,
}

impl Versions {
    /// Empty tables, which punt every packet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The version published last.
    #[must_use]
    pub fn live(&self) -> &Arc<Tables> {
        &self.live
    }

    /// Takes an update and publishes a version with all updates so far. Returns `None` if nothing is new, or if readers
    /// still hold the version before the last; then the updates stay pending ([`Versions::has_pending`]) until the next
    /// call, whose own update may be empty.
    ///
    /// A reader must drop its version after it has the next one. Dropping a version frees no table.
    pub fn publish(&mut self, update: Update) -> Option<Arc<Tables>> {
        self.pending.merge(update);
        let tables = Arc::get_mut(&mut self.spare)?;
        // Also without a new update, as the lag itself takes memory.
        tables.apply(&mem::take(&mut self.spare_lag));
        if self.pending.is_empty() {
            return None;
        }
        tables.apply(&self.pending);
        self.spare_lag = mem::take(&mut self.pending);
        mem::swap(&mut self.live, &mut self.spare);
        Some(Arc::clone(&self.live))
    }

    /// Whether updates are in no version yet because readers hold the spare.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Bytes of both versions.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.live.memory() + self.spare.memory()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::next_hop::NextHopId;

    fn update(routes: &[(&str, u16)]) -> Update {
        let routes = routes.iter().map(|(net, id)| (net.parse().unwrap(), Some(NextHopId(*id))));
        Update { routes: routes.collect(), ..Update::default() }
    }

    fn ids(tables: &Tables) -> [u16; 3] {
        let mut found = [NextHopId::PUNT; 3];
        tables.lookup_v4(&[0x0a00_0001, 0x0b00_0001, 0x0c00_0001], &mut found);
        found.map(|id| id.0)
    }

    #[test]
    fn held_versions_do_not_change_and_no_update_is_lost() {
        let mut versions = Versions::new();
        let first = versions.publish(update(&[("10.0.0.0/8", 1)])).unwrap();
        let second = versions.publish(update(&[("11.0.0.0/8", 2)])).unwrap();
        assert_eq!((ids(&first), ids(&second)), ([1, 0, 0], [1, 2, 0]));
        // A reader still holds the first version, so there is no spare to write.
        assert!(versions.publish(update(&[("12.0.0.0/8", 3), ("10.0.0.0/8", 4)])).is_none());
        assert!(versions.publish(update(&[("12.0.0.0/8", 5)])).is_none());
        assert!(versions.has_pending());
        assert_eq!((ids(&first), ids(&second)), ([1, 0, 0], [1, 2, 0]));
        drop(first);
        let third = versions.publish(Update::default()).unwrap();
        assert_eq!((ids(&second), ids(&third)), ([1, 2, 0], [4, 2, 5]));
        assert!(!versions.has_pending());
        drop(second);
        assert!(versions.publish(Update::default()).is_none());
        assert_eq!(ids(versions.live()), [4, 2, 5]);
        let fourth = versions.publish(update(&[("11.0.0.0/8", 6)])).unwrap();
        assert_eq!(ids(&fourth), [4, 6, 5]);
    }

    /// Readers always see two routes that change together in the same state.
    #[test]
    fn readers_see_whole_updates() {
        let mut versions = Versions::new();
        let stop = Arc::new(AtomicBool::new(false));
        let (to_reader, from_writer) = mpsc::channel::<Arc<Tables>>();
        let reader = thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                let mut last = 0;
                let mut tables = from_writer.recv().unwrap();
                while !stop.load(Ordering::Relaxed) {
                    if let Some(newer) = from_writer.try_iter().last() {
                        tables = newer;
                    }
                    let [a, b, c] = ids(&tables);
                    assert!(a == b && b == c && a >= last, "{a} {b} {c} after {last}");
                    last = a;
                }
                tables
            }
        });
        let all = |id| update(&[("10.0.0.0/8", id), ("11.0.0.0/16", id), ("12.0.0.0/24", id)]);
        let mut handed = 0;
        for id in 1..=2000 {
            match versions.publish(all(id)) {
                Some(tables) => {
                    to_reader.send(tables).unwrap();
                    handed += 1;
                }
                None => thread::yield_now(),
            }
        }
        stop.store(true, Ordering::Relaxed);
        let tables = reader.join().unwrap();
        assert!(handed >= 2);
        drop((tables, to_reader));
        versions.publish(Update::default());
        assert_eq!(ids(versions.live()), [2000; 3]);
    }
}
