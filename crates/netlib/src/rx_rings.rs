//! The rx rings of an NF thread: one from each worker, and one from each NF thread that precedes it in a chain. Out: a
//! burst from one ring at a time, round robin.

use std::sync::Arc;

use netvm_region::{MAX_NF_THREADS, RingRef, Table};
use netvm_ring::{Consumer, Descriptor};

use crate::shared::Shared;
use crate::tx_rings::pressure::{chains_from_to, clear_backpressure, has_backpressure};

#[derive(Debug)]
struct RxRing {
    consumer: Consumer,
    /// The NF thread that writes the ring, and the ring; `None` for a worker.
    origin: Option<(u8, RingRef)>,
    /// Chains whose packets use this ring.
    chains: Vec<u16>,
    retired: bool,
}

/// All rx rings of an NF thread.
#[derive(Debug)]
pub(crate) struct RxRings {
    shared: Arc<Shared>,
    nf_thread: u8,
    list: Vec<RxRing>,
    next: usize,
    /// Whether an NF thread that never signals writes to this one.
    has_silent: bool,
}

impl RxRings {
    pub(crate) fn new(shared: Arc<Shared>, thread: u16, nf_thread: u8) -> Self {
        let workers = shared.control.header().workers;
        let list = (0..workers)
            .map(|worker| RxRing {
                // SAFETY: the only consumer: `Attachment` makes one Endpoint per thread, which keeps `shared` mapped.
                consumer: unsafe { shared.control.ring_to_nf(thread, worker).consumer() },
                origin: None,
                chains: Vec::new(),
                retired: false,
            })
            .collect();
        Self { shared, nf_thread, list, next: 0, has_silent: false }
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
        let (Some((from, _)), Some(region)) = (rx_ring.origin, self.shared.regions.first()) else { return };
        if has_backpressure(region, &rx_ring.chains, from) {
            let memory = rx_ring.consumer.memory();
            if memory.occupancy() <= memory.capacity() / 2 {
                clear_backpressure(region, &rx_ring.chains, from);
            }
        }
    }

    /// Applies a new table: reads its direct rings into this NF thread. Rings that the table no longer has are read
    /// until they are empty: their producer is gone or has confirmed that it does not use them.
    pub(crate) fn apply(&mut self, table: &Table) {
        let wanted = |from: u8| table.rings[usize::from(from)][usize::from(self.nf_thread)].get();
        for rx_ring in &mut self.list {
            if let Some((from, _)) = rx_ring.origin {
                rx_ring.chains = chains_from_to(table, from, self.nf_thread);
            }
            rx_ring.retired = rx_ring.origin.is_some_and(|(from, ring)| wanted(from) != Some(ring));
        }
        for from in 1..MAX_NF_THREADS as u8 {
            let Some(ring) = wanted(from) else { continue };
            if self.list.iter().any(|rx_ring| rx_ring.origin == Some((from, ring))) {
                continue;
            }
            let Some(memory) = self.shared.direct_ring(ring) else { continue };
            // SAFETY: the only consumer: the engine assigns each direct ring one consuming NF thread, which is this
            // one.
            let consumer = unsafe { memory.consumer() };
            let chains = chains_from_to(table, from, self.nf_thread);
            self.list.push(RxRing { consumer, origin: Some((from, ring)), chains, retired: false });
        }
        let is_silent =
            |rx_ring: &RxRing| rx_ring.origin.is_some_and(|(from, _)| table.silent >> from & 1 == 1);
        self.has_silent = self.list.iter().any(is_silent);
    }

    /// Removes retired rings that are empty; returns whether none are left.
    pub(crate) fn remove_retired(&mut self) -> bool {
        self.list.retain_mut(|rx_ring| !rx_ring.retired || rx_ring.consumer.available() > 0);
        self.list.iter().all(|rx_ring| !rx_ring.retired)
    }

    /// Whether packets may come without a wake-up.
    pub(crate) const fn has_silent(&self) -> bool {
        self.has_silent
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
