// SPDX-License-Identifier: Apache-2.0
//! Ports on interfaces of the kernel that exchange offloads with it: TAP devices and packet sockets.
//!
//! A segment of up to 64 KB is received into a large buffer, passes the engine as one packet, and leaves as one packet
//! by a port that accepts it. A packet that fits into an ordinary buffer is moved into one, so that an ACK does not
//! occupy 64 KB. While no large buffer is free, a segment takes several ordinary ones. The kernel copies each packet
//! once when the engine receives it and once when it sends it. A burst takes one system call, except for TAP devices
//! without io_uring.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use dpdk::{Accepts, Batch, MAX_PARTS, Mbuf, Oversized, Part, Unfinished};
use netvm_vnet::{
    Header, MAX_RECEIVED, Offloads, Pending, Queue, ReceiveBurst, ReceiveError, Received, Segments,
    SendBurst, SendError, header_of,
};

use crate::drop_reason::DropReason;
use crate::interface::device::buffers::{begin_large, insert, is_large, note, pending_of};
use crate::interface::device::{Arrival, Device, PortContext, TxBuffered};
use crate::memory::Memory;

/// The longest packet: a segment of 64 KB behind an Ethernet header with two tags.
const MAX_PACKET: usize = 65_535 + 22;
/// Most packets received at once, because other ports wait in the meantime.
const MAX_AT_ONCE: usize = 32;

/// What the interface of packet sockets does to packets that are sent by it; the manager follows it.
#[derive(Clone, Debug, Default)]
pub(super) struct SentOffloads(Arc<AtomicU8>);

impl SentOffloads {
    const CHECKSUM: u8 = 1;
    const TSO4: u8 = 1 << 1;
    const TSO6: u8 = 1 << 2;
    const USO: u8 = 1 << 3;

    pub(super) fn new(accepts: Accepts) -> Self {
        let offloads = Self::default();
        offloads.set(accepts);
        offloads
    }

    /// Sets them; returns whether they differ from the earlier ones.
    pub(super) fn set(&self, accepts: Accepts) -> bool {
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        let bits = bit(accepts.checksum, Self::CHECKSUM)
            | bit(accepts.tso4, Self::TSO4)
            | bit(accepts.tso6, Self::TSO6)
            | bit(accepts.uso, Self::USO);
        self.0.swap(bits, Ordering::Relaxed) != bits
    }

    #[inline]
    pub(super) fn get(&self) -> Accepts {
        let bits = self.0.load(Ordering::Relaxed);
        let is_set = |bit| bits & bit != 0;
        Accepts {
            checksum: is_set(Self::CHECKSUM),
            tso4: is_set(Self::TSO4),
            tso6: is_set(Self::TSO6),
            uso: is_set(Self::USO),
        }
    }
}

/// One queue of an interface.
pub(super) struct KernelDevice {
    queue: Queue,
    /// What received packets may leave to do.
    offloads: Offloads,
    /// What sent packets may.
    sent: SentOffloads,
    /// Buffers that the next packets are received into, each with room for the longest.
    places: [Batch; MAX_RECEIVED],
    /// Number of places for the next burst: as many as the last burst filled, or twice as many if it filled all.
    depth: usize,
    incoming: ReceiveBurst,
    unsent: Batch,
    burst: SendBurst,
    /// The kernel had no packet the last time. A poll then costs a third of an attempt to receive.
    was_empty: bool,
    // Keeps the memory of the buffers.
    memory: Arc<Memory>,
}

impl KernelDevice {
    pub(super) fn new(queue: Queue, offloads: Offloads, sent: SentOffloads, memory: Arc<Memory>) -> Self {
        Self {
            queue,
            offloads,
            sent,
            places: [const { Batch::new() }; MAX_RECEIVED],
            depth: 1,
            incoming: ReceiveBurst::default(),
            unsent: Batch::new(),
            burst: SendBurst::default(),
            was_empty: false,
            memory,
        }
    }

    /// Takes buffers until `wanted` places have room for the longest packet. Returns how many do.
    fn refill(&mut self, memory: &Memory, wanted: usize) -> usize {
        let geometry = memory.region().geometry();
        let (headroom, room) = (geometry.headroom as u16, geometry.room() as usize);
        let longest = if self.offloads.tcp { MAX_PACKET } else { room };
        let is_full = |place: &mut Batch| {
            let has_large = place.as_slice().first().is_some_and(|first| is_large(first, geometry));
            let begins_large = longest > room && (has_large || begin_large(place, memory, headroom));
            let (first, rest) =
                if begins_large { (1, longest - geometry.large_room() as usize) } else { (0, longest) };
            let needed = first + rest.div_ceil(room.max(1)).min(MAX_PARTS - 1);
            let missing = needed.saturating_sub(place.len());
            missing == 0 || memory.pool.alloc_frames_into(place, missing, headroom, 0) == missing
        };
        self.places.iter_mut().take(wanted).map_while(|place| is_full(place).then_some(())).count()
    }

    /// Gives back the buffers of all places. Each may hold 64 KB: idle ports of many containers would leave none to the
    /// others.
    fn give_back(&mut self) {
        self.places.iter_mut().for_each(Batch::clear);
    }
}

/// The packet of `length` bytes that was received into the buffers of a place. Copies a short packet from the large
/// buffer to an ordinary one.
fn take(place: &mut Batch, length: usize) -> Option<Mbuf> {
    match place.as_slice() {
        [large, .., last] if large.buf_len() > last.buf_len() && length <= last.room().length => {
            let mut short = place.pop()?;
            short.copy_room(place.as_slice().first()?, length as u16).ok()?;
            Some(short)
        }
        _ => Mbuf::of_parts(place, length as u32),
    }
}

/// The packet that was received into a place.
fn packet_of(
    place: &mut Batch,
    header: &Header,
    received: Result<Received, ReceiveError>,
) -> Result<Mbuf, DropReason> {
    let Received { length, tag } = received.map_err(|error| match error {
        ReceiveError::TooLong => DropReason::TooLong,
        ReceiveError::Empty | ReceiveError::Unknown => DropReason::Malformed,
    })?;
    let mut packet = take(place, length).ok_or(DropReason::TooLong)?;
    let pending = pending_of(&packet, header).ok_or(DropReason::Malformed)?;
    note(&mut packet, pending).ok_or(DropReason::Malformed)?;
    match tag {
        Some(tag) if !insert(&mut packet, tag) => Err(DropReason::TooLong),
        _ => Ok(packet),
    }
}

/// The virtio-net header for the kernel.
fn header_for(packet: &Mbuf) -> Header {
    let pending = match (packet.oversized(), packet.unfinished()) {
        (Some(Oversized { l2, l3, l4, size, v6, udp }), _) => {
            Pending::Segments(Segments { lengths: [l2, l3, l4], size, v6, udp, ecn: false, tunnel: 0 })
        }
        (None, Some(Unfinished { l2, l3, udp })) => {
            let from = l2 + l3;
            Pending::Checksum { from, at: from + if udp { 6 } else { 16 } }
        }
        (None, None) => Pending::Nothing,
    };
    header_of(pending)
}

const fn iovec(part: Part) -> libc::iovec {
    libc::iovec { iov_base: part.bytes, iov_len: part.length }
}

impl TxBuffered for KernelDevice {
    #[inline]
    fn unsent(&mut self) -> &mut Batch {
        &mut self.unsent
    }
}

impl Device for KernelDevice {
    fn receive(&mut self, memory: &Memory, out: &mut Batch, wanted: usize, cx: &PortContext<'_>) {
        if self.was_empty && !self.queue.is_readable() {
            return;
        }
        self.was_empty = false;
        let mut left = wanted.min(MAX_AT_ONCE);
        while left > 0 {
            // Without free buffers the kernel keeps its packets.
            let places = self.refill(memory, self.depth.min(left));
            if places == 0 {
                return self.give_back();
            }
            for place in &self.places[..places] {
                self.incoming.push(place.as_slice().iter().map(|buffer| iovec(buffer.room())));
            }
            let mut next = self.places.iter_mut();
            let each = |header: &Header, received| {
                let Some(place) = next.next() else { return };
                if received == Err(ReceiveError::Empty) {
                    return;
                }
                match packet_of(place, header, received) {
                    Ok(packet) => out.add(packet),
                    Err(reason) => cx.counters.drops.add(reason, 1),
                }
            };
            // SAFETY: the places are buffers that this device owns.
            let used = unsafe { self.incoming.receive(&mut self.queue, each) };
            self.depth = if used == self.depth { 2 * used } else { used.max(1) }.min(MAX_RECEIVED);
            if used < places {
                self.was_empty = true;
                return self.give_back();
            }
            left -= used;
        }
    }

    #[inline]
    fn enqueue(&mut self, _memory: &Memory, batch: &mut Batch, cx: &PortContext<'_>) {
        self.buffer_tx(batch, cx);
    }

    fn flush(&mut self, cx: &PortContext<'_>) -> usize {
        let (packets, mut sent) = (self.unsent.as_slice(), 0);
        let (mut first, mut bytes) = (0, 0);
        for (n, packet) in packets.iter().enumerate() {
            let mut parts = [const { Part { bytes: std::ptr::null_mut(), length: 0 } }; MAX_PARTS];
            let parts = packet.parts(&mut parts);
            if !parts.is_some_and(|parts| self.burst.has_room(parts.len())) {
                let outcome = send(&mut self.burst, &mut self.queue, &packets[first..n], cx);
                (sent, bytes, first) = (sent + outcome.0, bytes + outcome.1, n);
            }
            if let Some(parts) = parts {
                self.burst.push(header_for(packet), parts.iter().map(|part| iovec(*part)));
            } else {
                cx.note_drop(DropReason::TooLong, packet);
                first = n + 1;
            }
        }
        let outcome = send(&mut self.burst, &mut self.queue, &packets[first..], cx);
        (sent, bytes) = (sent + outcome.0, bytes + outcome.1);
        self.unsent.clear();
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

    fn arrival(&self) -> Arrival<'_> {
        Arrival::Readable(self.queue.as_fd())
    }

    #[inline]
    fn accepts(&self) -> Accepts {
        self.sent.get()
    }

    fn leaves_work(&self) -> bool {
        self.offloads.tcp
    }

    fn use_memory(&mut self, memory: &Arc<Memory>) {
        self.give_back();
        self.memory = Arc::clone(memory);
    }
}

/// Sends a burst of these packets; returns the number of sent packets, and their bytes.
fn send(burst: &mut SendBurst, queue: &mut Queue, packets: &[Mbuf], cx: &PortContext<'_>) -> (u64, u64) {
    let (mut sent, mut bytes) = (0, 0);
    let mut packets = packets.iter();
    let each = |outcome| {
        let Some(packet) = packets.next() else { return };
        match outcome {
            Ok(()) => {
                sent += 1;
                bytes += u64::from(packet.pkt_len());
            }
            Err(error) => cx.note_drop(reason(error), packet),
        }
    };
    // SAFETY: the parts are of these packets, which the device owns.
    unsafe { burst.send(queue, each) };
    (sent, bytes)
}

const fn reason(error: SendError) -> DropReason {
    match error {
        SendError::Full => DropReason::TxFull,
        SendError::TooLong => DropReason::TooLong,
        SendError::Down => DropReason::PortDown,
        SendError::Refused => DropReason::Malformed,
    }
}
