// SPDX-License-Identifier: Apache-2.0
//! Sweeps: reclaim the buffers of NFs that are gone, a slice of the table per turn, so that forwarding continues.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::held::HeldPacketCollector;
use super::table::SweptBuffers;
use super::{InFlight, InFlightTable};
use crate::ids::NfThreadId;

/// Buffers that a turn checks, in some microseconds.
const SLICE: u32 = 4096;

/// The manager's request to a worker to sweep one memory.
#[derive(Debug)]
pub(crate) struct SweepRequest {
    /// Identifies the result.
    pub(crate) ticket: u64,
    pub(crate) table: Arc<InFlightTable>,
    pub(crate) what: SweepScope,
}

/// The buffers to sweep, of those that the worker handed out.
#[derive(Debug)]
pub(crate) enum SweepScope {
    /// Buffers of NF threads that are gone.
    Gone {
        /// The NF threads, a bit each.
        nf_threads: u64,
        /// Buffers that a dead producer wrote to a ring for an NF thread and did not publish.
        stranded: Vec<(u32, NfThreadId)>,
        /// Receives copies of the packets that the NF had.
        held: Option<Box<HeldPacketCollector>>,
    },
    /// All buffers. The NFs of this memory get no more.
    All,
    /// Buffers that were handed out before this generation.
    Older {
        /// The current generation.
        current: u8,
    },
}

/// The result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Swept {
    pub(crate) ticket: u64,
    pub(crate) buffers: u64,
    /// Those of them that NF threads kept.
    pub(crate) kept: u64,
    /// The time of completion.
    pub(crate) at: Instant,
}

#[derive(Debug)]
struct Sweep {
    request: SweepRequest,
    /// Stranded buffers checked so far.
    stranded: usize,
    /// The next buffer to check, after the stranded ones.
    next: u32,
    /// Buffers swept so far.
    buffers: SweptBuffers,
}

/// A worker's pending sweeps, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Sweeps(VecDeque<Sweep>);

impl Sweeps {
    pub(crate) fn add(&mut self, request: SweepRequest) {
        self.0.push_back(Sweep { request, stranded: 0, next: 0, buffers: SweptBuffers::default() });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Does a slice of the oldest sweep. After the last slice, returns the result, and the request, which the manager
    /// frees.
    pub(crate) fn step(&mut self, in_flight: &mut InFlight) -> Option<(Swept, SweepRequest)> {
        let Sweep { request, stranded: done, next, buffers } = self.0.front_mut()?;
        let SweepRequest { table, what, .. } = request;
        let worker = in_flight.worker;
        in_flight.spill();
        if let SweepScope::Gone { stranded, .. } = what
            && *done < stranded.len()
        {
            let end = (*done + SLICE as usize).min(stranded.len());
            buffers.all += table.sweep_stranded(&stranded[*done..end], worker);
            *done = end;
            if end < stranded.len() {
                return None;
            }
        }
        let end = next.saturating_add(SLICE).min(table.len());
        *buffers += match what {
            SweepScope::Gone { nf_threads, held: None, .. } => {
                table.sweep_gone(*next..end, worker, *nf_threads, |_, _| {})
            }
            SweepScope::Gone { nf_threads, held: Some(held), .. } => {
                held.mark_waiting(worker);
                table.sweep_gone(*next..end, worker, *nf_threads, |buffer, mbuf| held.keep(buffer, mbuf))
            }
            SweepScope::All => table.sweep_all(*next..end, worker),
            SweepScope::Older { current } => table.sweep_older(*next..end, worker, *current),
        };
        *next = end;
        if end < table.len() {
            return None;
        }
        let Sweep { request, buffers, .. } = self.0.pop_front()?;
        let SweptBuffers { all, kept } = buffers;
        Some((Swept { ticket: request.ticket, buffers: all, kept, at: Instant::now() }, request))
    }
}
