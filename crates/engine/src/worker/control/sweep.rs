//! Taking back the buffers of NFs that are gone, a slice of the account at a time, so that forwarding is not held up.

use std::collections::VecDeque;
use std::time::Instant;

use crate::ids::{MemoryId, NfThreadId};
use crate::worker::state::Path;

/// Buffers looked at in one turn: some microseconds.
const SLICE: u32 = 4096;

/// What the manager asks for.
#[derive(Debug)]
pub(crate) struct SweepOrder {
    /// Comes back with the result.
    pub(crate) ticket: u64,
    pub(crate) memory: MemoryId,
    pub(crate) what: What,
}

/// Which buffers are to come back.
#[derive(Debug)]
pub(crate) enum What {
    /// Those of NF threads that are gone.
    Gone {
        /// The NF threads, a bit each.
        nf_threads: u64,
        /// Buffers that a dead producer wrote to a ring for an NF thread and did not publish.
        stranded: Vec<(u32, NfThreadId)>,
    },
    /// Those that were handed out before this generation.
    Older {
        /// The generation that is now.
        current: u8,
    },
}

/// The result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Swept {
    pub(crate) ticket: u64,
    pub(crate) buffers: u64,
    /// When it was done.
    pub(crate) at: Instant,
}

#[derive(Debug, Default)]
pub(crate) struct Sweeps {
    queue: VecDeque<(SweepOrder, u32, u64)>,
}

impl Sweeps {
    pub(crate) fn add(&mut self, order: SweepOrder) {
        self.queue.push_back((order, 0, 0));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Does a slice of the oldest order; returns its result when it is done.
    pub(crate) fn step(&mut self, path: &mut Path) -> Option<Swept> {
        let (order, next, buffers) = self.queue.front_mut()?;
        path.note_expected();
        if let Some(memory) = path.memory(order.memory) {
            let total = memory.region().geometry().buffers;
            let end = next.saturating_add(SLICE).min(total);
            *buffers += match &order.what {
                What::Gone { nf_threads, stranded } => {
                    let first = if *next == 0 { stranded.as_slice() } else { &[] };
                    let swept =
                        first.iter().filter(|(buffer, to)| memory.sweep_one(*buffer, path.id, *to)).count();
                    swept as u64 + memory.sweep(*next..end, path.id, *nf_threads)
                }
                What::Older { current } => memory.sweep_older(*next..end, path.id, *current),
            };
            *next = end;
            if end < total {
                return None;
            }
        }
        let done = Swept { ticket: order.ticket, buffers: *buffers, at: Instant::now() };
        path.counters.reclaimed.add(done.buffers);
        self.queue.pop_front();
        Some(done)
    }
}
