// SPDX-License-Identifier: Apache-2.0
//! The memif port. Memory is shared with one program only, which can write to all of it, so packets are copied.

use std::sync::Arc;

use arrayvec::ArrayVec;
use dpdk::{Batch, MAX_PARTS, Mbuf, Part};
use netvm_memif::{NotTaken, Queue, Received, Sending};

use crate::drop_reason::DropReason;
use crate::interface::device::copy_in::{CopyIn, Foreign};
use crate::interface::device::{Device, Expects, PortContext, TxBuffered};
use crate::memory::Memory;

/// Most packets received at once, because other ports wait in the meantime.
const MAX_AT_ONCE: usize = 64;
/// Turns that packets wait while the peer has no buffers for them.
const REFUSED_TURNS: u32 = 256;

/// One queue of a port.
pub(super) struct MemifDevice {
    queue: Queue,
    unsent: Batch,
    copy_in: CopyIn,
    /// Turns since the peer last took a packet, while packets wait.
    refused: u32,
    /// Packets were in the ring when the wait began.
    is_ready: bool,
    // Keeps the memory that received packets use.
    memory: Arc<Memory>,
}

impl MemifDevice {
    pub(super) fn new(queue: Queue, memory: Arc<Memory>) -> Self {
        let (unsent, copy_in) = (Batch::new(), CopyIn::default());
        Self { queue, unsent, copy_in, refused: 0, is_ready: false, memory }
    }
}

impl Foreign for Received<'_> {
    #[inline]
    fn length(&self) -> usize {
        self.length
    }

    #[inline]
    unsafe fn copy(&self, to: impl Iterator<Item = (*mut u8, usize)>) -> bool {
        // SAFETY: as the caller promises.
        unsafe { Received::copy(self, to) }
    }
}

/// Copies a packet to the peer.
#[inline]
fn put(sending: &mut Sending<'_>, packet: &Mbuf) -> Result<(), NotTaken> {
    if packet.nb_segs() == 1 {
        // SAFETY: the packet is the device's, and in no memory that the peer shares.
        return unsafe { sending.put(&[(packet.data().cast_const(), usize::from(packet.data_len()))]) };
    }
    let mut parts = [const { Part { bytes: std::ptr::null_mut(), length: 0 } }; MAX_PARTS];
    let parts = packet.parts(&mut parts).ok_or(NotTaken::TooLong)?;
    let pieces: ArrayVec<(*const u8, usize), MAX_PARTS> =
        parts.iter().map(|part| (part.bytes.cast_const().cast(), part.length)).collect();
    // SAFETY: as above.
    unsafe { sending.put(&pieces) }
}

impl TxBuffered for MemifDevice {
    #[inline]
    fn unsent(&mut self) -> &mut Batch {
        &mut self.unsent
    }
}

impl Device for MemifDevice {
    #[inline]
    fn receive(&mut self, memory: &Memory, out: &mut Batch, wanted: usize, cx: &PortContext<'_>) {
        let copy_in = &mut self.copy_in;
        let malformed = self.queue.receive(wanted.min(MAX_AT_ONCE), |received| {
            let packet = copy_in.take(received, 0, memory)?;
            // `out` has room for `wanted` packets.
            Some(packet.is_some_and(|packet| out.push(packet).is_ok()))
        });
        if malformed > 0 {
            cx.counters.drops.add(DropReason::Malformed, malformed);
        }
    }

    #[inline]
    fn enqueue(&mut self, _memory: &Memory, batch: &mut Batch, cx: &PortContext<'_>) {
        self.buffer_tx(batch, cx);
    }

    fn flush(&mut self, cx: &PortContext<'_>) -> usize {
        if self.unsent.is_empty() && !self.queue.has_pending_call() {
            return 0;
        }
        if !self.queue.is_connected() {
            cx.note_drops(DropReason::NoPeer, self.unsent.as_slice());
            self.unsent.clear();
            return 0;
        }
        // Another queue sends by the same ring at this moment.
        let Some(mut sending) = self.queue.send() else { return 0 };
        sending.expect(self.unsent.len());
        let (mut sent, mut bytes, mut done, mut is_full) = (0, 0, 0, false);
        for packet in self.unsent.as_slice() {
            match put(&mut sending, packet) {
                Ok(()) => (sent, bytes) = (sent + 1, bytes + u64::from(packet.pkt_len())),
                Err(NotTaken::Full) => {
                    is_full = true;
                    break;
                }
                Err(NotTaken::TooLong) => cx.note_drop(DropReason::TooLong, packet),
                Err(NotTaken::Broken) => cx.note_drop(DropReason::NoPeer, packet),
            }
            done += 1;
        }
        drop(sending);
        self.refused = if is_full && done == 0 { self.refused + 1 } else { 0 };
        if self.refused > REFUSED_TURNS {
            cx.note_drops(DropReason::TxFull, &self.unsent.as_slice()[done..]);
            (self.refused, done) = (0, self.unsent.len());
        }
        if done == self.unsent.len() {
            self.unsent.clear();
        } else if done > 0 {
            self.unsent = self.unsent.split_off(done);
        }
        cx.counters.tx_packets.add(sent);
        cx.counters.tx_bytes.add(bytes);
        sent as usize
    }

    fn is_flushed(&self) -> bool {
        self.unsent.is_empty() && !self.queue.has_pending_call()
    }

    fn drop_unsent(&mut self, cx: &PortContext<'_>) {
        self.drop_gathered(cx);
    }

    fn prepare_wait(&mut self) {
        self.is_ready = self.queue.begin_wait();
    }

    fn expects(&self) -> Expects<'_> {
        if self.is_ready { Expects::Arrived } else { Expects::Readable(self.queue.arrival()) }
    }

    fn use_memory(&mut self, memory: &Arc<Memory>) {
        self.copy_in.clear();
        self.memory = Arc::clone(memory);
    }
}
