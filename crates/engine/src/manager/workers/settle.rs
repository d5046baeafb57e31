// SPDX-License-Identifier: Apache-2.0
//! Waits until packets that workers have received have left them.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use netvm_model::Host;

use super::{POLL_INTERVAL, Workers};
use crate::counters::WorkerCounters;
use crate::ids::WorkerId;
use crate::worker::Command;

/// Rounds without a packet after which none is under way: a worker may finish its part of the first one while another
/// worker still hands a packet over to it.
const QUIET_ROUNDS: u32 = 2;

impl Workers {
    /// From now on, packets pass at most as many NFs as the longest chain of these configurations has.
    pub(crate) fn set_hops(&mut self, hosts: [&Host; 2]) {
        let chains = hosts.into_iter().flat_map(|host| &host.chains);
        self.hops = chains.map(|chain| chain.hops.len()).max().unwrap_or_default();
    }

    /// Waits until these workers have nothing under way of what they have received so far: it has left the rings
    /// between workers, and NFs have returned it. Returns whether that took no longer than `within`.
    pub(crate) fn settle(&mut self, workers: &[WorkerId], within: Duration) -> bool {
        let deadline = Instant::now() + within;
        loop {
            self.finish_handed_over();
            let left = || deadline.saturating_duration_since(Instant::now());
            // NFs of several groups, or of a captured chain, return a packet between hops.
            let mut hops = (0..self.hops.max(1)).flat_map(|_| workers);
            if !hops.all(|worker| self.wait_for_returns(*worker, left())) {
                return false;
            }
            if !self.ids().any(|worker| self.has_arrivals(worker)) {
                return true;
            }
            if left().is_zero() {
                return false;
            }
        }
    }

    /// The same for all workers, while no port with a device receives. By ports without one, packets may go from
    /// worker to worker, and to NFs, more than once.
    pub(crate) fn settle_all(&mut self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        let all: Vec<WorkerId> = self.ids().collect();
        let (mut before, mut quiet) = (None, 0);
        while quiet < QUIET_ROUNDS {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.settle(&all, left) {
                return false;
            }
            let now = Some(self.sum(taken));
            quiet = if now == before { quiet + 1 } else { 0 };
            before = now;
        }
        true
    }

    /// Lets every worker finish what the others have handed over to it.
    pub(crate) fn finish_handed_over(&mut self) {
        self.send_all(|_| Command::FinishHandedOver);
        self.wait_for_all();
    }

    /// Whether packets of other workers waited for this one after [`Workers::finish_handed_over`]: chains of ports that
    /// wait for room had none.
    pub(crate) fn has_arrivals(&self, worker: WorkerId) -> bool {
        self.counters(worker).is_some_and(|counters| counters.has_arrivals.load(Ordering::Relaxed))
    }

    /// Packets that a worker has handed to NFs since the start.
    pub(crate) fn delivered(&self, worker: WorkerId) -> u64 {
        self.counters(worker).map_or(0, delivered)
    }

    /// Waits until a worker has all packets back that it has handed to NFs so far. Returns whether it has.
    fn wait_for_returns(&self, worker: WorkerId, within: Duration) -> bool {
        let Some(counters) = self.counters(worker) else { return true };
        let back =
            || counters.links.iter().map(|link| link.returned.get()).sum::<u64>() + counters.reclaimed.get();
        let (until, deadline) = (delivered(counters), Instant::now() + within);
        while back() < until {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        true
    }
}

/// Packets that ports have received, and NFs have got from a worker.
fn taken(counters: &WorkerCounters) -> u64 {
    let received: u64 = counters.ports.iter().map(|port| port.rx_packets.get()).sum();
    received + delivered(counters)
}

fn delivered(counters: &WorkerCounters) -> u64 {
    counters.links.iter().map(|link| link.delivered.get()).sum()
}
