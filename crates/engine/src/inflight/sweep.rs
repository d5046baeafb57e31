//! Sweeps: the buffers of NFs that are gone come back, a slice of the table per turn, so that forwarding goes on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::held::HeldPackets;
use super::{InFlight, InFlightTable};
use crate::ids::NfThreadId;

/// Buffers looked at in one turn: some microseconds.
const SLICE: u32 = 4096;

/// A sweep of one memory, as the manager asks a worker for it.
#[derive(Debug)]
pub(crate) struct SweepRequest {
    /// Comes back with the result.
    pub(crate) ticket: u64,
    pub(crate) table: Arc<InFlightTable>,
    pub(crate) what: What,
}

/// Which of the buffers that the worker handed out are swept.
#[derive(Debug)]
pub(crate) enum What {
    /// Those of NF threads that are gone.
    Gone {
        /// The NF threads, a bit each.
        nf_threads: u64,
        /// Buffers that a dead producer wrote to a ring for an NF thread and did not publish.
        stranded: Vec<(u32, NfThreadId)>,
        /// Gets copies of the packets that the NF had.
        held: Option<Box<HeldPackets>>,
    },
    /// All, of a memory whose NFs get no more.
    All,
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

#[derive(Debug)]
struct Sweep {
    request: SweepRequest,
    /// Stranded buffers looked at so far.
    stranded: usize,
    /// The next buffer to look at, after the stranded ones.
    next: u32,
    /// Buffers swept so far.
    buffers: u64,
}

/// The sweeps that a worker has to do, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Sweeps(VecDeque<Sweep>);

impl Sweeps {
    pub(crate) fn add(&mut self, request: SweepRequest) {
        self.0.push_back(Sweep { request, stranded: 0, next: 0, buffers: 0 });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Does a slice of the oldest sweep. When that was the last one, returns the result, and the request to be freed by
    /// the manager.
    pub(crate) fn step(&mut self, in_flight: &mut InFlight) -> Option<(Swept, SweepRequest)> {
        let Sweep { request, stranded: done, next, buffers } = self.0.front_mut()?;
        let SweepRequest { table, what, .. } = request;
        let worker = in_flight.worker;
        in_flight.spill();
        if let What::Gone { stranded, .. } = what
            && *done < stranded.len()
        {
            let end = (*done + SLICE as usize).min(stranded.len());
            *buffers += table.sweep_stranded(&stranded[*done..end], worker);
            *done = end;
            if end < stranded.len() {
                return None;
            }
        }
        let end = next.saturating_add(SLICE).min(table.len());
        *buffers += match what {
            What::Gone { nf_threads, held: None, .. } => {
                table.sweep_gone((*next..end, worker), *nf_threads, |_, _| {})
            }
            What::Gone { nf_threads, held: Some(held), .. } => {
                held.mark_waiting(worker);
                table.sweep_gone((*next..end, worker), *nf_threads, |buffer, mbuf| held.keep(buffer, mbuf))
            }
            What::All => table.sweep_all(*next..end, worker),
            What::Older { current } => table.sweep_older(*next..end, worker, *current),
        };
        *next = end;
        if end < table.len() {
            return None;
        }
        let Sweep { request, buffers, .. } = self.0.pop_front()?;
        Some((Swept { ticket: request.ticket, buffers, at: Instant::now() }, request))
    }
}
