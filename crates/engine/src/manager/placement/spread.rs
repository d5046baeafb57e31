// SPDX-License-Identifier: Apache-2.0
//! Queues for workers that were added, and other workers for the queues of those that are to end. In: the placement and
//! the measured load. Out: moves, one after the other.

use std::ops::Range;

use super::load::Loads;
use super::request::Request;
use super::{Move, Placement};
use crate::ids::{PortId, WorkerId};

impl Placement {
    /// Adds a worker on a NUMA node.
    pub(crate) fn add(&mut self, node: u32) {
        self.nodes.push(node);
    }

    /// Gives no more queues to workers from this number on.
    pub(crate) fn truncate(&mut self, workers: usize) {
        self.nodes.truncate(workers);
    }

    /// The moves after which new workers have about as many queues as the others of their NUMA nodes. `movable`: ports
    /// of which a queue may move.
    pub(crate) fn spread(&self, new: Range<usize>, loads: &Loads, movable: &[PortId]) -> Vec<Move> {
        let (mut after, mut moves) = (self.clone(), Vec::new());
        loop {
            let mut takers: Vec<WorkerId> = new.clone().map(|worker| WorkerId(worker as u8)).collect();
            takers.sort_by_key(|worker| after.queues(*worker));
            let next = takers.into_iter().find_map(|to| after.next_onto(to, loads, movable));
            let Some(next) = next else { return moves };
            after.moved(next);
            moves.push(next);
        }
    }

    /// The next move to a new worker; `None` if it has as many queues as others.
    fn next_onto(&self, to: WorkerId, loads: &Loads, movable: &[PortId]) -> Option<Move> {
        let node = |worker: WorkerId| self.nodes.get(worker.index());
        let candidates = |from: WorkerId| movable.iter().filter(move |port| self.queues_of(**port, from) > 0);
        let fuller = (0..self.nodes.len() as u8).map(WorkerId).filter(|from| {
            let has_more = self.queues(*from) >= self.queues(to) + 2;
            has_more && node(*from) == node(to) && candidates(*from).next().is_some()
        });
        let from = fuller.max_by_key(|from| (self.queues(*from), loads.of_worker(*from)))?;
        // Half of the difference in load is what both have the same with.
        let wanted = loads.of_worker(from).saturating_sub(loads.of_worker(to)) / 2;
        let queue_of = |port: PortId| loads.of_port(port, from) / self.queues_of(port, from).max(1) as u32;
        let port = candidates(from).copied().min_by_key(|port| {
            let is_only = self.queues_of(*port, from) < 2;
            (queue_of(*port).abs_diff(wanted), is_only, *port)
        })?;
        Some(Move { port, from, to })
    }

    /// The move of a queue of one of these ports from a worker that is to end; `None` if no such worker has one. A port
    /// that follows another one goes to that one's worker. `regions`: by worker, its memory.
    pub(crate) fn next_off(&self, requests: &[Request], loads: &Loads, regions: &[u8]) -> Option<Move> {
        let is_to_end = |worker: &WorkerId| worker.index() >= self.nodes.len();
        let from = |port| self.workers_of(port).iter().copied().find(is_to_end);
        // Those that follow come last.
        let mut requests: Vec<&Request> = requests.iter().collect();
        requests.sort_by_key(|request| request.with.is_some());
        let (request, from) = requests.iter().find_map(|request| Some((*request, from(request.port)?)))?;
        let leader = request.with.and_then(|port| self.workers_of(port).first().copied());
        let best = || {
            let all = (0..self.nodes.len() as u8).map(WorkerId);
            let near = all.filter(|to| regions.get(to.index()) == regions.get(from.index()));
            near.min_by_key(|to| {
                (self.queues_of(request.port, *to), self.queues(*to), loads.of_worker(*to), *to)
            })
        };
        let to = leader.filter(|worker| !is_to_end(worker)).or_else(best)?;
        Some(Move { port: request.port, from, to })
    }
}
