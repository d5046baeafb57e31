// SPDX-License-Identifier: Apache-2.0
//! The datapath side of an interface: the [`Device`] trait, which the queues of each kind implement, and what they
//! share.

pub(crate) mod buffers;
mod context;
pub(crate) mod copy_in;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use dpdk::{Accepts, Batch};

use crate::drop_reason::DropReason;
use crate::ids::MemoryId;
use crate::memory::Memory;
pub(crate) use context::PortContext;

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

    /// Drops packets that it took and has not sent, and counts them as [`DropReason::PortDown`]: the port closes.
    fn drop_unsent(&mut self, cx: &PortContext<'_>);

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

    /// For how long it needs no poll, if it has something to do at a certain time; `None`: it has nothing.
    fn time_to_timer(&self) -> Option<Duration> {
        None
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

    /// Receives into another memory from now on, and gives the buffers of the old one back. Devices that have their
    /// memory registered (`KindInfo::registers_memory`) are not asked to; those that keep no buffers and no memory have
    /// nothing to do.
    fn use_memory(&mut self, _memory: &Arc<Memory>) {}
}

/// A device with its own burst of packets to send.
pub(crate) trait TxBuffered: Device {
    /// Packets taken and not sent yet.
    fn unsent(&mut self) -> &mut Batch;

    /// Implements [`Device::enqueue`]: sends when the burst is full, and drops packets that still do not fit.
    #[inline]
    fn buffer_tx(&mut self, batch: &mut Batch, cx: &PortContext<'_>) {
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

    /// Implements [`Device::drop_unsent`].
    fn drop_gathered(&mut self, cx: &PortContext<'_>) {
        cx.note_drops(DropReason::PortDown, self.unsent().as_slice());
        self.unsent().clear();
    }
}
