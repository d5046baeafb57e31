//! Ports: one trait, a file for each kind of device.

use std::os::fd::BorrowedFd;

use dpdk::Batch;

use crate::counters::PortCounters;
use crate::ids::{MemoryId, PortId};
use crate::memory::Memory;

pub(crate) mod capture;
pub(crate) mod ethdev;
pub(crate) mod missed;
pub(crate) mod sink;
pub(crate) mod source;
pub(crate) mod xsk;

/// How a worker that has nothing to do can learn that a device has packets.
pub(crate) enum Arrival<'a> {
    /// The descriptor becomes readable.
    Readable(BorrowedFd<'a>),
    /// Only by asking the device.
    Ask,
    /// Never: nothing comes in.
    Never,
}

/// One queue pair of a port, owned by one worker.
pub(crate) trait Device: Send {
    /// Takes up to `wanted` packets into `out`, which has room for them; the caller owns them.
    fn receive(&mut self, memory: &Memory, out: &mut Batch, wanted: usize);

    /// Takes over packets of `memory` that are to be sent, and leaves the batch empty; counts those that it cannot.
    fn enqueue(&mut self, memory: &Memory, batch: &mut Batch, counters: &PortCounters);

    /// Sends what was taken over; returns how many packets went and counts them.
    fn flush(&mut self, counters: &PortCounters) -> usize;

    /// Whether nothing waits to be sent.
    fn is_flushed(&self) -> bool;

    /// How to learn of packets.
    fn arrival(&self) -> Arrival<'_>;

    /// The only memory that it can send from, if there is but one.
    fn sends_from(&self) -> Option<MemoryId> {
        None
    }
}

/// The queues of one port that one worker has.
pub(crate) struct PortQueue {
    pub(crate) port: PortId,
    /// Where received packets land.
    pub(crate) memory: MemoryId,
    /// Packets are taken only when there is room for them further on.
    pub(crate) waits_for_room: bool,
    devices: Vec<Box<dyn Device>>,
    turn: usize,
}

impl PortQueue {
    pub(crate) fn new(
        port: PortId,
        memory: MemoryId,
        waits_for_room: bool,
        devices: Vec<Box<dyn Device>>,
    ) -> Self {
        Self { port, memory, waits_for_room, devices, turn: 0 }
    }

    /// From the next of its queues.
    #[inline]
    pub(crate) fn receive(&mut self, memory: &Memory, out: &mut Batch, wanted: usize) {
        self.turn = if self.turn + 1 >= self.devices.len() { 0 } else { self.turn + 1 };
        if let Some(device) = self.devices.get_mut(self.turn) {
            device.receive(memory, out, wanted);
        }
    }

    #[inline]
    pub(crate) fn enqueue(&mut self, memory: &Memory, batch: &mut Batch, counters: &PortCounters) {
        if let Some(device) = self.devices.first_mut() {
            device.enqueue(memory, batch, counters);
        }
    }

    #[inline]
    pub(crate) fn flush(&mut self, counters: &PortCounters) -> usize {
        self.devices.first_mut().map_or(0, |device| device.flush(counters))
    }

    pub(crate) fn is_flushed(&self) -> bool {
        self.devices.first().is_none_or(|device| device.is_flushed())
    }

    #[inline]
    pub(crate) fn sends_from(&self) -> Option<MemoryId> {
        self.devices.first()?.sends_from()
    }

    pub(crate) fn devices(&self) -> &[Box<dyn Device>] {
        &self.devices
    }
}
