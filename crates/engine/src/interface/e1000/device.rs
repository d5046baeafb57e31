// SPDX-License-Identifier: Apache-2.0
//! The e1000 port: an Intel 82540EM card of a guest, over vfio-user. Guest memory is shared with netvm only, so packets
//! are copied.
//!
//! A guest that uses its card's checksum and segmentation offloads sends unfinished packets; the engine finishes them
//! only if a receiver needs it. The card cannot tell a guest that a received packet's checksum is unfinished, so the
//! engine finishes it first.

use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use dpdk::{Batch, MAX_PARTS, Mbuf, Part};
use netvm_e1000::{NotTaken, Pieces, Queue, Request, Sent, finish_headers};

use crate::drop_reason::DropReason;
use crate::interface::device::buffers::{insert, note};
use crate::interface::device::copy_in::{CopyIn, Foreign};
use crate::interface::device::{Device, Expects, PortContext, TxBuffered};
use crate::memory::Memory;

/// Bytes of a packet's beginning that offload requests may refer to.
const FRONT: usize = 256;
/// Most packets received at once, because other ports wait in the meantime.
const MAX_AT_ONCE: usize = 64;
/// A VLAN tag that may be inserted.
const TAG: usize = 4;
/// Turns that packets wait while the guest has no descriptors for them.
const REFUSED_TURNS: u32 = 256;

/// The card of one guest.
pub(super) struct E1000Device {
    queue: Queue,
    unsent: Batch,
    /// Buffers for packets that the guest sends.
    copy_in: CopyIn,
    /// Turns since the guest last took a packet, while packets wait.
    refused: u32,
    // Keeps the memory that received packets use.
    memory: Arc<Memory>,
}

impl E1000Device {
    pub(super) fn new(queue: Queue, memory: Arc<Memory>) -> Self {
        Self { queue, unsent: Batch::new(), copy_in: CopyIn::default(), refused: 0, memory }
    }
}

impl Foreign for Sent<'_> {
    #[inline]
    fn length(&self) -> usize {
        self.length
    }

    #[inline]
    unsafe fn copy(&self, to: impl Iterator<Item = (*mut u8, usize)>) -> bool {
        // SAFETY: as the caller promises.
        unsafe { Sent::copy(self, to) }
    }
}

/// Does or marks the offloads that the guest requests. `None` if the request does not fit the packet.
#[inline]
fn finish(mut packet: Mbuf, sent: &Sent<'_>) -> Option<Mbuf> {
    if sent.request != Request::default() {
        let mut front = [0u8; FRONT];
        let copied = packet.copy_to(&mut front);
        let front = &mut front[..copied];
        let pending = finish_headers(front, sent.length, &sent.request)?;
        if sent.request.ip.is_some() || sent.request.segment > 0 {
            packet.replace_front(copied as u16, front).ok()?;
        }
        note(&mut packet, pending)?;
    }
    match sent.tag {
        Some(tag) if !insert(&mut packet, tag) => None,
        _ => Some(packet),
    }
}

impl TxBuffered for E1000Device {
    #[inline]
    fn unsent(&mut self) -> &mut Batch {
        &mut self.unsent
    }
}

impl Device for E1000Device {
    fn receive(&mut self, memory: &Memory, out: &mut Batch, wanted: usize, cx: &PortContext<'_>) {
        if !self.queue.has_packets() && !self.queue.is_pending() {
            self.queue.forget_inactive();
            return;
        }
        let (queue, copy_in) = (&mut self.queue, &mut self.copy_in);
        let Some(mut turn) = queue.turn() else { return };
        let malformed = turn.transmit(wanted.min(MAX_AT_ONCE), |sent| {
            let packet = copy_in.take(sent, TAG, memory)?.and_then(|packet| finish(packet, sent));
            // `out` has room for `wanted` packets.
            Some(packet.is_some_and(|packet| out.push(packet).is_ok()))
        });
        cx.counters.drops.add(DropReason::Malformed, malformed);
    }

    #[inline]
    fn enqueue(&mut self, _memory: &Memory, batch: &mut Batch, cx: &PortContext<'_>) {
        self.buffer_tx(batch, cx);
    }

    fn flush(&mut self, cx: &PortContext<'_>) -> usize {
        if self.unsent.is_empty() {
            return 0;
        }
        if !self.queue.is_active() {
            cx.note_drops(DropReason::NoPeer, self.unsent.as_slice());
            self.unsent.clear();
            return 0;
        }
        // The port's thread has locked the card for a moment.
        let Some(mut turn) = self.queue.turn() else { return 0 };
        let mut receiving = turn.receive();
        let (mut sent, mut bytes, mut done, mut is_full) = (0, 0, 0, false);
        for packet in self.unsent.as_slice() {
            let mut parts = [const { Part { bytes: std::ptr::null_mut(), length: 0 } }; MAX_PARTS];
            let Some(parts) = packet.parts(&mut parts) else {
                cx.note_drop(DropReason::TooLong, packet);
                done += 1;
                continue;
            };
            let pieces: ArrayVec<(*const u8, usize), MAX_PARTS> =
                parts.iter().map(|part| (part.bytes.cast_const().cast(), part.length)).collect();
            // SAFETY: the parts are of a packet that the device owns.
            match unsafe { receiving.put(Pieces(&pieces)) } {
                Ok(()) => (sent, bytes) = (sent + 1, bytes + u64::from(packet.pkt_len())),
                Err(NotTaken::Full) => {
                    is_full = true;
                    break;
                }
                Err(error) => cx.note_drop(reason(error), packet),
            }
            done += 1;
        }
        self.refused = if is_full && done == 0 { self.refused + 1 } else { 0 };
        if self.refused > REFUSED_TURNS {
            let lost = self.unsent.len();
            receiving.count_lost(lost as u64);
            cx.note_drops(DropReason::TxFull, &self.unsent.as_slice()[done..]);
            (self.refused, done) = (0, lost);
        }
        drop(receiving);
        drop(turn);
        let mut rest = self.unsent.split_off(done);
        self.unsent.clear();
        self.unsent.append(&mut rest);
        cx.counters.tx_packets.add(sent);
        cx.counters.tx_bytes.add(bytes);
        sent as usize
    }

    fn is_flushed(&self) -> bool {
        self.unsent.is_empty()
    }

    fn drop_unsent(&mut self, cx: &PortContext<'_>) {
        self.drop_gathered(cx);
    }

    fn prepare_wait(&mut self) {
        self.queue.begin_wait();
    }

    fn expects(&self) -> Expects<'_> {
        if self.queue.has_packets() {
            Expects::Arrived
        } else if let Some(kick) = self.queue.arrival() {
            Expects::Readable(kick)
        } else if self.queue.is_active() {
            Expects::Unnoticed
        } else {
            Expects::Nothing
        }
    }

    fn time_to_timer(&self) -> Option<Duration> {
        self.queue.time_to_interrupt()
    }

    fn leaves_work(&self) -> bool {
        true
    }

    fn use_memory(&mut self, memory: &Arc<Memory>) {
        self.copy_in.clear();
        self.memory = Arc::clone(memory);
    }
}

const fn reason(error: NotTaken) -> DropReason {
    match error {
        NotTaken::Full => DropReason::TxFull,
        NotTaken::Down => DropReason::NoPeer,
        NotTaken::Filtered => DropReason::Filtered,
        NotTaken::TooLong => DropReason::TooLong,
        NotTaken::BadRing => DropReason::PortDown,
    }
}
