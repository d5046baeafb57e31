//! One ring out of an NF thread.

use netvm_region::RingRef;
use netvm_ring::{Descriptor, Producer};

/// The producing end, and what is known of it.
#[derive(Debug)]
pub(super) struct TxRing {
    pub(super) producer: Producer,
    /// Written, not yet published.
    pub(super) pending: u32,
    /// Room that is known of, `pending` not taken off.
    room: u32,
    /// The NF thread at the other end; `None` for a worker.
    pub(super) nf_thread: Option<(u8, RingRef)>,
    /// Chains that go this way, for the backpressure words.
    pub(super) chains: Vec<u16>,
    pub(super) pressed: bool,
}

impl TxRing {
    pub(super) fn new(producer: Producer, nf_thread: Option<(u8, RingRef)>) -> Self {
        Self { producer, pending: 0, room: 0, nf_thread, chains: Vec::new(), pressed: false }
    }

    #[inline(always)]
    pub(super) fn has_room(&mut self) -> bool {
        self.room_for(1) > 0
    }

    /// Room for at least `wanted` more descriptors if there is, else what there is.
    #[inline(always)]
    fn room_for(&mut self, wanted: u32) -> u32 {
        if self.room - self.pending < wanted {
            self.room = self.producer.room(self.pending + wanted);
        }
        self.room - self.pending
    }

    /// So many more are about to be written.
    #[inline(always)]
    pub(super) fn prefetch(&mut self, descriptors: u32) {
        self.producer.prefetch(self.pending, descriptors);
    }

    #[inline(always)]
    pub(super) fn write(&mut self, descriptor: Descriptor) {
        self.producer.write(self.pending, descriptor);
        self.pending += 1;
    }

    /// Writes as many as there is room for, each as `told` says; returns how many.
    #[inline(always)]
    pub(super) fn write_each(
        &mut self,
        run: &[Descriptor],
        told: impl Fn(Descriptor) -> Descriptor,
    ) -> usize {
        let wanted = run.len() as u32;
        let count = self.room_for(wanted).min(wanted);
        self.producer.prefetch_index();
        self.prefetch(count);
        self.producer.write_each(self.pending, &run[..count as usize], |descriptor| told(*descriptor));
        self.pending += count;
        count as usize
    }

    /// Makes visible what was written; returns whether the consumer sleeps.
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
