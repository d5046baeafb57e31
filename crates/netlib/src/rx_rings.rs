// SPDX-License-Identifier: Apache-2.0
//! The rx rings of an NF thread: one from each worker, and one from each NF thread that precedes it in a chain. Out: a
//! burst from one ring at a time, round robin. Workers come and go; the thread looks for them with each new table.

use std::sync::Arc;

use netvm_region::{MAX_NF_THREADS, RingRef, Table};
use netvm_ring::{Consumer, Descriptor};

use crate::shared::Shared;
use crate::tx_rings::pressure::{chains_from_to, clear_backpressure, has_backpressure};

/// Who writes a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Worker(u16),
    /// An NF thread, and its ring.
    NfThread(u8, RingRef),
}

#[derive(Debug)]
struct RxRing {
    consumer: Consumer,
    origin: Origin,
    /// Chains whose packets use this ring.
    chains: Vec<u16>,
    retired: bool,
}

/// All rx rings of an NF thread.
#[derive(Debug)]
pub(crate) struct RxRings {
    shared: Arc<Shared>,
    /// The thread's number in the NF.
    thread: u16,
    nf_thread: u8,
    list: Vec<RxRing>,
    next: usize,
    /// Whether an NF thread that never signals writes to this one.
    has_poll_only: bool,
}

impl RxRings {
    pub(crate) fn new(shared: Arc<Shared>, thread: u16, nf_thread: u8) -> Self {
        let mut this = Self { shared, thread, nf_thread, list: Vec::new(), next: 0, has_poll_only: false };
        this.follow_workers();
        this
    }

    /// Reads the rings of the workers that there are now. Those of others are read until they are empty.
    fn follow_workers(&mut self) {
        let workers = self.shared.control.workers();
        for rx_ring in &mut self.list {
            if let Origin::Worker(worker) = rx_ring.origin {
                rx_ring.retired = worker >= workers;
            }
        }
        for worker in 0..workers {
            let origin = Origin::Worker(worker);
            if self.list.iter().any(|rx_ring| rx_ring.origin == origin) {
                continue;
            }
            // SAFETY: the only consumer: `Attachment` makes one Endpoint per thread, which keeps `shared` mapped, and
            // the list has no other one of this ring.
            let consumer = unsafe { self.shared.control.ring_to_nf(self.thread, worker).consumer() };
            self.list.push(RxRing { consumer, origin, chains: Vec::new(), retired: false });
        }
    }

    /// Takes a burst from the next ring with packets, round robin.
    #[inline]
    pub(crate) fn receive(&mut self, out: &mut [Descriptor]) -> usize {
        for _ in 0..self.list.len() {
            self.next = if self.next + 1 >= self.list.len() { 0 } else { self.next + 1 };
            let count = self.list[self.next].consumer.pop(out);
            if count > 0 {
                self.clear_backpressure();
                return count;
            }
        }
        0
    }

    /// Prefetches the next burst of the ring that was read last, while the thread sends the current one.
    #[inline]
    pub(crate) fn prefetch(&mut self, descriptors: u32) {
        if let Some(rx_ring) = self.list.get_mut(self.next) {
            rx_ring.consumer.prefetch(descriptors);
        }
    }

    /// Clears the backpressure of the writer of the ring that was read last, once half of the ring is free.
    #[inline]
    fn clear_backpressure(&self) {
        let rx_ring = &self.list[self.next];
        let (Origin::NfThread(from, _), Some(region)) = (rx_ring.origin, self.shared.regions.first()) else {
            return;
        };
        if has_backpressure(region, &rx_ring.chains, from) {
            let memory = rx_ring.consumer.memory();
            if memory.occupancy() <= memory.capacity() / 2 {
                clear_backpressure(region, &rx_ring.chains, from);
            }
        }
    }

    /// Applies a new table: reads its direct rings into this NF thread, and the rings of new workers. Rings that the
    /// table no longer has are read until they are empty: their producer is gone or has confirmed that it does not use
    /// them.
    pub(crate) fn apply(&mut self, table: &Table) {
        self.follow_workers();
        let wanted = |from: u8| table.rings[usize::from(from)][usize::from(self.nf_thread)].get();
        for rx_ring in &mut self.list {
            if let Origin::NfThread(from, ring) = rx_ring.origin {
                rx_ring.chains = chains_from_to(table, from, self.nf_thread);
                rx_ring.retired = wanted(from) != Some(ring);
            }
        }
        for from in 1..MAX_NF_THREADS as u8 {
            let Some(ring) = wanted(from) else { continue };
            let origin = Origin::NfThread(from, ring);
            if self.list.iter().any(|rx_ring| rx_ring.origin == origin) {
                continue;
            }
            let Some(memory) = self.shared.direct_ring(ring) else { continue };
            // SAFETY: the only consumer: the engine assigns each direct ring one consuming NF thread, which is this
            // one.
            let consumer = unsafe { memory.consumer() };
            let chains = chains_from_to(table, from, self.nf_thread);
            self.list.push(RxRing { consumer, origin, chains, retired: false });
        }
        let is_poll_only = |rx_ring: &RxRing| match rx_ring.origin {
            Origin::NfThread(from, _) => table.poll_only >> from & 1 == 1,
            Origin::Worker(_) => false,
        };
        self.has_poll_only = self.list.iter().any(is_poll_only);
    }

    /// Removes retired rings that are empty; returns whether none are left.
    pub(crate) fn remove_retired(&mut self) -> bool {
        self.list.retain_mut(|rx_ring| !rx_ring.retired || rx_ring.consumer.available() > 0);
        self.list.iter().all(|rx_ring| !rx_ring.retired)
    }

    /// Whether packets may come without a wake-up.
    pub(crate) const fn has_poll_only(&self) -> bool {
        self.has_poll_only
    }

    /// Announces on every ring that the thread is about to sleep; returns whether all are empty. Call
    /// [`RxRings::end_wait`] in either case.
    pub(crate) fn prepare_wait(&mut self) -> bool {
        let mut empty = true;
        for rx_ring in &mut self.list {
            empty &= rx_ring.consumer.prepare_wait();
        }
        empty
    }

    pub(crate) fn end_wait(&mut self) {
        for rx_ring in &mut self.list {
            rx_ring.consumer.end_wait();
        }
    }
}
