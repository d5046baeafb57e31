// SPDX-License-Identifier: Apache-2.0
//! Moves queues from an overloaded worker to one that has time. In: the loads, once a second. Out: at most one move.
//!
//! A queue moves if its worker has been busy for over [`OVERLOAD_THRESHOLD`] for [`OVERLOAD_SECONDS`] seconds, another
//! worker of its NUMA node would be clearly less busy with it, and no queue has moved for [`MIN_MOVE_INTERVAL`]. Ports
//! whose configuration names a worker stay, as do ports that follow another port and ports that have a queue on each
//! worker.

use std::time::{Duration, Instant};

use super::load::Loads;
use super::{Move, Placement};
use crate::ids::{PortId, WorkerId};

/// A worker that is busy for more thousandths of its time is overloaded.
const OVERLOAD_THRESHOLD: u32 = 900;
/// A move has to make the busier of the two workers less busy by so many thousandths.
const MIN_GAIN: u32 = 150;
/// Seconds for which a worker has to be overloaded.
const OVERLOAD_SECONDS: u8 = 3;
/// Time between two moves.
const MIN_MOVE_INTERVAL: Duration = Duration::from_secs(5);

/// What is known of overloaded workers.
#[derive(Debug, Default)]
pub(crate) struct Balance {
    /// By worker: seconds for which it has been overloaded.
    overloaded: Vec<u8>,
    last: Option<Instant>,
}

impl Balance {
    /// The next move, if one is worth while. `movable`: ports of which a queue may move.
    pub(crate) fn next(&mut self, placement: &Placement, loads: &Loads, movable: &[PortId]) -> Option<Move> {
        let workers = placement.nodes.len();
        self.overloaded.resize(workers, 0);
        for (n, seconds) in self.overloaded.iter_mut().enumerate() {
            let is_busy = loads.of_worker(WorkerId(n as u8)) > OVERLOAD_THRESHOLD;
            *seconds = if is_busy { seconds.saturating_add(1) } else { 0 };
        }
        if self.last.is_some_and(|last| last.elapsed() < MIN_MOVE_INTERVAL) {
            return None;
        }
        let all = || (0..workers as u8).map(WorkerId);
        let overloaded = all().filter(|worker| self.overloaded[worker.index()] >= OVERLOAD_SECONDS);
        let from = overloaded.max_by_key(|worker| loads.of_worker(*worker))?;
        let node = placement.nodes[from.index()];
        let others = all().filter(|worker| *worker != from && placement.nodes[worker.index()] == node);
        let to = others.min_by_key(|worker| loads.of_worker(*worker))?;
        let (busy, free) = (loads.of_worker(from), loads.of_worker(to));
        // The load of the busier of the two afterwards.
        let after = |port: PortId| {
            let queues = placement.queues_of(port, from).max(1) as u32;
            let load = loads.of_port(port, from) / queues;
            (load > 0).then(|| (busy.saturating_sub(load)).max(free + load))
        };
        let candidates = movable.iter().filter(|port| placement.queues_of(**port, from) > 0);
        let (port, load) =
            candidates.filter_map(|port| Some((*port, after(*port)?))).min_by_key(|(_, load)| *load)?;
        (load + MIN_GAIN <= busy).then_some(Move { port, from, to })
    }

    /// Notes that a move was tried.
    pub(crate) fn tried(&mut self) {
        self.last = Some(Instant::now());
        self.overloaded.clear();
    }
}
