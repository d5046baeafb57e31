// SPDX-License-Identifier: Apache-2.0
//! A worker's queues of ports, and its rings to workers that have the queues of other ports.

use netvm_region::MAX_PORTS;

use super::handoff::Handoff;
use super::memories::Memories;
use crate::capture::WorkerCaptures;
use crate::counters::WorkerCounters;
use crate::ids::{PortId, WorkerId};
use crate::interface::{PortContext, PortQueue};
use crate::port_bits::{PortBits, bits};

const WORDS: usize = MAX_PORTS / 64;
const _: () = assert!(WORDS <= 64);

pub(crate) struct Ports {
    /// By [`PortId`]: the queues that this worker has.
    queues: Vec<Option<Box<PortQueue>>>,
    /// Ports with packets that are not sent yet, one bit each.
    unsent: [u64; WORDS],
    /// The words of `unsent` that are not 0.
    unsent_words: u64,
    /// Ports that have sent lately.
    pub(crate) sent: PortBits,
    /// Rings to workers that have the queues of other ports.
    pub(crate) handoff: Handoff,
    /// Packets may have pending offloads (checksums, segments); see `tx/offload.rs`.
    pub(crate) has_offload_work: bool,
    /// Ports that wait for room.
    waiting: usize,
    /// Ports without a device: only their shaper is here.
    pub(crate) shaped: Vec<PortId>,
}

impl Ports {
    pub(crate) fn new(handoff: Handoff) -> Self {
        let queues = (0..MAX_PORTS).map(|_| None).collect();
        Self {
            queues,
            unsent: [0; WORDS],
            unsent_words: 0,
            sent: PortBits::default(),
            handoff,
            has_offload_work: false,
            waiting: 0,
            shaped: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, queue: Box<PortQueue>) {
        let port = queue.port;
        self.has_offload_work |= queue.leaves_work();
        self.waiting += usize::from(queue.waits_for_room);
        if queue.devices().is_empty() {
            self.shaped.push(port);
        }
        self.queues[port.index()] = Some(queue);
    }

    pub(crate) fn remove(&mut self, port: PortId) -> Option<Box<PortQueue>> {
        let queue = self.queues[port.index()].take()?;
        self.waiting -= usize::from(queue.waits_for_room);
        self.shaped.retain(|shaped| *shaped != port);
        Some(queue)
    }

    /// Whether the worker has a port that waits for room, and another worker has none for more packets.
    #[inline(always)]
    pub(crate) fn has_to_wait(&self) -> bool {
        self.waiting > 0 && self.handoff.is_filling()
    }

    #[inline(always)]
    pub(crate) fn get(&self, port: PortId) -> Option<&PortQueue> {
        self.queues.get(port.index())?.as_deref()
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, port: PortId) -> Option<&mut PortQueue> {
        self.queues.get_mut(port.index())?.as_deref_mut()
    }

    /// The queue by which this worker sends; `None`: it hands packets of the port over to another.
    #[inline(always)]
    pub(crate) fn sender(&self, port: PortId) -> Option<&PortQueue> {
        self.get(port).filter(|queue| !queue.hands_over)
    }

    /// Has packets to a port handed over to another worker; `None`: this worker sends, or nobody does.
    pub(crate) fn set_owner(&mut self, port: PortId, owner: Option<WorkerId>) {
        self.handoff.set_owner(port, owner);
        if let Some(queue) = self.get_mut(port) {
            queue.hands_over = owner.is_some();
        }
    }

    /// Marks a port that has packets to send.
    #[inline(always)]
    pub(crate) fn mark_unsent(&mut self, port: PortId) {
        let word = port.index() / 64;
        self.unsent[word] |= 1 << (port.0 % 64);
        self.unsent_words |= 1 << word;
        self.sent.add(port);
    }

    /// Whether ports have packets that are not sent yet.
    pub(crate) const fn has_unsent(&self) -> bool {
        self.unsent_words != 0
    }

    /// Sends the packets that the ports have gathered. Returns how many the devices took.
    #[inline]
    pub(crate) fn flush(
        &mut self,
        now: u64,
        memories: &Memories,
        counters: &WorkerCounters,
        captures: Option<&WorkerCaptures>,
    ) -> usize {
        let mut sent = 0;
        for word in bits(self.unsent_words) {
            for bit in bits(self.unsent[word]) {
                let Some(queue) = self.queues[word * 64 + bit].as_mut() else { continue };
                let cx = PortContext::new(queue.port, counters, captures);
                if queue.shaper().is_some()
                    && let Some(memory) = queue.sends_from().and_then(|memory| memories.get(memory))
                {
                    queue.shape(now, memory, &cx);
                }
                sent += queue.flush(&cx);
                if !queue.needs_flush() {
                    self.unsent[word] &= !(1 << bit);
                }
            }
            if self.unsent[word] == 0 {
                self.unsent_words &= !(1 << word);
            }
        }
        sent
    }
}
