// SPDX-License-Identifier: Apache-2.0
//! One tx ring of an NF thread.

use netvm_region::RingRef;
use netvm_ring::{Descriptor, Producer};

/// The producer, and cached facts about the ring.
#[derive(Debug)]
pub(super) struct TxRing {
    pub(super) producer: Producer,
    /// Descriptors written but not yet published.
    pub(super) pending: u32,
    /// Known free slots, including those of `pending`.
    room: u32,
    /// The NF thread that reads the ring, and the ring; `None` for a worker.
    pub(super) nf_thread: Option<(u8, RingRef)>,
    /// Chains whose packets use this ring, for the backpressure words.
    pub(super) chains: Vec<u16>,
    /// Whether this thread's backpressure bit is set for these chains.
    pub(super) has_backpressure: bool,
}

impl TxRing {
    pub(super) fn new(producer: Producer, nf_thread: Option<(u8, RingRef)>) -> Self {
        Self { producer, pending: 0, room: 0, nf_thread, chains: Vec::new(), has_backpressure: false }
    }

    #[inline(always)]
    pub(super) fn has_room(&mut self) -> bool {
        self.has_room_for(1)
    }

    #[inline(always)]
    pub(super) fn has_room_for(&mut self, wanted: u32) -> bool {
        self.room_for(wanted) >= wanted
    }

    /// Number of free slots. Asks the ring only if fewer than `wanted` are known.
    #[inline(always)]
    fn room_for(&mut self, wanted: u32) -> u32 {
        if self.room - self.pending < wanted {
            self.room = self.producer.room(self.pending + wanted);
        }
        self.room - self.pending
    }

    /// Prefetches the slots of the next `descriptors`.
    #[inline(always)]
    pub(super) fn prefetch(&mut self, descriptors: u32) {
        self.producer.prefetch(self.pending, descriptors);
    }

    #[inline(always)]
    pub(super) fn write(&mut self, descriptor: Descriptor) {
        self.producer.write(self.pending, descriptor);
        self.pending += 1;
    }

    /// Writes as many of `run` as fit, each changed by `rewrite`; returns how many.
    #[inline(always)]
    pub(super) fn write_each(
        &mut self,
        run: &[Descriptor],
        rewrite: impl Fn(Descriptor) -> Descriptor,
    ) -> usize {
        let wanted = run.len() as u32;
        let count = self.room_for(wanted).min(wanted);
        self.producer.prefetch_index();
        self.prefetch(count);
        self.producer.write_each(self.pending, &run[..count as usize], |descriptor| rewrite(*descriptor));
        self.pending += count;
        count as usize
    }

    /// Publishes the written descriptors; returns whether the consumer must be woken.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        if self.pending == 0 {
            return false;
        }
        self.producer.publish(self.pending);
        self.room -= self.pending;
        self.pending = 0;
        self.producer.needs_wakeup()
    }
}
