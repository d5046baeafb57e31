//! Taking back the cells of NFs that are gone, a slice of the account at a time, so that forwarding is not held up.

use std::collections::VecDeque;
use std::time::Instant;

use super::path::Path;
use crate::ids::{MemoryId, StationId};

/// Cells looked at in one turn: some microseconds.
const SLICE: u32 = 4096;

/// What the manager asks for.
#[derive(Debug)]
pub(crate) struct SweepOrder {
    /// Comes back with the result.
    pub(crate) ticket: u64,
    pub(crate) memory: MemoryId,
    /// Stations that are gone, a bit each.
    pub(crate) stations: u64,
    /// Cells that a dead producer wrote to a ring for a station and did not publish.
    pub(crate) stranded: Vec<(u32, StationId)>,
}

/// The result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Swept {
    pub(crate) ticket: u64,
    pub(crate) cells: u64,
    /// When it was done.
    pub(crate) at: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Sweeps {
    queue: VecDeque<(SweepOrder, u32, u64)>,
}

impl Sweeps {
    pub(super) fn add(&mut self, order: SweepOrder) {
        self.queue.push_back((order, 0, 0));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Does a slice of the oldest order; returns its result when it is done.
    pub(super) fn step(&mut self, path: &Path) -> Option<Swept> {
        let (order, next, cells) = self.queue.front_mut()?;
        if let Some(memory) = path.memory(order.memory) {
            if *next == 0 {
                let stranded = order.stranded.iter();
                *cells += stranded.filter(|(cell, to)| memory.sweep_one(*cell, path.id, *to)).count() as u64;
            }
            let total = memory.region().geometry().cells;
            let end = next.saturating_add(SLICE).min(total);
            *cells += memory.sweep(*next..end, path.id, order.stations);
            *next = end;
            if end < total {
                return None;
            }
        }
        let done = Swept { ticket: order.ticket, cells: *cells, at: Instant::now() };
        path.counters.reclaimed.add(done.cells);
        self.queue.pop_front();
        Some(done)
    }
}
