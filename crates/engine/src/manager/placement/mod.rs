// SPDX-License-Identifier: Apache-2.0
//! Placement: the worker of each rx queue. In: requests of ports that are about to open, and the measured load. Out:
//! for each port, the workers of its queues.
//!
//! Ports that name a worker come first, then the others in the order of the configuration, then ports that share
//! another port's worker. Each queue gets the worker with the fewest queues of the same port, then the least load in
//! steps of [`MIN_LOAD_DIFFERENCE`], then the fewest queues; then the one that it had, then the first. Only workers on
//! the port's NUMA node are candidates, if there are any. Nothing here is random, and a start knows no load: the same
//! configuration always has the same workers.

pub(crate) mod balance;
pub(crate) mod load;
pub(crate) mod request;
mod spread;

use std::collections::{BTreeMap, BTreeSet};

use netvm_model::PortConfig;

use crate::ids::{PortId, WorkerId};
use crate::interface::{OpenError, OpenProblem};
use load::Loads;
use request::Request;

/// Differences in load below this many thousandths of a worker do not count.
const MIN_LOAD_DIFFERENCE: u32 = 100;

/// The workers of a port's queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PortPlacement {
    /// By queue.
    workers: Vec<WorkerId>,
    /// Whether its queues count: those of punt ports rarely have packets.
    counts: bool,
}

impl PortPlacement {
    fn queues_on(&self, worker: WorkerId) -> usize {
        self.workers.iter().filter(|other| **other == worker).count()
    }
}

/// A queue that changes its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) port: PortId,
    pub(crate) from: WorkerId,
    pub(crate) to: WorkerId,
}

/// Which worker has which queues.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    /// By worker: its NUMA node.
    nodes: Vec<u32>,
    /// Ports that are open, or were when they were lost.
    by_port: BTreeMap<PortId, PortPlacement>,
}

impl Placement {
    /// Without ports. `nodes`: the NUMA node of each worker; there is at least one.
    pub(crate) fn new(nodes: Vec<u32>) -> Self {
        Self { nodes, by_port: BTreeMap::new() }
    }

    /// The worker of each queue of a port.
    pub(crate) fn workers_of(&self, port: PortId) -> &[WorkerId] {
        self.by_port.get(&port).map_or(&[], |place| &place.workers)
    }

    /// Queues of a worker that count.
    pub(crate) fn queues(&self, worker: WorkerId) -> usize {
        self.by_port.values().filter(|place| place.counts).map(|place| place.queues_on(worker)).sum()
    }

    /// Queues of a port on a worker.
    pub(crate) fn queues_of(&self, port: PortId, worker: WorkerId) -> usize {
        self.by_port.get(&port).map_or(0, |place| place.queues_on(worker))
    }

    /// Notes that a queue has moved.
    pub(crate) fn moved(&mut self, moved: Move) {
        let place = self.by_port.get_mut(&moved.port);
        let queue = place.and_then(|place| place.workers.iter_mut().rfind(|worker| **worker == moved.from));
        if let Some(worker) = queue {
            *worker = moved.to;
        }
    }

    /// Refuses a port whose configuration names a NUMA node without a worker.
    pub(crate) fn check(&self, config: &PortConfig) -> Result<(), OpenError> {
        let Some(node) = config.node.filter(|node| !self.nodes.contains(node)) else { return Ok(()) };
        let nodes: BTreeSet<u32> = self.nodes.iter().copied().collect();
        let have = nodes.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        Err(OpenError { name: config.name.clone(), problem: OpenProblem::NoWorkerOnNode { node, have } })
    }

    /// Forgets ports.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(PortId) -> bool) {
        self.by_port.retain(|port, _| is_kept(*port));
    }

    /// Chooses the workers of ports that are about to open, again for those that had some.
    pub(crate) fn place(&mut self, requests: &[Request], loads: &Loads) {
        let mut round = Round::new(self, requests, loads);
        let is_pinned = |request: &&Request| request.worker.is_some();
        let follows = |request: &&Request| request.worker.is_none() && request.with.is_some();
        let alone = |request: &&Request| request.worker.is_none() && request.with.is_none();
        for request in requests.iter().filter(is_pinned).chain(requests.iter().filter(alone)) {
            round.place(request);
        }
        for request in requests.iter().filter(follows) {
            round.place(request);
        }
    }
}

/// The placement of some ports at once.
struct Round<'a> {
    placement: &'a mut Placement,
    loads: &'a Loads,
    /// Their places before.
    former: BTreeMap<PortId, PortPlacement>,
    /// By worker: the load in thousandths, without these ports before they are placed.
    load: Vec<u32>,
    /// The average load of a queue.
    average: u32,
}

impl<'a> Round<'a> {
    fn new(placement: &'a mut Placement, requests: &[Request], loads: &'a Loads) -> Self {
        let mut load: Vec<u32> =
            (0..placement.nodes.len()).map(|worker| loads.of_worker(WorkerId(worker as u8))).collect();
        let queues = (0..load.len()).map(|worker| placement.queues(WorkerId(worker as u8))).sum::<usize>();
        let average = load.iter().sum::<u32>() / queues.max(1) as u32;
        let mut former = BTreeMap::new();
        for request in requests {
            let Some(place) = placement.by_port.remove(&request.port) else { continue };
            for (worker, load) in load.iter_mut().enumerate() {
                *load = load.saturating_sub(loads.of_port(request.port, WorkerId(worker as u8)));
            }
            former.insert(request.port, place);
        }
        Self { placement, loads, former, load, average }
    }

    fn place(&mut self, request: &Request) {
        let mut workers = Vec::new();
        let leader = request.with.and_then(|port| self.placement.workers_of(port).first().copied());
        let mut candidates = match request.worker.or(leader) {
            Some(worker) => vec![worker],
            None => self.candidates(request.node),
        };
        let expected = self.expected(request);
        for _ in 0..request.queues {
            let Some(worker) = self.best(&candidates, &workers, request.port) else { break };
            if request.one_node {
                candidates.retain(|other| self.node(*other) == self.node(worker));
            }
            if let Some(load) = self.load.get_mut(worker.index()) {
                *load += expected;
            }
            workers.push(worker);
        }
        self.placement.by_port.insert(request.port, PortPlacement { workers, counts: request.counts });
    }

    fn node(&self, worker: WorkerId) -> Option<u32> {
        self.placement.nodes.get(worker.index()).copied()
    }

    /// The workers on a node; all, if none is there.
    fn candidates(&self, node: Option<u32>) -> Vec<WorkerId> {
        let workers = || (0..self.placement.nodes.len()).map(|worker| WorkerId(worker as u8));
        let is_local = |worker: &WorkerId| node.is_some() && self.node(*worker) == node;
        let local: Vec<WorkerId> = workers().filter(is_local).collect();
        if local.is_empty() { workers().collect() } else { local }
    }

    /// The load that a queue of this port will probably add: what its queues had before, or else the average of all
    /// queues.
    fn expected(&self, request: &Request) -> u32 {
        let Some(place) = self.former.get(&request.port).filter(|place| !place.workers.is_empty()) else {
            return if request.counts { self.average } else { 0 };
        };
        let workers = (0..self.placement.nodes.len()).map(|worker| WorkerId(worker as u8));
        let sum: u32 = workers.map(|worker| self.loads.of_port(request.port, worker)).sum();
        sum / place.workers.len() as u32
    }

    /// The best of the candidates for the next queue of a port that has `workers` so far.
    fn best(&self, candidates: &[WorkerId], workers: &[WorkerId], port: PortId) -> Option<WorkerId> {
        let former = self.former.get(&port).and_then(|place| place.workers.get(workers.len()));
        candidates.iter().copied().min_by_key(|worker| {
            let own = workers.iter().filter(|other| *other == worker).count();
            let load = self.load.get(worker.index()).copied().unwrap_or_default() / MIN_LOAD_DIFFERENCE;
            (own, load, self.placement.queues(*worker), former != Some(worker), *worker)
        })
    }
}

#[cfg(test)]
mod tests;
