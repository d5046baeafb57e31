// SPDX-License-Identifier: Apache-2.0
//! The queues of a port that one worker serves, whatever their devices: they shape what is sent, and coalesce what is
//! received.

mod gro;
mod shaper;

use std::sync::Arc;

use dpdk::{Accepts, Batch};

use crate::ids::{MemoryId, PortId};
use crate::interface::device::{Device, PortContext};
use crate::memory::Memory;
use gro::Gro;
pub(crate) use shaper::Shaper;

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
    /// None, if the port has no device and only its shaper is here.
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

    /// Receives into `new` instead of `old`. The device stays open. Packets that wait in the shaper are sent at once,
    /// as they are in the old memory.
    pub(crate) fn use_memory(&mut self, new: &Arc<Memory>, old: Option<&Memory>, cx: &PortContext<'_>) {
        if let (Some(shaper), Some(device), Some(old)) = (&mut self.shaper, self.devices.first_mut(), old) {
            while let Some(packet) = shaper.pop_any() {
                device.enqueue(old, &mut Batch::from(packet), cx);
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

    /// Passes packets that the shaper releases to the device. Those of a port without one stay: see
    /// [`PortQueue::release`].
    pub(crate) fn shape(&mut self, now: u64, memory: &Memory, cx: &PortContext<'_>) {
        if self.devices.is_empty() {
            return;
        }
        let mut burst = Batch::new();
        self.release(now, &mut burst, cx);
        if let (Some(device), false) = (self.devices.first_mut(), burst.is_empty()) {
            device.enqueue(memory, &mut burst, cx);
        }
    }

    /// Takes the packets that the shaper releases.
    pub(crate) fn release(&mut self, now: u64, burst: &mut Batch, cx: &PortContext<'_>) {
        if let Some(shaper) = self.shaper.as_deref_mut() {
            shaper.pop_burst(now, burst, cx);
        }
    }

    /// Sends what waits: in other devices than the first, only what they had when their queue came from another worker.
    #[inline]
    pub(crate) fn flush(&mut self, cx: &PortContext<'_>) -> usize {
        let Some((first, others)) = self.devices.split_first_mut() else { return 0 };
        let waiting = others.iter_mut().filter(|device| !device.is_flushed());
        let older: usize = waiting.map(|device| device.flush(cx)).sum();
        older + first.flush(cx)
    }

    /// Drops and counts the packets that its devices have not sent, because the port closes.
    pub(crate) fn drop_unsent(&mut self, cx: &PortContext<'_>) {
        self.devices.iter_mut().for_each(|device| device.drop_unsent(cx));
    }

    pub(crate) fn is_flushed(&self) -> bool {
        self.devices.iter().all(|device| device.is_flushed())
            && self.shaper.as_ref().is_none_or(|shaper| shaper.is_empty())
    }

    /// Whether to flush it again in the next turn.
    #[inline]
    pub(crate) fn needs_flush(&self) -> bool {
        self.devices.iter().any(|device| device.needs_flush())
            || self.shaper.as_ref().is_some_and(|shaper| !shaper.is_empty())
    }

    #[inline]
    pub(crate) fn sends_from(&self) -> Option<MemoryId> {
        let only = self.devices.first().and_then(|device| device.sends_from());
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
