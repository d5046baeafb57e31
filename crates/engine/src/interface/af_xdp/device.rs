// SPDX-License-Identifier: Apache-2.0
//! The AF_XDP port. The region is the UMEM, so the kernel receives into shared buffers.

use std::os::fd::AsFd;
use std::sync::Arc;

use arrayvec::ArrayVec;
use dpdk::{Batch, Mbuf};
use netvm_wire::partial::{Partial, partial_checksum};
use netvm_xsk::{Interface, RxFrame, TxFrame, Xsk};

use super::shared::{LongestFrame, SocketDrops};
use crate::drop_reason::DropReason;
use crate::ids::MemoryId;
use crate::interface::device::{Arrival, Device, PortContext};
use crate::memory::Memory;

/// Packets handled at once.
const BURST: usize = Batch::CAPACITY;
/// Packets that wait while the kernel's transmit ring is full.
const BACKLOG: usize = 256;
/// Bytes of a packet's beginning: Ethernet with two tags, IPv6 or IPv4 with options, and TCP's checksum.
const FRONT: usize = 104;
/// Time limit for a driver to release buffers after the socket is closed.
const RELEASE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// What a queue is made of.
pub(super) struct XskParts {
    pub(super) socket: Xsk,
    pub(super) memory: Arc<Memory>,
    pub(super) interface: Arc<Interface>,
    /// Counts the packets that the socket loses.
    pub(super) drops: SocketDrops,
    pub(super) longest: LongestFrame,
    /// Its packets may have unfinished checksums: senders on this machine expect a NIC to finish them, but none is in
    /// between.
    pub(super) finishes_checksums: bool,
}

/// One queue of an interface.
pub(super) struct XskDevice {
    /// `None` once closed.
    socket: Option<Xsk>,
    memory: Arc<Memory>,
    backlog: ArrayVec<TxFrame, BACKLOG>,
    /// After the last flush, the kernel needed another kick to send the rest.
    needs_kick: bool,
    drops: SocketDrops,
    longest: LongestFrame,
    finishes_checksums: bool,
    // Keeps the XDP program attached.
    _interface: Arc<Interface>,
}

impl XskDevice {
    pub(super) fn new(parts: XskParts) -> Self {
        let XskParts { socket, memory, interface, drops, longest, finishes_checksums } = parts;
        Self {
            socket: Some(socket),
            memory,
            backlog: ArrayVec::new(),
            needs_kick: false,
            drops,
            longest,
            finishes_checksums,
            _interface: interface,
        }
    }

    /// Frees buffers that the kernel has sent.
    fn complete(socket: &mut Xsk, memory: &Memory) {
        let mut buffers = [0; BURST];
        loop {
            let count = socket.completed(&mut buffers);
            own(memory, &buffers[..count]).clear();
            if count < BURST {
                return;
            }
        }
    }

    /// Takes packets that the kernel does not have yet, at most a batch; `None` if there are none.
    fn take_unsent(&mut self) -> Option<Batch> {
        let count = self.backlog.len().min(BURST);
        let buffers: ArrayVec<u32, BURST> = self.backlog.drain(..count).map(|frame| frame.buffer).collect();
        (count > 0).then(|| own(&self.memory, &buffers))
    }

    /// Gives the kernel free buffers, a burst at a time.
    fn refill(socket: &mut Xsk, memory: &Memory) {
        while socket.fill_free() >= BURST {
            let mut free = Batch::new();
            memory.pool.alloc_into(&mut free, BURST);
            let buffers: ArrayVec<u32, BURST> =
                free.as_slice().iter().map(|mbuf| memory.pool.buffer_of(mbuf)).collect();
            let given = socket.fill(&buffers);
            // SAFETY: the kernel has these buffers now; the socket returns each once, from `rx` or from `close`.
            unsafe { free.forget_front(given) };
            if given < BURST {
                return;
            }
        }
    }
}

/// Computes an unfinished checksum.
pub(super) fn finish_checksum(mbuf: &mut Mbuf) {
    let mut front = [0u8; FRONT];
    let copied = mbuf.copy_to(&mut front);
    if let Some(Partial { from, at }) = partial_checksum(&front[..copied]) {
        // Both are within the packet.
        mbuf.finish_checksum_at(from, at);
    }
}

/// The packet in a buffer that the socket returned, or that was taken from the backlog.
#[inline]
fn own_one(memory: &Memory, buffer: u32) -> Option<Mbuf> {
    // SAFETY: the socket keeps a record and returns only buffers that it was given, each once, and a buffer leaves the
    // backlog once; the code that put the buffer there forgot the mbuf.
    memory.pool.mbuf_of(buffer).map(|mbuf| unsafe { mbuf.own() })
}

/// Packets in such buffers; at most a batch.
fn own(memory: &Memory, buffers: &[u32]) -> Batch {
    let mut batch = Batch::new();
    for mbuf in buffers.iter().filter_map(|buffer| own_one(memory, *buffer)) {
        batch.add(mbuf);
    }
    batch
}

impl Device for XskDevice {
    fn receive(&mut self, _memory: &Memory, out: &mut Batch, wanted: usize, cx: &PortContext<'_>) {
        let Some(socket) = &mut self.socket else { return };
        Self::complete(socket, &self.memory);
        Self::refill(socket, &self.memory);
        let mut frames = [RxFrame::default(); BURST];
        let count = socket.rx(&mut frames[..wanted.min(BURST)]);
        for frame in &frames[..count] {
            if let Some(mut mbuf) = own_one(&self.memory, frame.buffer)
                && mbuf.set_bounds(frame.offset, frame.len).is_ok()
            {
                if self.finishes_checksums {
                    finish_checksum(&mut mbuf);
                }
                out.add(mbuf);
            } else {
                cx.counters.drops.add(DropReason::Malformed, 1);
            }
        }
        // Once a turn, if the kernel needs a wake-up: announces free buffers and packets to send. If the interface is
        // down, the port's link state shows it.
        let _ = socket.kick();
    }

    fn enqueue(&mut self, memory: &Memory, batch: &mut Batch, cx: &PortContext<'_>) {
        let longest = self.longest.get();
        for mbuf in batch.drain() {
            if u32::from(mbuf.data_len()) > longest {
                cx.note_drop(self.longest.reason(), &mbuf);
                continue;
            }
            let frame = TxFrame {
                buffer: memory.pool.buffer_of(&mbuf),
                offset: mbuf.data_off(),
                len: mbuf.data_len(),
            };
            if self.backlog.is_full() {
                self.flush(cx);
            }
            if self.backlog.try_push(frame).is_ok() {
                // The backlog, then the socket, owns the buffer; both return it by number.
                let _ = mbuf.into_raw();
            } else {
                cx.note_drop(DropReason::TxFull, &mbuf);
            }
        }
    }

    fn flush(&mut self, cx: &PortContext<'_>) -> usize {
        if self.is_flushed() {
            return 0;
        }
        let Some(socket) = &mut self.socket else { return 0 };
        Self::complete(socket, &self.memory);
        let sent = socket.tx(&self.backlog);
        cx.counters.tx_packets.add(sent as u64);
        cx.counters.tx_bytes.add(self.backlog[..sent].iter().map(|frame| u64::from(frame.len)).sum());
        self.backlog.drain(..sent);
        // If the interface is down, the port's link state shows it.
        self.needs_kick = socket.kick_to_send();
        sent
    }

    fn is_flushed(&self) -> bool {
        self.backlog.is_empty() && !self.needs_kick
    }

    fn drop_unsent(&mut self, cx: &PortContext<'_>) {
        while let Some(packets) = self.take_unsent() {
            cx.note_drops(DropReason::PortDown, packets.as_slice());
        }
    }

    fn arrival(&self) -> Arrival<'_> {
        self.socket.as_ref().map_or(Arrival::Never, |socket| Arrival::Readable(socket.as_fd()))
    }

    fn kernel_core(&self) -> Option<u32> {
        self.socket.as_ref()?.kernel_core()
    }

    fn sends_from(&self) -> Option<MemoryId> {
        Some(self.memory.id)
    }
}

impl Drop for XskDevice {
    /// Takes all buffers back from the kernel. The manager runs it, because it can take milliseconds.
    fn drop(&mut self) {
        self.drops.end();
        while self.take_unsent().is_some() {}
        let held = self.socket.take().map(|socket| socket.close().or_else(|held| held.wait(RELEASE_TIMEOUT)));
        // Buffers that the kernel keeps are never reused: a driver may still write to them.
        let held = held.and_then(Result::ok).unwrap_or_default();
        for buffers in held.chunks(BURST) {
            own(&self.memory, buffers).clear();
        }
    }
}
