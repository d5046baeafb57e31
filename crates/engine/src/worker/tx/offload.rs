// SPDX-License-Identifier: Apache-2.0
//! Finishes pending offloads of guests and the kernel: checksums, and cutting TCP segments and UDP datagrams. In:
//! packets with pending offloads. Out: packets that their receiver accepts: finished packets, or unfinished ones for
//! guests, kernel interfaces and NFs that accept them. Packets from such an NF are parsed again, because it may have
//! changed any header.
//!
//! Cost for other packets: a check of each packet's flags, only in an engine with such ports.

use dpdk::{Accepts, Batch, Mbuf, Oversized, Unfinished};
use netvm_wire::partial::{Transport, transport};
use netvm_wire::segment::{GsoType, HeaderLengths, MAX_HEADERS, SegmentHeaders, Segmenter};
use netvm_wire::vxlan::{self, Part};

use crate::drop_reason::DropReason;
use crate::ids::MemoryId;
use crate::memory::Memory;
use crate::memory::mark;
use crate::worker::state::Datapath;

/// Bytes that are searched for headers: the longest TCP and IPv4 headers after two VLAN tags, and some more.
const FRONT: usize = 192;

/// The memory of some packets, and the offloads that their receiver accepts.
#[derive(Clone, Copy)]
pub(crate) struct Receiver {
    pub(crate) memory: MemoryId,
    pub(crate) takes: AcceptedPackets,
}

/// Packets that a receiver accepts unchanged.
#[derive(Clone, Copy)]
pub(crate) enum AcceptedPackets {
    /// Only finished packets in one buffer.
    Nothing,
    /// Packets with offloads that a port accepts.
    Port(Accepts),
    /// All but datagrams that a device has joined.
    OfTunnels,
    /// Packets in one buffer whose pending offloads can be found again from their bytes.
    Nf,
}

impl AcceptedPackets {
    fn as_is(self, mbuf: &Mbuf) -> bool {
        match self {
            Self::Nothing => mbuf.is_plain(),
            Self::Port(accepts) => accepts.takes(mbuf),
            Self::OfTunnels => !is_joined(mbuf),
            Self::Nf => {
                mbuf.is_plain()
                    || mbuf.nb_segs() == 1
                        && mbuf.unfinished().zip(front(mbuf)).is_some_and(|(noted, front)| front.says(noted))
            }
        }
    }
}

/// Whether a packet is several datagrams that a device has joined, each of which has headers of its own.
pub(crate) fn is_joined(mbuf: &Mbuf) -> bool {
    mbuf.oversized().is_some_and(|cut| cut.udp) && mbuf.tunnel().is_none()
}

/// Whether no packet has pending offloads.
#[inline(always)]
pub(crate) fn all_plain(batch: &Batch) -> bool {
    batch.as_slice().iter().all(Mbuf::is_plain)
}

/// Packets that [`finish`] has done with.
pub(crate) enum Finished<'a> {
    /// Their receiver accepts them. The batch is empty afterwards.
    Packets(&'a mut Batch),
    /// It cannot be finished.
    Lost(DropReason, Mbuf),
}

/// Finishes offloads that the receiver does not accept, and calls `each` with the packets, in order and batch by batch.
#[cold]
pub(crate) fn finish(
    dp: &mut Datapath,
    receiver: Receiver,
    batch: &mut Batch,
    mut each: impl FnMut(&mut Datapath, Finished<'_>),
) {
    let mut done = Batch::new();
    for mut mbuf in batch.drain() {
        if done.room() == 0 {
            each(dp, Finished::Packets(&mut done));
        }
        if receiver.takes.as_is(&mbuf) {
            done.add(mbuf);
        } else if let Some(cut) = mbuf.oversized() {
            let Some(segmenter) = segmenter_of(&mbuf, cut) else {
                each(dp, Finished::Lost(DropReason::Malformed, mbuf));
                continue;
            };
            let mut cut_off = None;
            for n in 0..segmenter.count() {
                if done.room() == 0 {
                    each(dp, Finished::Packets(&mut done));
                }
                match dp.memories.get(receiver.memory).map(|memory| segment(memory, &mbuf, &segmenter, n)) {
                    Some(Ok(packet)) => {
                        if n == 0
                            && let Some(recorder) = &dp.recorder
                        {
                            recorder.cut(&mbuf, &packet, segmenter.count());
                        }
                        // There is room, see above.
                        done.add(packet);
                    }
                    Some(Err(reason)) => cut_off = Some(reason),
                    None => cut_off = Some(DropReason::NoBuffer),
                }
            }
            if let Some(reason) = cut_off {
                each(dp, Finished::Lost(reason, mbuf));
            }
        } else if mbuf.nb_segs() != 1 {
            each(dp, Finished::Lost(DropReason::TooLong, mbuf));
        } else if mbuf.finish_checksum() {
            done.add(mbuf);
        } else {
            each(dp, Finished::Lost(DropReason::Malformed, mbuf));
        }
    }
    if !done.is_empty() {
        each(dp, Finished::Packets(&mut done));
    }
}

/// Finds the pending offloads of packets that an NF with offloads has returned. Calls `lost` with packets whose headers
/// no longer allow them.
#[cold]
pub(crate) fn renew(
    dp: &Datapath,
    memory: MemoryId,
    batch: &mut Batch,
    mut lost: impl FnMut(DropReason, Mbuf),
) {
    let mut renewed = Batch::new();
    for mut mbuf in batch.drain() {
        let before = mbuf.as_ptr();
        let outcome = match dp.memories.get(memory) {
            _ if mbuf.is_plain() => Ok(()),
            Some(memory) => renew_one(memory, &mut mbuf),
            None => Err(DropReason::NoBuffer),
        };
        if let Some(recorder) = &dp.recorder
            && mbuf.as_ptr() != before
        {
            recorder.replaced(before, &mbuf);
        }
        match outcome {
            Ok(()) => renewed.add(mbuf),
            Err(reason) => lost(reason, mbuf),
        }
    }
    batch.append(&mut renewed);
}

fn renew_one(memory: &Memory, mbuf: &mut Mbuf) -> Result<(), DropReason> {
    let malformed = DropReason::Malformed;
    let (before, segments) = (mbuf.unfinished().ok_or(malformed)?, mbuf.oversized());
    let Front { mut bytes, transport } = front(mbuf).ok_or(malformed)?;
    let Transport { l2, l3, v6, udp, length, pseudo_sum } = transport;
    // The NF may have changed addresses, or the unfinished checksum.
    let sum_at = usize::from(transport.partial().at);
    bytes[sum_at..sum_at + 2].copy_from_slice(&pseudo_sum.to_be_bytes());
    mbuf.forget_pending();
    mbuf.replace_front(sum_at as u16 + 2, &bytes[..sum_at + 2]).map_err(|_| malformed)?;
    let l4 = if udp { 8 } else { u16::from(bytes[sum_at - 4] >> 4) * 4 };
    if before.udp != udp || l4 > length || !udp && l4 < 20 {
        return Err(malformed);
    }
    match segments {
        Some(Oversized { size, .. }) if length - l4 > size => {
            mbuf.set_oversized(Oversized { l2, l3, l4, size, v6, udp });
            return Ok(());
        }
        _ => mbuf.set_unfinished(Unfinished { l2, l3, udp }, v6),
    }
    if u32::from(mbuf.buf_len()) > memory.region().geometry().stride {
        *mbuf = memory.pool.copy_of(mbuf).ok_or(DropReason::NoBuffer)?;
    }
    Ok(())
}

/// The beginning of a packet with a TCP or UDP header.
struct Front {
    bytes: [u8; FRONT],
    transport: Transport,
}

impl Front {
    /// Whether the mbuf's mark agrees with the headers.
    fn says(&self, noted: Unfinished) -> bool {
        let Transport { l2, l3, udp, .. } = self.transport;
        noted == Unfinished { l2, l3, udp }
    }
}

/// Parses the beginning of a packet that ends with its TCP or UDP payload and has the whole fixed part of that header.
fn front(mbuf: &Mbuf) -> Option<Front> {
    let mut bytes = [0u8; FRONT];
    let copied = mbuf.copy_to(&mut bytes);
    let transport = transport(&bytes[..copied])?;
    let from = u32::from(transport.l2) + u32::from(transport.l3);
    let is_whole = from + u32::from(transport.length) == mbuf.pkt_len();
    (is_whole && usize::from(transport.partial().at) + 2 <= copied).then_some(Front { bytes, transport })
}

/// The segmenter of a packet, with a private copy of its headers, which NFs that map the buffer cannot change.
fn segmenter_of(whole: &Mbuf, cut: Oversized) -> Option<Segmenter> {
    let mut headers = [0u8; MAX_HEADERS];
    let copied = whole.copy_to(&mut headers);
    let bytes = cut.headers();
    let headers = headers.get(..bytes).filter(|_| bytes <= copied)?;
    let lengths = HeaderLengths { l2: cut.l2.into(), l3: cut.l3.into(), l4: cut.l4.into() };
    let gso_type = GsoType { v6: cut.v6, udp: cut.udp };
    let headers = SegmentHeaders { bytes: headers, lengths, gso_type };
    Segmenter::new(headers, whole.pkt_len() as usize - bytes, cut.size).ok()
}

/// Packet `n` of a segment, in its own buffer.
fn segment(memory: &Memory, whole: &Mbuf, segmenter: &Segmenter, n: usize) -> Result<Mbuf, DropReason> {
    let mut buffers = Batch::new();
    memory.pool.alloc_into(&mut buffers, 1);
    let mut buffer = buffers.pop().ok_or(DropReason::NoBuffer)?;
    let too_long = |_| DropReason::TooLong;
    let (start, length) = segmenter.span(n);
    let (_, header_bytes) = segmenter.headers(n, 0);
    let headroom = memory.region().geometry().headroom as u16;
    buffer.set_bounds(headroom, header_bytes as u16).map_err(too_long)?;
    let sum = buffer.append_from(whole, (header_bytes + start) as u32, length as u16).map_err(too_long)?;
    let sum = u16::from_be_bytes(sum.to_ne_bytes());
    let (mut headers, header_bytes) = segmenter.headers(n, sum);
    if let Some(l2) = whole.tunnel() {
        vxlan::set_part(&mut headers[usize::from(l2)..header_bytes], Part { n, payload: length, sum });
    }
    buffer.replace_front(header_bytes as u16, &headers[..header_bytes]).map_err(too_long)?;
    buffer.set_port(whole.port());
    buffer.set_user_data(whole.user_data());
    mark::copy(whole, &mut buffer);
    memory.copy_stamp(whole, &buffer);
    Ok(buffer)
}
