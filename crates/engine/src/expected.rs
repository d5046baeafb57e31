//! What an NF thread was handed, in order: what is expected back.
//!
//! Most NFs return packets in the order in which they got them, and as they were. Those are recognised by one comparison of
//! words that stand side by side, so that neither the account nor the mbufs need be looked at. The account is written ([`Expected::note`])
//! only for packets that come back in another way, and before it is read by anybody: a buffer is out if the account or one of
//! these has it, never both.

use dpdk::MbufPtr;
use netvm_ring::Span;

use crate::memory::{Mark, Memory};

/// Packets that can be expected back from one NF thread; the account has what is more.
const CAPACITY: usize = 512;

/// The packets that a worker has handed to one NF thread, as long as the account does not have them.
#[derive(Debug)]
pub(crate) struct Expected {
    spans: [Span; CAPACITY],
    mbufs: [MbufPtr; CAPACITY],
    /// Free-running indexes: those from `head` to `tail` are expected.
    head: u32,
    tail: u32,
    /// What the account is to say of all of them.
    mark: Mark,
    /// The account has them at once, until [`Expected::trust`]: they came back in another order, or order was given up before the
    /// NF came.
    refused: bool,
}

impl Expected {
    /// Takes none before [`Expected::trust`].
    pub(crate) fn new() -> Box<Self> {
        Box::new(Self {
            spans: [Span::default(); CAPACITY],
            mbufs: [MbufPtr::new(core::ptr::NonNull::dangling()); CAPACITY],
            head: 0,
            tail: 0,
            mark: Mark::default(),
            refused: true,
        })
    }

    #[inline(always)]
    pub(crate) const fn len(&self) -> usize {
        self.tail.wrapping_sub(self.head) as usize
    }

    /// Whether `count` packets more can be added that the account would mark so.
    #[inline(always)]
    pub(crate) fn takes(&self, count: usize, mark: Mark) -> bool {
        !self.refused && self.len() + count <= CAPACITY && (self.mark == mark || self.len() == 0)
    }

    /// Adds packets, for which [`Expected::takes`] has said that it can; nobody else may give them back.
    #[inline(always)]
    pub(crate) fn add(&mut self, spans: &[Span], mbufs: &[MbufPtr], mark: Mark) {
        debug_assert!(self.takes(spans.len(), mark) && spans.len() == mbufs.len());
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

    /// The packets that come first, as many as stand side by side.
    #[inline(always)]
    pub(crate) fn front(&self) -> (&[Span], &[MbufPtr]) {
        let at = self.head as usize % CAPACITY;
        let end = CAPACITY.min(at + self.len());
        (&self.spans[at..end], &self.mbufs[at..end])
    }

    /// The first `count` packets are somebody's again; at most as many as there are.
    #[inline(always)]
    pub(crate) fn forget_front(&mut self, count: usize) {
        self.head = self.head.wrapping_add(count.min(self.len()) as u32);
    }

    /// Leaves all packets to the account.
    pub(crate) fn note(&mut self, memory: &Memory) {
        while self.len() > 0 {
            let (spans, mbufs) = self.front();
            let count = spans.len();
            memory.note_out(spans, mbufs, self.mark);
            self.forget_front(count);
        }
    }

    /// Expects nothing any more, as packets do not come back in order.
    pub(crate) fn refuse(&mut self, memory: &Memory) {
        self.note(memory);
        self.refused = true;
    }

    /// Order is expected again.
    pub(crate) const fn trust(&mut self) {
        self.refused = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mbuf(n: usize) -> MbufPtr {
        MbufPtr::new(core::ptr::NonNull::without_provenance(std::num::NonZero::new(64 * (n + 1)).unwrap()))
    }

    #[test]
    fn packets_come_out_in_order_however_they_lie() {
        let mut expected = Expected::new();
        assert!(!expected.takes(1, Mark::default()));
        expected.trust();
        let (mut next, mut first) = (0, 0);
        for count in [64, 1, 63, 500, 7, 512, 40].into_iter().cycle().take(200) {
            let count = count.min(CAPACITY - expected.len());
            let spans: Vec<_> = (next..next + count).map(|n| Span::new(n as u32, 1, 2)).collect();
            let mbufs: Vec<_> = (next..next + count).map(mbuf).collect();
            assert!(expected.takes(count, Mark::default()));
            expected.add(&spans, &mbufs, Mark::default());
            next += count;
            let (spans, mbufs) = expected.front();
            let some = spans.len().min(300);
            for n in 0..some {
                assert_eq!((spans[n].buffer() as usize, mbufs[n]), (first + n, mbuf(first + n)));
            }
            expected.forget_front(some);
            first += some;
            assert_eq!(expected.len(), next - first);
        }
        assert!(!expected.takes(CAPACITY + 1, Mark::default()));
    }
}
