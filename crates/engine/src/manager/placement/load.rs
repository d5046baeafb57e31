// SPDX-License-Identifier: Apache-2.0
//! The load of workers and ports, measured once a second. In: the workers' counters. Out: thousandths of a worker's
//! time that it spent on packets, and how much of that each port caused.
//!
//! A worker's busy time is exact. It is divided among the ports that it receives by, in proportion to the cycles that
//! their packets took from receive to dispatch in the timed turns, one in 16.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use netvm_clock as clock;

use super::Placement;
use crate::counters::WorkerCounters;
use crate::ids::{PortId, WorkerId};

/// Interval of the measurements.
const MEASURE_INTERVAL: Duration = Duration::from_secs(1);

/// The measured loads; 0 before the first measurement.
#[derive(Debug, Default)]
pub(crate) struct Loads {
    began: Option<Instant>,
    workers: Vec<Sample>,
    ports: BTreeMap<(PortId, WorkerId), Sample>,
}

/// Cycles at the last measurement, and the load.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    cycles: u64,
    load: u32,
}

impl Sample {
    /// Stores the cycles, and returns how many are new.
    fn advance(&mut self, cycles: u64) -> u64 {
        cycles.wrapping_sub(std::mem::replace(&mut self.cycles, cycles))
    }
}

impl Loads {
    /// Thousandths of its time that a worker was busy.
    pub(crate) fn of_worker(&self, worker: WorkerId) -> u32 {
        self.workers.get(worker.index()).map_or(0, |sample| sample.load)
    }

    /// Thousandths of a worker's time that packets of a port took.
    pub(crate) fn of_port(&self, port: PortId, worker: WorkerId) -> u32 {
        self.ports.get(&(port, worker)).map_or(0, |sample| sample.load)
    }

    /// Measures, if it is time by `now`. Returns whether it did.
    pub(crate) fn measure<'a>(
        &mut self,
        placement: &Placement,
        counters: impl Iterator<Item = &'a WorkerCounters>,
        now: Instant,
    ) -> bool {
        let began = *self.began.get_or_insert(now);
        let time = now.duration_since(began);
        if time < MEASURE_INTERVAL && now != began {
            return false;
        }
        self.began = Some(now);
        let possible = (time.as_secs_f64() * clock::cycles_per_second() as f64) as u64;
        self.ports.retain(|(port, worker), _| placement.workers_of(*port).contains(worker));
        for (worker, counters) in (0u8..).map(WorkerId).zip(counters) {
            self.add(placement, worker, counters, possible);
        }
        now != began
    }

    /// Adds the measurement of a worker over `possible` cycles; the first one, over none, only notes where its counters
    /// begin.
    fn add(&mut self, placement: &Placement, worker: WorkerId, counters: &WorkerCounters, possible: u64) {
        if self.workers.len() <= worker.index() {
            self.workers.resize(worker.index() + 1, Sample::default());
        }
        let sample = &mut self.workers[worker.index()];
        let busy = sample.advance(counters.busy_cycles.get());
        sample.load = thousandths(busy, possible);
        let load = sample.load;
        let own = placement.by_port.iter().filter(|(_, place)| place.workers.contains(&worker));
        let mut sampled: Vec<(PortId, u64)> = Vec::new();
        for port in own.map(|(port, _)| *port) {
            let cycles = counters.ports[port.index()].timed_cycles.get();
            // A port that is new here starts with what an earlier port of that number has left.
            let first = Sample { cycles, load: 0 };
            let before = self.ports.entry((port, worker)).or_insert(first);
            sampled.push((port, before.advance(cycles)));
        }
        let all: u64 = sampled.iter().map(|(_, cycles)| cycles).sum();
        for (port, cycles) in sampled {
            let share = u64::from(load) * u64::from(thousandths(cycles, all)) / 1000;
            if let Some(sample) = self.ports.get_mut(&(port, worker)) {
                sample.load = share as u32;
            }
        }
    }
}

/// A part of the whole in thousandths, at most 1,000.
fn thousandths(part: u64, whole: u64) -> u32 {
    let share = (u128::from(part) * 1000).checked_div(whole.into()).unwrap_or_default();
    share.min(1000) as u32
}

#[cfg(test)]
impl Loads {
    /// Loads of workers, and of ports on workers, for tests.
    pub(crate) fn given(workers: &[u32], ports: &[(PortId, WorkerId, u32)]) -> Self {
        let sample = |load: u32| Sample { cycles: 0, load };
        Self {
            began: None,
            workers: workers.iter().copied().map(sample).collect(),
            ports: ports.iter().map(|(port, worker, load)| ((*port, *worker), sample(*load))).collect(),
        }
    }
}
