//! A worker's queues of ports, and its rings to the workers that have the others.

use netvm_region::MAX_PORTS;

use super::handoff::Handoff;
use crate::counters::WorkerCounters;
use crate::ids::PortId;
use crate::port::PortQueue;

pub(crate) struct Ports {
    /// By [`PortId`]: the queues that this worker has.
    queues: Vec<Option<Box<PortQueue>>>,
    /// Ports with packets that are not sent yet, one bit each.
    unsent: [u64; MAX_PORTS / 64],
    /// Rings to workers that have the queues of other ports.
    pub(crate) handoff: Handoff,
    /// Packets may carry offload work that their sender left to others (checksums, segments); see `tx/offload.rs`.
    pub(crate) has_offload_work: bool,
}

impl Ports {
    pub(crate) fn new(handoff: Handoff) -> Self {
        let queues = (0..MAX_PORTS).map(|_| None).collect();
        Self { queues, unsent: [0; MAX_PORTS / 64], handoff, has_offload_work: false }
    }

    pub(crate) fn add(&mut self, queue: Box<PortQueue>) {
        let port = queue.port;
        self.has_offload_work |= queue.leaves_work();
        self.queues[port.index()] = Some(queue);
    }

    pub(crate) fn remove(&mut self, port: PortId) -> Option<Box<PortQueue>> {
        self.queues[port.index()].take()
    }

    #[inline(always)]
    pub(crate) fn get(&self, port: PortId) -> Option<&PortQueue> {
        self.queues.get(port.index())?.as_deref()
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, port: PortId) -> Option<&mut PortQueue> {
        self.queues.get_mut(port.index())?.as_deref_mut()
    }

    /// The port has packets to send.
    #[inline(always)]
    pub(crate) fn mark_unsent(&mut self, port: PortId) {
        self.unsent[port.index() / 64] |= 1 << (port.0 % 64);
    }

    /// Sends what the ports have gathered. Returns how many packets the devices took.
    #[inline]
    pub(crate) fn flush(&mut self, counters: &WorkerCounters) -> usize {
        let mut sent = 0;
        for word in 0..self.unsent.len() {
            let mut rest = self.unsent[word];
            while rest != 0 {
                let bit = rest.trailing_zeros();
                rest &= rest - 1;
                let port = word * 64 + bit as usize;
                let Some(queue) = self.queues[port].as_mut() else { continue };
                sent += queue.flush(&counters.ports[port]);
                if queue.is_flushed() {
                    self.unsent[word] &= !(1 << bit);
                }
            }
        }
        sent
    }
}
