//! Offload work that guests and the kernel leave to others: checksums, and cutting TCP segments and UDP datagrams. In:
//! packets with such work. Out: packets that their receiver takes: plain ones for NFs and for all ports but those of
//! guests and kernel interfaces that take more.
//!
//! Cost for other packets: a look at each one's flags, and only in an engine with such ports.

use dpdk::{Accepts, Batch, Mbuf, Oversized};
use netvm_wire::segment::{Carries, HeaderLengths, MAX_HEADERS, Segmenter};

use crate::drop_reason::DropReason;
use crate::ids::{MemoryId, PortId};
use crate::memory::Memory;
use crate::worker::state::Datapath;

/// The memory of some packets, and the work that their receiver does itself.
#[derive(Clone, Copy)]
pub(crate) struct Receiver {
    pub(crate) memory: MemoryId,
    pub(crate) accepts: Accepts,
}

/// Whether no packet has offload work.
#[inline(always)]
pub(crate) fn all_plain(batch: &Batch) -> bool {
    batch.as_slice().iter().all(Mbuf::is_plain)
}

/// Does the work that the receiver does not, and gives the packets to `each`, in order and batch by batch, which it
/// empties. A packet whose work cannot be done is a drop of the port that it came in by.
#[cold]
pub(crate) fn finish(
    dp: &mut Datapath,
    receiver: Receiver,
    batch: &mut Batch,
    mut each: impl FnMut(&mut Datapath, &mut Batch),
) {
    let mut done = Batch::new();
    for mut mbuf in batch.drain() {
        if done.room() == 0 {
            each(dp, &mut done);
        }
        if receiver.accepts.takes(&mbuf) {
            let _ = done.push(mbuf);
        } else if let Some(cut) = mbuf.oversized() {
            let Some(segmenter) = segmenter_of(&mbuf, cut) else {
                count_drop(dp, &mbuf, DropReason::Malformed);
                continue;
            };
            for n in 0..segmenter.count() {
                if done.room() == 0 {
                    each(dp, &mut done);
                }
                match dp.memories.get(receiver.memory).map(|memory| segment(memory, &mbuf, &segmenter, n)) {
                    Some(Ok(packet)) => {
                        // There is room: see above.
                        let _ = done.push(packet);
                    }
                    Some(Err(reason)) => count_drop(dp, &mbuf, reason),
                    None => count_drop(dp, &mbuf, DropReason::NoBuffer),
                }
            }
        } else if mbuf.nb_segs() != 1 {
            count_drop(dp, &mbuf, DropReason::TooLong);
        } else if mbuf.finish_checksum() {
            let _ = done.push(mbuf);
        } else {
            count_drop(dp, &mbuf, DropReason::Malformed);
        }
    }
    if !done.is_empty() {
        each(dp, &mut done);
    }
}

fn count_drop(dp: &Datapath, mbuf: &Mbuf, reason: DropReason) {
    if let Some(counters) = dp.counters.ports.get(PortId(mbuf.port().0).index()) {
        counters.drops.add(reason, 1);
    }
}

/// What cuts a packet, by a private copy of its headers, which NFs that map the buffer cannot change.
fn segmenter_of(whole: &Mbuf, cut: Oversized) -> Option<Segmenter> {
    let mut headers = [0u8; MAX_HEADERS];
    let copied = whole.copy_to(&mut headers);
    let bytes = cut.headers();
    let headers = headers.get(..bytes).filter(|_| bytes <= copied)?;
    let lengths = HeaderLengths { l2: cut.l2.into(), l3: cut.l3.into(), l4: cut.l4.into() };
    let carries = Carries { v6: cut.v6, udp: cut.udp };
    Segmenter::new(headers, lengths, carries, whole.pkt_len() as usize - bytes, cut.size).ok()
}

/// Packet `n` of a segment, in a buffer of its own.
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
    let (headers, header_bytes) = segmenter.headers(n, u16::from_be_bytes(sum.to_ne_bytes()));
    buffer.replace_front(header_bytes as u16, &headers[..header_bytes]).map_err(too_long)?;
    buffer.set_port(whole.port());
    buffer.set_note(whole.note());
    Ok(buffer)
}
