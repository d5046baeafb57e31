// SPDX-License-Identifier: Apache-2.0
//! The in-order queue of one NF thread: the packets that one worker handed to it, oldest first.
//!
//! Most NFs return packets unchanged and in order. A comparison with the front of this queue then recognises them,
//! without an access to the in-flight table or the mbufs. Packets that do not fit go to the table.
//!
//! Cost per packet: 16 bytes written when it is handed out, and read in order when it comes back.

use std::ptr::NonNull;

use dpdk::MbufPtr;
use netvm_ring::Span;

use super::table::{InFlightTable, Mark};

/// Packets that a queue holds: eight bursts.
pub(super) const CAPACITY: usize = 512;

#[derive(Clone, Debug)]
pub(super) struct InOrderQueue {
    spans: [Span; CAPACITY],
    mbufs: [MbufPtr; CAPACITY],
    /// Free-running indexes: the queue holds those from `head` to `tail`.
    head: u32,
    tail: u32,
    /// The mark that all packets get in the table.
    mark: Mark,
    /// A closed queue takes no packets.
    is_open: bool,
}

impl InOrderQueue {
    /// An empty, closed queue: the engine may have given up order in its memory before the NF attached.
    pub(super) const fn new() -> Self {
        Self {
            spans: [Span::new(0, 0, 0); CAPACITY],
            mbufs: [MbufPtr::new(NonNull::dangling()); CAPACITY],
            head: 0,
            tail: 0,
            mark: Mark::NONE,
            is_open: false,
        }
    }

    #[inline(always)]
    pub(super) const fn len(&self) -> usize {
        self.tail.wrapping_sub(self.head) as usize
    }

    /// Whether `count` more packets with this mark fit.
    #[inline(always)]
    pub(super) fn fits(&self, count: usize, mark: Mark) -> bool {
        self.is_open && self.len() + count <= CAPACITY && (self.mark == mark || self.len() == 0)
    }

    /// Engine → queue.
    ///
    /// # Safety
    /// As for [`InFlightTable::insert`]; and they fit ([`InOrderQueue::fits`]).
    #[inline(always)]
    pub(super) unsafe fn push(&mut self, spans: &[Span], mbufs: &[MbufPtr], mark: Mark) {
        debug_assert!(self.fits(spans.len(), mark) && spans.len() == mbufs.len());
        let at = self.tail as usize % CAPACITY;
        let first = spans.len().min(CAPACITY - at);
        let rest = spans.len() - first;
        self.spans[at..at + first].copy_from_slice(&spans[..first]);
        self.mbufs[at..at + first].copy_from_slice(&mbufs[..first]);
        if rest > 0 {
            self.spans[..rest].copy_from_slice(&spans[first..]);
            self.mbufs[..rest].copy_from_slice(&mbufs[first..]);
        }
        self.mark = mark;
        self.tail = self.tail.wrapping_add(spans.len() as u32);
    }

    /// The oldest packets, up to the wrap of the queue.
    #[inline(always)]
    pub(super) fn front(&self) -> (&[Span], &[MbufPtr]) {
        let at = self.head as usize % CAPACITY;
        let end = CAPACITY.min(at + self.len());
        (&self.spans[at..end], &self.mbufs[at..end])
    }

    /// Queue → engine: the caller owns the oldest `count` packets, at most as many as there are.
    #[inline(always)]
    pub(super) fn pop(&mut self, count: usize) {
        self.head = self.head.wrapping_add(count.min(self.len()) as u32);
    }

    /// Queue → table, of all packets.
    pub(super) fn spill(&mut self, table: &InFlightTable) {
        while self.len() > 0 {
            let (spans, mbufs) = self.front();
            let count = spans.len();
            // SAFETY: `push` promised that nothing owns them; the queue forgets them here.
            unsafe { table.insert(spans, mbufs, self.mark) };
            self.pop(count);
        }
    }

    /// Spills, and takes no more packets until [`InOrderQueue::open`].
    pub(super) fn close(&mut self, table: &InFlightTable) {
        self.spill(table);
        self.is_open = false;
    }

    pub(super) const fn open(&mut self) {
        self.is_open = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mbuf(n: usize) -> MbufPtr {
        MbufPtr::new(NonNull::without_provenance(std::num::NonZero::new(64 * (n + 1)).unwrap()))
    }

    #[test]
    fn packets_come_out_in_order_across_the_wrap() {
        let mut queue = InOrderQueue::new();
        assert!(!queue.fits(1, Mark::NONE), "a new queue is closed");
        queue.open();
        let (mut next, mut first) = (0, 0);
        for count in [64, 1, 63, 500, 7, 512, 40].into_iter().cycle().take(200) {
            let count = count.min(CAPACITY - queue.len());
            let spans: Vec<_> = (next..next + count).map(|n| Span::new(n as u32, 1, 2)).collect();
            let mbufs: Vec<_> = (next..next + count).map(mbuf).collect();
            assert!(queue.fits(count, Mark::NONE));
            // SAFETY: they fit; the addresses are never used.
            unsafe { queue.push(&spans, &mbufs, Mark::NONE) };
            next += count;
            let (spans, mbufs) = queue.front();
            let some = spans.len().min(300);
            for n in 0..some {
                assert_eq!((spans[n].buffer() as usize, mbufs[n]), (first + n, mbuf(first + n)));
            }
            queue.pop(some);
            first += some;
            assert_eq!(queue.len(), next - first);
        }
        assert!(!queue.fits(CAPACITY + 1, Mark::NONE));
    }
}
