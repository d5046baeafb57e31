//! Two versions of a router's tables: workers read one while the other is written ("left-right", Ramalhete and Correia,
//! 2013, with reference counts in place of read indicators).
//!
//! ```text
//!  publish   spare has no reader any more: bring it up to date, hand it out; the one before becomes the spare
//!            it has one still: keep what was said for the next time
//! ```
//!
//! Memory is what two tables need, and nothing waits for anybody: a reader that keeps a version for long only keeps later
//! changes from being seen.

use std::mem;
use std::sync::Arc;

use crate::tables::Tables;
use crate::update::Update;

/// The tables of one router, as the control plane has them.
#[derive(Default)]
pub struct Versions {
    live: Arc<Tables>,
    spare: Arc<Tables>,
    /// What the live one has and the spare one has not.
    behind: Update,
    /// What neither has.
    waiting: Update,
}

impl Versions {
    /// Without routes: everything is punted.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What was handed out last.
    #[must_use]
    pub fn live(&self) -> &Arc<Tables> {
        &self.live
    }

    /// Takes an update, and hands out a version with everything that was said so far, for readers to change over to.
    /// `None` when there is nothing new, and when readers still hold the version before the last: then what was said
    /// waits ([`Versions::is_waiting`]) for the next call, which may be one with an empty update.
    ///
    /// Readers of a version must let go of it after they got the next; the last reader to drop it frees no table.
    pub fn publish(&mut self, update: Update) -> Option<Arc<Tables>> {
        self.waiting.merge(update);
        let tables = Arc::get_mut(&mut self.spare)?;
        // Also without anything new, as what it is behind by takes memory.
        tables.apply(&mem::take(&mut self.behind));
        if self.waiting.is_empty() {
            return None;
        }
        tables.apply(&self.waiting);
        self.behind = mem::take(&mut self.waiting);
        mem::swap(&mut self.live, &mut self.spare);
        Some(Arc::clone(&self.live))
    }

    /// Whether something that was said is in no version yet, as readers hold the one that it is to go into.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
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
        tables.look_up_v4(&[0x0a00_0001, 0x0b00_0001, 0x0c00_0001], &mut found);
        found.map(|id| id.0)
    }

    #[test]
    fn what_is_held_does_not_change_and_nothing_said_is_lost() {
        let mut versions = Versions::new();
        let first = versions.publish(update(&[("10.0.0.0/8", 1)])).unwrap();
        let second = versions.publish(update(&[("11.0.0.0/8", 2)])).unwrap();
        assert_eq!((ids(&first), ids(&second)), ([1, 0, 0], [1, 2, 0]));
        // The first is held still: there is nowhere to write.
        assert!(versions.publish(update(&[("12.0.0.0/8", 3), ("10.0.0.0/8", 4)])).is_none());
        assert!(versions.publish(update(&[("12.0.0.0/8", 5)])).is_none());
        assert!(versions.is_waiting());
        assert_eq!((ids(&first), ids(&second)), ([1, 0, 0], [1, 2, 0]));
        drop(first);
        let third = versions.publish(Update::default()).unwrap();
        assert_eq!((ids(&second), ids(&third)), ([1, 2, 0], [4, 2, 5]));
        assert!(!versions.is_waiting());
        drop(second);
        assert!(versions.publish(Update::default()).is_none());
        assert_eq!(ids(versions.live()), [4, 2, 5]);
        let fourth = versions.publish(update(&[("11.0.0.0/8", 6)])).unwrap();
        assert_eq!(ids(&fourth), [4, 6, 5]);
    }

    /// Two routes that always change together are never seen apart, whatever the writer does meanwhile.
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
