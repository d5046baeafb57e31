// SPDX-License-Identifier: Apache-2.0
//! The AF_XDP port of a router's interface, which has few packets. It copies them between the engine's buffers and
//! memory that the kernel shares with this port alone ([`PrivateXsk`] explains why).
//!
//! Cost: a copy of at most an MTU and an mbuf for each packet, far less than the kernel spends on it. A turn without
//! packets reads two words that the kernel writes.

use std::os::fd::AsFd;
use std::sync::Arc;

use dpdk::Batch;
use netvm_xsk::{Interface, PrivateXsk};

use super::device::finish_checksum;
use super::shared::{LongestFrame, SocketDrops};
use crate::drop_reason::DropReason;
use crate::interface::device::{Arrival, Device, PortContext};
use crate::memory::Memory;

/// One queue of an interface.
pub(super) struct PrivateXskDevice {
    socket: PrivateXsk,
    /// After the last flush, the kernel needed another kick to send the rest.
    needs_kick: bool,
    drops: SocketDrops,
    longest: LongestFrame,
    // Keeps the XDP program attached.
    _interface: Arc<Interface>,
}

impl PrivateXskDevice {
    /// `drops` counts the packets that this socket loses; `longest` is the longest frame that it sends.
    pub(super) fn new(
        socket: PrivateXsk,
        interface: Arc<Interface>,
        drops: SocketDrops,
        longest: LongestFrame,
    ) -> Self {
        Self { socket, needs_kick: false, drops, longest, _interface: interface }
    }
}

impl Device for PrivateXskDevice {
    fn receive(&mut self, memory: &Memory, out: &mut Batch, wanted: usize, cx: &PortContext<'_>) {
        let headroom = memory.region().geometry().headroom as u16;
        let mut lost = 0;
        let outside = self.socket.receive(wanted, |bytes| {
            let mut one = Batch::new();
            memory.pool.alloc_frames_into(&mut one, 1, headroom, 0);
            let Some(mut mbuf) = one.pop() else {
                lost += 1;
                return;
            };
            if mbuf.copy_from(bytes).is_err() {
                lost += 1;
                return;
            }
            // The kernel's own senders leave checksums to a NIC, but none is in between.
            finish_checksum(&mut mbuf);
            out.add(mbuf);
        });
        if lost > 0 {
            cx.counters.drops.add(DropReason::NoBuffer, lost);
        }
        if outside > 0 {
            cx.counters.drops.add(DropReason::Malformed, outside);
        }
        // Once a turn, if the kernel asks for it.
        let _ = self.socket.kick();
    }

    fn enqueue(&mut self, _memory: &Memory, batch: &mut Batch, cx: &PortContext<'_>) {
        let longest = self.longest.get();
        for mbuf in batch.drain() {
            if mbuf.pkt_len() > longest || mbuf.nb_segs() != 1 {
                cx.note_drop(self.longest.reason(), &mbuf);
                continue;
            }
            let is_taken = self.socket.stage(mbuf.data_len().into(), |bytes| {
                mbuf.copy_to(bytes);
            });
            if !is_taken {
                cx.note_drop(DropReason::TxFull, &mbuf);
            }
        }
    }

    fn flush(&mut self, cx: &PortContext<'_>) -> usize {
        if self.is_flushed() {
            return 0;
        }
        let (sent, bytes) = self.socket.flush();
        cx.counters.tx_packets.add(sent);
        cx.counters.tx_bytes.add(bytes);
        // If the interface is down, the port's link state shows it.
        self.needs_kick = self.socket.kick_to_send();
        sent as usize
    }

    fn is_flushed(&self) -> bool {
        self.socket.is_flushed() && !self.needs_kick
    }

    /// The packets themselves are free already, so captures do not show them.
    fn drop_unsent(&mut self, cx: &PortContext<'_>) {
        cx.counters.drops.add(DropReason::PortDown, self.socket.discard_staged());
    }

    fn arrival(&self) -> Arrival<'_> {
        Arrival::Readable(self.socket.as_fd())
    }
}

impl Drop for PrivateXskDevice {
    fn drop(&mut self) {
        self.drops.end();
    }
}
