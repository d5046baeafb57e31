// SPDX-License-Identifier: Apache-2.0
//! The stock of an NF thread: empty buffers from each worker. The thread asks for them when it makes its first packet,
//! and again when few are left; the worker writes them into a ring.

use std::sync::Arc;

use netvm_clock as clock;
use netvm_ring::{Consumer, Descriptor, Message};

use crate::shared::Shared;
use crate::tx_rings::TxRings;

/// Buffers that a worker gives at a time.
const BURST: usize = 64;
/// Buffers that a thread asks for at first.
const FIRST: u32 = 32;
/// How long the first packet waits for the first buffers. A worker that sleeps is woken.
const FIRST_WAIT_MICROS: u64 = 10_000;
/// Time after which an unanswered request counts as lost: the pool was empty.
const ANSWER_MICROS: u64 = 1_000;

/// Empty buffers of one worker.
#[derive(Debug)]
struct OfWorker {
    ring: Consumer,
    /// The last one is used first: it is probably still in the cache.
    buffers: Vec<Descriptor>,
    /// How many the thread wants to have.
    target: u32,
    requested_at: Option<u64>,
    /// It has waited for the first ones.
    has_waited: bool,
}

/// Empty buffers of all workers.
#[derive(Debug)]
pub(super) struct Stock {
    shared: Arc<Shared>,
    thread: u16,
    by_worker: Vec<Option<OfWorker>>,
}

impl Stock {
    pub(super) const fn new(shared: Arc<Shared>, thread: u16) -> Self {
        Self { shared, thread, by_worker: Vec::new() }
    }

    /// An empty buffer of a worker.
    pub(super) fn take(&mut self, worker: u8, tx_rings: &mut TxRings) -> Option<Descriptor> {
        let most = self.shared.control.quota().allocate;
        let of = self.of(worker)?;
        if of.buffers.is_empty() && of.refill() == 0 {
            of.request(worker, most, tx_rings);
            if std::mem::replace(&mut of.has_waited, true) || !of.wait() {
                return None;
            }
        }
        let buffer = of.buffers.pop();
        if of.buffers.len() < of.target as usize / 2 && of.refill() == 0 {
            of.request(worker, most, tx_rings);
        }
        buffer
    }

    /// Takes a buffer back, if there is room for it. Large buffers are too few to be kept.
    pub(super) fn put(&mut self, buffer: Descriptor) -> bool {
        let (most, staying) = (self.shared.control.quota().allocate, self.shared.control.staying());
        let Some(geometry) = self.shared.region_of(buffer.worker()).map(|region| *region.geometry()) else {
            return false;
        };
        let is_usual =
            geometry.size_of(buffer.buffer()) == geometry.stride && u16::from(buffer.worker()) < staying;
        let Some(of) = self.of(buffer.worker()) else { return false };
        if !is_usual || of.buffers.len() >= most as usize {
            return false;
        }
        of.buffers.push(buffer.with_span(geometry.headroom as u16, 0));
        true
    }

    /// Whether there are rings of workers that are about to end.
    pub(super) fn has_leaving(&self) -> bool {
        self.by_worker.len() > usize::from(self.shared.control.staying())
    }

    /// The buffers of these workers, which may still answer an earlier request.
    pub(super) fn take_leaving(&mut self) -> Vec<Descriptor> {
        let (staying, workers) = (self.shared.control.staying(), self.shared.control.workers());
        let mut leaving = Vec::new();
        for of in self.by_worker.iter_mut().skip(staying.into()).flatten() {
            while of.refill() > 0 {}
            leaving.append(&mut of.buffers);
        }
        self.by_worker.truncate(workers.into());
        leaving
    }

    fn of(&mut self, worker: u8) -> Option<&mut OfWorker> {
        let index = usize::from(worker);
        if index >= usize::from(self.shared.control.staying()) {
            return None;
        }
        if self.by_worker.len() <= index {
            self.by_worker.resize_with(index + 1, || None);
        }
        if self.by_worker[index].is_none() {
            let ring = self.shared.control.ring_of_buffers(self.thread, worker.into())?;
            // SAFETY: the only consumer: `Attachment` makes one Endpoint per thread, which keeps `shared` mapped; the
            // list has no other one of this ring, and one that it had before has read it until it was empty.
            let ring = unsafe { ring.consumer() };
            let quota = self.shared.control.quota().allocate;
            self.by_worker[index] = Some(OfWorker {
                ring,
                buffers: Vec::with_capacity(quota as usize),
                target: FIRST.min(quota),
                requested_at: None,
                has_waited: false,
            });
        }
        self.by_worker[index].as_mut()
    }
}

impl OfWorker {
    /// Takes what the worker has given. Returns the number of buffers.
    fn refill(&mut self) -> usize {
        let mut given = [Descriptor::default(); BURST];
        let count = self.ring.pop(&mut given);
        if count > 0 {
            self.requested_at = None;
            self.buffers.extend_from_slice(&given[..count]);
        }
        count
    }

    /// Asks the worker for buffers, unless it has not answered yet. Asks for more than before if none was left.
    fn request(&mut self, worker: u8, most: u32, tx_rings: &mut TxRings) {
        let now = clock::cycles();
        let answer_time = clock::cycles_in_micros(ANSWER_MICROS);
        if self.requested_at.is_some_and(|at| now.wrapping_sub(at) < answer_time) {
            return;
        }
        if self.buffers.is_empty() && self.has_waited {
            self.target = (self.target * 4).min(most);
        }
        self.requested_at = Some(now);
        let mut wanted = self.target.saturating_sub(self.buffers.len() as u32);
        while wanted > 0 {
            let count = wanted.min(BURST as u32);
            tx_rings.send_as_is(Descriptor::control(Message::RequestBuffers(count as u16), worker));
            wanted -= count;
        }
        tx_rings.publish();
    }

    /// Waits for the first buffers. Returns whether there are some.
    fn wait(&mut self) -> bool {
        let (start, longest) = (clock::cycles(), clock::cycles_in_micros(FIRST_WAIT_MICROS));
        while self.refill() == 0 {
            if clock::cycles().wrapping_sub(start) > longest {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }
}
