// SPDX-License-Identifier: Apache-2.0
//! Tracks which packets NFs have, and takes them back: one worker's [`InFlight`].
//!
//! ```text
//!              receive, allocate                  hand_out (queue open, with room)
//!   ┌──────┐ ─────────────────────▶ ┌───────────┐ ─────────────────────────────────▶ ┌───────────────┐
//!   │ free │                        │ in engine │                                    │ out, in order │
//!   └──────┘ ◀───────────────────── └───────────┘ ◀───────────────────────────────── └───────────────┘
//!      ▲          send, drop          │       ▲         take_back_in_order                   │
//!      │                     hand_out │       │ take_back_from_table                         │ spill
//!      │                  (otherwise) ▼       │                                              │
//!      │          sweep             ┌───────────────┐                                        │
//!      └─────────────────────────── │ out, in table │ ◀──────────────────────────────────────┘
//!                                   └───────────────┘
//! ```
//!
//! | state | owner of the mbuf | recorded in |
//! |---|---|---|
//! | free | the pool | the mempool |
//! | in engine | an [`Mbuf`], in a batch or in a port's queue | nothing |
//! | out, in order | nobody | the in-order queue of the NF thread that it was handed to: `queue` |
//! | out, in table | nobody | its word of the in-flight table: `table` |
//! | out, kept | nobody | the same, with the NF thread that keeps it: `kept` |
//!
//! A packet that is out is in one queue or in the table, never in both. So it comes back only once, whatever an NF
//! returns. Only the worker that handed it out can take it back, from any NF thread of the trust group.
//!
//! - Private and trusted: the queues (one worker's) and the table (one per memory, each word with one writer). Only the
//!   engine maps them.
//! - Shared and not trusted: descriptors that NFs return. A descriptor chooses the buffer; the queue or the table
//!   decides whether the packet was out. Its bounds are checked before the mbuf gets them.
//! - Shared, and only a hint: the owner table, one byte per buffer, in which the last holder wrote which NF thread has
//!   the buffer. It only decides what a sweep takes (`sweep`). An NF that writes false owners can hide its own buffers
//!   from a sweep; the audit of its group (`manager/nfs/audit.rs`) then finds them by their generation.
//!
//! # Order
//!
//! A comparison with the queue is the cheapest way to take packets back (`take_back`), so the engine learns which NF
//! threads keep the order:
//!
//! - A thread returns the packets that it got, or, as the last hop of a chain, the packets that the first hop got. Its
//!   *source* is the NF thread with whose queue the engine compares what it returns. If the next descriptor is neither
//!   in the source's queue nor in the table, the engine searches for a queue with this packet at its front, and makes
//!   it the source, up to [`MAX_CHANGES`] times in a tick.
//! - If no queue has the packet at its front, or the source changes too often, the engine *gives up order* in this
//!   memory: every queue spills and closes until the next tick. A reordering NF then costs a table access for each
//!   packet, but no search.
//! - Queues spill before anything reads the table (commands, sweeps, views), and once per tick. A new queue is closed
//!   until the next tick, because the engine may have given up order before the NF attached.
//!
//! # Cost
//!
//! For each packet:
//!
//! | act | touches |
//! |---|---|
//! | `hand_out`, with descriptors | 8 bytes of ring, 16 of queue, 1 of owner table, the mbuf's first line |
//! | `take_back_in_order` | 8 bytes of ring, 16 of queue |
//! | `take_back_from_table` | 8 bytes of ring, 8 of table, the mbuf's first line |

use std::sync::Arc;

use dpdk::{Batch, Mbuf};
use netvm_ring::Span;

pub(crate) mod held;
mod kept;
mod queue;
pub(crate) mod sweep;
mod table;
mod take_back;
#[cfg(test)]
mod tests;

use crate::ids::{LinkId, NfThreadId, WorkerId};
use crate::link::MAX_LINKS;
use queue::InOrderQueue;
pub(crate) use table::InFlightTable;
use table::OwnerWriter;
pub(crate) use take_back::{Returned, Turn};

/// Source changes of one NF thread in a tick before the engine gives up order: more changes cost more than the table.
const MAX_CHANGES: u8 = 16;

/// Packets that one worker has handed to one NF thread. The manager creates it, the worker owns it.
#[derive(Debug)]
pub(crate) struct ThreadInFlight {
    table: Arc<InFlightTable>,
    nf_thread: NfThreadId,
    /// The NF thread with whose queue the packets that this one returns are compared.
    source: LinkId,
    /// How often `source` has changed in this tick.
    changes: u8,
    /// This thread made the engine give up order in this tick.
    order_given_up: bool,
    /// Buffers that the thread keeps, and the most that it may keep.
    kept: u32,
    may_keep: u32,
    queue: InOrderQueue,
}

impl ThreadInFlight {
    /// For the NF thread at the other end of `link`, which gets buffers of the memory of `table`.
    pub(crate) fn new(link: LinkId, nf_thread: NfThreadId, table: Arc<InFlightTable>) -> Box<Self> {
        let queue = InOrderQueue::new();
        let (changes, order_given_up, kept, may_keep) = (0, false, 0, 0);
        Box::new(Self { table, nf_thread, source: link, changes, order_given_up, kept, may_keep, queue })
    }

    /// The same for a thread that may keep so many buffers of this worker.
    pub(crate) fn with_quota(mut self: Box<Self>, may_keep: u32) -> Box<Self> {
        self.may_keep = may_keep;
        self
    }

    #[inline(always)]
    fn publish_level(&self, worker: WorkerId) {
        self.table.set_level(worker, self.nf_thread, self.queue.len());
    }
}

/// The packets that one worker has handed to NFs.
#[derive(Debug)]
pub(crate) struct InFlight {
    worker: WorkerId,
    /// By [`LinkId`].
    threads: Vec<Option<Box<ThreadInFlight>>>,
    /// The links in `threads`.
    active: Vec<LinkId>,
    /// The spans of the burst that is being handed out.
    spans: [Span; Batch::CAPACITY],
}

impl InFlight {
    pub(crate) fn new(worker: WorkerId) -> Self {
        Self {
            worker,
            threads: (0..MAX_LINKS).map(|_| None).collect(),
            active: Vec::with_capacity(MAX_LINKS),
            spans: [Span::default(); Batch::CAPACITY],
        }
    }

    pub(crate) fn add_thread(&mut self, link: LinkId, thread: Box<ThreadInFlight>) {
        self.threads[link.index()] = Some(thread);
        self.active.push(link);
    }

    /// Removes an NF thread; the table keeps its packets.
    pub(crate) fn remove_thread(&mut self, link: LinkId) -> Option<Box<ThreadInFlight>> {
        self.each_queue(|id, thread| {
            if id == link {
                thread.queue.spill(&thread.table);
            } else if thread.source == link {
                thread.source = id;
            }
        });
        self.active.retain(|active| *active != link);
        self.threads[link.index()].take()
    }

    /// Hands the first `count` packets of a batch to an NF thread. `write` puts their descriptors into its ring;
    /// publish them after this. Returns whether the NF thread exists.
    #[inline(always)]
    pub(crate) fn hand_out(
        &mut self,
        to: LinkId,
        count: usize,
        batch: &mut Batch,
        write: impl FnOnce(&[Mbuf], &[Span]),
    ) -> bool {
        let Some(thread) = self.threads[to.index()].as_deref_mut() else { return false };
        let ThreadInFlight { table, nf_thread, queue, .. } = thread;
        let packets = &batch.as_slice()[..count];
        set_owners(table.owner_writer(*nf_thread), packets, &mut self.spans);
        let spans = &self.spans[..count];
        write(packets, spans);
        let (mbufs, mark) = (&batch.raw()[..count], table.mark(self.worker));
        // SAFETY: `set_owners` computed the spans of these packets, packets on this path have one segment, and the
        // batch forgets them below; `push` is asked only for what fits.
        unsafe {
            if queue.fits(count, mark) {
                queue.push(spans, mbufs, mark);
            } else {
                table.insert(spans, mbufs, mark);
            }
            batch.forget_front(count);
        }
        thread.publish_level(self.worker);
        true
    }

    /// Moves all packets to the table. Call before reading the table.
    pub(crate) fn spill(&mut self) {
        self.each_queue(|_, thread| thread.queue.spill(&thread.table));
    }

    /// Starts a new tick: spills, and opens all queues again.
    pub(crate) fn expect_order_again(&mut self) {
        self.each_queue(|_, thread| {
            thread.queue.spill(&thread.table);
            thread.queue.open();
            (thread.changes, thread.order_given_up) = (0, false);
        });
    }

    /// Called if `first` is neither at the front of its source's queue nor in the table. Searches for a queue with
    /// `first` at its front, or gives up order. Returns whether another attempt may succeed.
    #[cold]
    fn find_source(&mut self, link: LinkId, first: u32) -> bool {
        let Some(thread) = self.threads[link.index()].as_deref() else { return false };
        let table = Arc::clone(&thread.table);
        if thread.order_given_up || first >= table.len() || table.of(self.worker).has(first) {
            return false;
        }
        let is_first = |other: &LinkId| {
            let other = self.threads[other.index()].as_deref();
            other
                .filter(|other| Arc::ptr_eq(&other.table, &table))
                .is_some_and(|other| other.queue.front().0.first().is_some_and(|span| span.buffer() == first))
        };
        let source = self.active.iter().copied().find(is_first);
        let Some(thread) = self.threads[link.index()].as_deref_mut() else { return false };
        match source {
            Some(source) if source != thread.source && thread.changes < MAX_CHANGES => {
                thread.source = source;
                thread.changes += 1;
                true
            }
            _ => {
                thread.order_given_up = true;
                self.close(&table)
            }
        }
    }

    /// Closes the queues of a memory. Returns whether there were packets in them.
    fn close(&mut self, table: &Arc<InFlightTable>) -> bool {
        let mut any = false;
        self.each_queue(|_, thread| {
            if Arc::ptr_eq(&thread.table, table) {
                any |= thread.queue.len() > 0;
                thread.queue.close(table);
            }
        });
        any
    }

    fn each_queue(&mut self, mut each: impl FnMut(LinkId, &mut ThreadInFlight)) {
        for id in &self.active {
            if let Some(thread) = self.threads[id.index()].as_deref_mut() {
                each(*id, thread);
                thread.publish_level(self.worker);
            }
        }
    }
}

/// Makes an NF thread the owner of packets' buffers, and stores the packets' spans. Not inlined, so that its values
/// stay in registers.
#[inline(never)]
fn set_owners(owners: OwnerWriter<'_>, packets: &[Mbuf], spans: &mut [Span; Batch::CAPACITY]) {
    for (mbuf, span) in packets.iter().zip(spans) {
        *span = Span::new(owners.set_owner(mbuf), mbuf.data_off(), mbuf.data_len());
    }
}
