//! Ports: the [`Device`] trait and a file for each kind of device.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use dpdk::{Accepts, Batch};

use crate::drop_reason::DropReason;
use crate::ids::{MemoryId, PortId};
use crate::memory::Memory;
pub(crate) use context::PortContext;
use gro::Gro;
use shaper::Shaper;

mod buffers;
pub(crate) mod builtin;
mod context;
pub(crate) mod ethdev;
mod gro;
pub(crate) mod guest;
pub(crate) mod kernel;
pub(crate) mod missed;
pub(crate) mod shaper;
pub(crate) mod xsk;

/// How an idle worker learns that a device has packets.
pub(crate) enum Arrival<'a> {
    /// This descriptor is readable while packets wait, as long as the worker has the device.
    Readable(BorrowedFd<'a>),
    /// The device never receives.
    Never,
    /// The worker asks before each sleep: [`Device::expects`].
    Ask,
}

/// What an idle worker has to expect of a device during a sleep.
pub(crate) enum Expects<'a> {
    /// Packets make this descriptor readable.
    Readable(BorrowedFd<'a>),
    /// Packets have arrived.
    Arrived,
    /// Packets may arrive without a notice: the worker must poll the device.
    Unnoticed,
    /// No packets.
    Nothing,
}

/// One queue pair of a port, owned by one worker.
pub(crate) trait Device: Send {
    /// Receives up to `wanted` packets into `out`, which has room for them. The caller owns them. Counts only packets
    /// that it refuses.
    fn receive(&mut self, memory: &Memory, out: &mut Batch, wanted: usize, cx: &PortContext<'_>);

    /// Takes packets of `memory` for transmission and empties the batch. Drops and counts packets that it cannot take.
    fn enqueue(&mut self, memory: &Memory, batch: &mut Batch, cx: &PortContext<'_>);

    /// Sends the packets that it took; counts and returns the number of sent packets.
    fn flush(&mut self, cx: &PortContext<'_>) -> usize;

    /// Whether nothing waits to be sent.
    fn is_flushed(&self) -> bool;

    /// Whether to call [`Device::flush`] again in the next turn.
    fn needs_flush(&self) -> bool {
        !self.is_flushed()
    }

    /// How the worker learns that packets have arrived; does not change.
    fn arrival(&self) -> Arrival<'_> {
        Arrival::Ask
    }

    /// Called before the worker sleeps, unless [`Device::arrival`] says enough: enables notifications. The next
    /// [`Device::receive`] that finds packets disables them.
    fn prepare_wait(&mut self) {}

    /// What to expect during a sleep, after [`Device::prepare_wait`].
    fn expects(&self) -> Expects<'_> {
        match self.arrival() {
            Arrival::Readable(fd) => Expects::Readable(fd),
            Arrival::Never => Expects::Nothing,
            Arrival::Ask => Expects::Unnoticed,
        }
    }

    /// The core on which the kernel received its last packet.
    fn kernel_core(&self) -> Option<u32> {
        None
    }

    /// Offloads that it accepts in packets to send.
    fn accepts(&self) -> Accepts {
        Accepts::default()
    }

    /// Whether received packets may carry unfinished offload work.
    fn leaves_work(&self) -> bool {
        false
    }

    /// The only memory that it can send from, if it is limited to one.
    fn sends_from(&self) -> Option<MemoryId> {
        None
    }

    /// Receives into another memory from now on, and gives the buffers of the old one back. Only devices of kinds that
    /// receive into any memory (`PortKind::receives_into_any_memory`) are asked to; those that keep no buffers and no
    /// memory have nothing to do.
    fn use_memory(&mut self, _memory: &Arc<Memory>) {}
}

/// A device with its own burst of packets to send.
pub(crate) trait Gathers: Device {
    /// Packets taken and not sent yet.
    fn unsent(&mut self) -> &mut Batch;

    /// Implements [`Device::enqueue`]: sends when the burst is full, and drops packets that still do not fit.
    #[inline]
    fn gather(&mut self, batch: &mut Batch, cx: &PortContext<'_>) {
        self.unsent().append(batch);
        if !batch.is_empty() {
            self.flush(cx);
            self.unsent().append(batch);
        }
        if !batch.is_empty() {
            cx.note_drops(DropReason::TxFull, batch.as_slice());
            batch.clear();
        }
    }
}

/// The queues of one port that one worker serves.
pub(crate) struct PortQueue {
    pub(crate) port: PortId,
    /// The memory that received packets use.
    pub(crate) memory: MemoryId,
    /// Receive only when the chain has room.
    pub(crate) waits_for_room: bool,
    /// Another worker sends: it has the port's shaper.
    pub(crate) hands_over: bool,
    /// Delays and orders packets to send.
    shaper: Option<Box<Shaper>>,
    /// Coalesces received packets.
    gro: Option<Box<Gro>>,
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
        let (hands_over, shaper, gro) = (false, None, None);
        Self { port, memory, waits_for_room, hands_over, shaper, gro, devices, turn: 0 }
    }

    /// The last of several queues, for another worker; `None` if there is only one.
    pub(crate) fn split_off(&mut self) -> Option<Self> {
        if self.devices.len() < 2 {
            return None;
        }
        let devices = self.devices.pop().into_iter().collect();
        let queue = Self::new(self.port, self.memory, self.waits_for_room, devices);
        Some(queue.with_gro(self.gro.is_some()))
    }

    /// Serves the queues of another part of the port, too. At most one of the two has a shaper.
    pub(crate) fn join(&mut self, other: Self) {
        self.devices.extend(other.devices);
        self.shaper = self.shaper.take().or(other.shaper);
    }

    /// Coalesces received packets if `is_on`.
    pub(crate) fn with_gro(self, is_on: bool) -> Self {
        Self { gro: is_on.then(Box::default), ..self }
    }

    /// Receives from the next queue in turn.
    #[inline]
    pub(crate) fn receive(&mut self, memory: &Memory, out: &mut Batch, wanted: usize, cx: &PortContext<'_>) {
        self.turn = if self.turn + 1 >= self.devices.len() { 0 } else { self.turn + 1 };
        if let Some(device) = self.devices.get_mut(self.turn) {
            device.receive(memory, out, wanted, cx);
        }
        if let Some(gro) = &mut self.gro
            && out.len() > 1
        {
            gro.coalesce(memory, out, cx);
        }
    }

    #[inline]
    pub(crate) fn enqueue(&mut self, memory: &Memory, batch: &mut Batch, cx: &PortContext<'_>) {
        if let Some(device) = self.devices.first_mut() {
            device.enqueue(memory, batch, cx);
        }
    }

    /// Replaces the shaper. Without a new one, the old one releases its packets at once.
    pub(crate) fn set_shaper(&mut self, new: Option<Box<Shaper>>) -> Option<Box<Shaper>> {
        match (new, &mut self.shaper) {
            (None, Some(old)) => {
                old.is_retiring = true;
                None
            }
            (new, shaper) => std::mem::replace(shaper, new),
        }
    }

    /// Receives into `new` instead of `old`. The device stays open. Packets that wait in the shaper are sent at once, as
    /// they are in the old memory.
    pub(crate) fn use_memory(&mut self, new: &Arc<Memory>, old: Option<&Memory>, cx: &PortContext<'_>) {
        if let (Some(shaper), Some(device), Some(old)) = (&mut self.shaper, self.devices.first_mut(), old) {
            let mut burst = Batch::new();
            while let Some(packet) = shaper.pop_any() {
                // The batch is empty, so it has room.
                let _ = burst.push(packet);
                device.enqueue(old, &mut burst, cx);
            }
            device.flush(cx);
        }
        self.memory = new.id;
        self.devices.iter_mut().for_each(|device| device.use_memory(new));
    }

    /// The shaper that packets pass.
    #[inline]
    pub(crate) fn shaper(&mut self) -> Option<&mut Shaper> {
        self.shaper.as_deref_mut().filter(|shaper| !shaper.is_retired())
    }

    /// Passes packets that the shaper releases to the device.
    pub(crate) fn shape(&mut self, now: u64, memory: &Memory, cx: &PortContext<'_>) {
        let (Some(shaper), Some(device)) = (self.shaper.as_deref_mut(), self.devices.first_mut()) else {
            return;
        };
        let mut burst = Batch::new();
        shaper.pop_burst(now, &mut burst, cx);
        if !burst.is_empty() {
            device.enqueue(memory, &mut burst, cx);
        }
    }

    #[inline]
    pub(crate) fn flush(&mut self, cx: &PortContext<'_>) -> usize {
        self.devices.first_mut().map_or(0, |device| device.flush(cx))
    }

    pub(crate) fn is_flushed(&self) -> bool {
        self.devices.first().is_none_or(|device| device.is_flushed())
            && self.shaper.as_ref().is_none_or(|shaper| shaper.is_empty())
    }

    /// Whether to flush it again in the next turn.
    #[inline]
    pub(crate) fn needs_flush(&self) -> bool {
        self.devices.first().is_some_and(|device| device.needs_flush())
            || self.shaper.as_ref().is_some_and(|shaper| !shaper.is_empty())
    }

    #[inline]
    pub(crate) fn sends_from(&self) -> Option<MemoryId> {
        let only = self.devices.first()?.sends_from();
        if only.is_none() && self.shaper.as_ref().is_some_and(|shaper| !shaper.is_retired()) {
            return Some(self.memory);
        }
        only
    }

    #[inline]
    pub(crate) fn accepts(&self) -> Accepts {
        let accepts = self.devices.first().map_or_else(Accepts::default, |device| device.accepts());
        match &self.shaper {
            Some(shaper) if !shaper.passes_segments => {
                Accepts { tso4: false, tso6: false, uso: false, ..accepts }
            }
            _ => accepts,
        }
    }

    pub(crate) fn leaves_work(&self) -> bool {
        self.gro.is_some() || self.devices.iter().any(|device| device.leaves_work())
    }

    /// The core on which the kernel received the last packet of the queue whose turn it was.
    pub(crate) fn kernel_core(&self) -> Option<u32> {
        self.devices.get(self.turn)?.kernel_core()
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
