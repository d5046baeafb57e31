// SPDX-License-Identifier: Apache-2.0
//! A filter in a worker: of a capture, or of a trace. In: packets. Out: those that it accepts. It first copies a
//! packet's front and reads the copy, because other processes can write to the packet, and it has its share of the
//! worker's time ([`Budget`]).

use dpdk::Mbuf;
use netvm_capture_ring::{Direction, Filter, Outcome};
use netvm_clock as clock;

use super::budget::{Budget, Work, packets_at_once};

/// Bytes that a filter reads before it needs the rest of a packet: all headers that libpcap's language names.
const FRONT: usize = 256;

/// A filter, and the time that it may take.
#[derive(Debug)]
pub(crate) struct Filtering {
    filter: Filter,
    budget: Budget,
}

impl Filtering {
    pub(crate) fn new(filter: Filter) -> Self {
        Self { filter, budget: Budget::new(clock::cycles()) }
    }

    /// Adds the share of the time that has passed until `now`, if so many filters share it.
    #[inline]
    pub(crate) fn fill(&mut self, now: u64, filters: usize) {
        self.budget.fill(now, filters);
    }

    /// The packets to filter next, and those after them; `None` if there are none, or the budget is used up.
    #[inline]
    pub(crate) fn next<'a>(&self, packets: &'a [Mbuf]) -> Option<(&'a [Mbuf], &'a [Mbuf])> {
        let at_once = packets_at_once(self.filter.len()).min(packets.len());
        (at_once > 0 && self.budget.has_some()).then(|| packets.split_at(at_once))
    }

    /// The packets that the filter accepts, as a bit mask. Runs on private copies of the packets, of which there are at
    /// most 64.
    pub(crate) fn wanted(&mut self, packets: &[Mbuf], direction: Direction) -> u64 {
        let from = clock::cycles();
        let (mut wanted, mut copies) = (0, 0);
        for (n, mbuf) in packets.iter().enumerate() {
            let mut front = [0u8; FRONT];
            let copied = mbuf.copy_to(&mut front);
            let outcome = match self.filter.run_passing(&front[..copied], mbuf.pkt_len(), direction) {
                Outcome::Beyond => {
                    copies += 1;
                    run_on_whole(&self.filter, mbuf, direction)
                }
                outcome => outcome,
            };
            wanted |= u64::from(outcome == Outcome::Accept) << n;
        }
        let instructions = self.filter.len() * (packets.len() + copies);
        self.budget.spend(from, Work { instructions, copies });
        wanted
    }
}

#[cold]
fn run_on_whole(filter: &Filter, mbuf: &Mbuf, direction: Direction) -> Outcome {
    let mut whole = [0u8; 1 << 16];
    let copied = mbuf.copy_to(&mut whole);
    filter.run_passing(&whole[..copied], mbuf.pkt_len(), direction)
}
