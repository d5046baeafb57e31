// SPDX-License-Identifier: Apache-2.0
//! The vhost-user port. Guest memory is shared with netvm only, so packets are copied.

use std::sync::Arc;

use dpdk::{Accepts, Batch, VhostQueue};
use netvm_vnet::{Header, Pending, Segments};

use crate::drop_reason::DropReason;
use crate::interface::device::buffers::{note, pending_of};
use crate::interface::device::{Device, Expects, PortContext, TxBuffered};
use crate::memory::Memory;

/// Turns that packets wait while the guest takes none. A packet larger than the guest's buffers would otherwise block
/// the queue forever.
const REFUSED_TURNS: u32 = 256;

/// One queue of a guest.
pub(super) struct VhostDevice {
    queue: VhostQueue,
    unsent: Batch,
    /// Turns since the guest last took a packet, while packets wait.
    refused: u32,
    /// Packets may be in the ring for which the guest sends no notification.
    ready: bool,
    // Keeps the memory that received packets use.
    memory: Arc<Memory>,
}

impl VhostDevice {
    pub(super) const fn new(queue: VhostQueue, memory: Arc<Memory>) -> Self {
        Self { queue, unsent: Batch::new(), refused: 0, ready: false, memory }
    }
}

impl TxBuffered for VhostDevice {
    #[inline]
    fn unsent(&mut self) -> &mut Batch {
        &mut self.unsent
    }
}

impl Device for VhostDevice {
    #[inline]
    fn receive(&mut self, memory: &Memory, out: &mut Batch, wanted: usize, cx: &PortContext<'_>) {
        let malformed = self.queue.receive(&memory.pool, out, wanted, |packet, header| {
            match pending_of(packet, &Header::from_bytes(header)) {
                // netvm does not offer guests to cut UDP datagrams.
                None | Some(Pending::Segments(Segments { udp: true, .. })) => false,
                Some(pending) => note(packet, pending).is_some(),
            }
        });
        if malformed > 0 {
            cx.counters.drops.add(DropReason::Malformed, malformed);
        }
    }

    #[inline]
    fn enqueue(&mut self, _memory: &Memory, batch: &mut Batch, cx: &PortContext<'_>) {
        self.buffer_tx(batch, cx);
    }

    #[inline]
    fn flush(&mut self, cx: &PortContext<'_>) -> usize {
        self.queue.reap();
        if self.unsent.is_empty() {
            return 0;
        }
        let Some((sent, bytes)) = self.queue.send(&mut self.unsent) else {
            cx.note_drops(DropReason::NoPeer, self.unsent.as_slice());
            self.unsent.clear();
            return 0;
        };
        cx.counters.tx_packets.add(sent as u64);
        cx.counters.tx_bytes.add(bytes);
        // Packets wait while a DMA copy is in progress or the guest reconfigures its rings.
        let is_refused = sent == 0 && !self.queue.is_copying() && !self.queue.is_paused();
        self.refused = if is_refused { self.refused + 1 } else { 0 };
        if self.refused > REFUSED_TURNS {
            cx.note_drops(DropReason::TxFull, self.unsent.as_slice());
            self.unsent.clear();
            self.refused = 0;
        }
        sent
    }

    fn is_flushed(&self) -> bool {
        self.unsent.is_empty() && !self.queue.is_copying() && !self.queue.has_pending_call()
    }

    fn drop_unsent(&mut self, cx: &PortContext<'_>) {
        self.drop_gathered(cx);
    }

    fn prepare_wait(&mut self) {
        self.ready = self.queue.begin_wait();
    }

    fn expects(&self) -> Expects<'_> {
        if self.ready {
            Expects::Arrived
        } else if let Some(kick) = self.queue.arrival() {
            Expects::Readable(kick)
        } else if self.queue.accepts().is_some() {
            Expects::Unnoticed
        } else {
            Expects::Nothing
        }
    }

    #[inline]
    fn accepts(&self) -> Accepts {
        // Without a guest, packets are dropped as they are.
        self.queue.accepts().unwrap_or(Accepts::ALL)
    }

    fn leaves_work(&self) -> bool {
        true
    }

    fn use_memory(&mut self, memory: &Arc<Memory>) {
        self.memory = Arc::clone(memory);
    }
}
