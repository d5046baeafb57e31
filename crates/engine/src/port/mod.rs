//! Ports: one trait, a file for each kind of device.

use std::os::fd::BorrowedFd;

use dpdk::{Accepts, Batch};

use crate::counters::PortCounters;
use crate::drop_reason::DropReason;
use crate::ids::{MemoryId, PortId};
use crate::memory::Memory;

pub(crate) mod capture;
pub(crate) mod ethdev;
pub(crate) mod missed;
pub(crate) mod sink;
pub(crate) mod source;
pub(crate) mod vhost;
pub(crate) mod xsk;

/// How a worker that has nothing to do can learn that a device has packets.
pub(crate) enum Arrival<'a> {
    /// The descriptor becomes readable.
    Readable(BorrowedFd<'a>),
    /// They are there.
    Waiting,
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

    /// The worker is about to sleep: what has to be done for [`Device::arrival`] to tell. Ends with the next
    /// [`Device::receive`] that finds packets.
    fn prepare_wait(&mut self) {}

    /// How to learn of packets.
    fn arrival(&self) -> Arrival<'_>;

    /// What it sends besides plain packets.
    fn accepts(&self) -> Accepts {
        Accepts::default()
    }

    /// Whether packets that come in may have something left to do.
    fn leaves_work(&self) -> bool {
        false
    }

    /// The only memory that it can send from, if there is but one.
    fn sends_from(&self) -> Option<MemoryId> {
        None
    }
}

/// A device that gathers what is to be sent into a burst of its own.
pub(crate) trait Gathers: Device {
    /// What it has taken over and not sent.
    fn unsent(&mut self) -> &mut Batch;

    /// [`Device::enqueue`]: what does not fit behind the rest, which is then sent, is dropped.
    #[inline]
    fn gather(&mut self, batch: &mut Batch, counters: &PortCounters) {
        self.unsent().append(batch);
        if !batch.is_empty() {
            self.flush(counters);
            self.unsent().append(batch);
        }
        if !batch.is_empty() {
            counters.drops.add(DropReason::TxFull, batch.len() as u64);
            batch.clear();
        }
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

    #[inline]
    pub(crate) fn accepts(&self) -> Accepts {
        self.devices.first().map_or_else(Accepts::default, |device| device.accepts())
    }

    pub(crate) fn leaves_work(&self) -> bool {
        self.devices.iter().any(|device| device.leaves_work())
    }

    pub(crate) fn prepare_wait(&mut self) {
        for device in &mut self.devices {
            device.prepare_wait();
        }
    }

    pub(crate) fn devices(&self) -> &[Box<dyn Device>] {
        &self.devices
    }
}
