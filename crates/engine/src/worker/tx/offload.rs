//! What guests leave to others of their packets (checksums, cutting TCP segments) is done where packets go to who does not
//! take it over: NFs, and all ports but those of other guests that have said that they do.
//!
//! Only the first step, a look at each packet's flags, costs anything on other packets' way, and only in an engine that
//! has such guests.

use dpdk::{Accepts, Batch, Mbuf, Oversized};
use netvm_wire::segment::{Lengths, MAX_HEADERS, Segmenter};

use crate::drop_reason::DropReason;
use crate::ids::{MemoryId, PortId};
use crate::memory::Memory;
use crate::worker::state::Path;

/// Whether all packets are as everybody takes them.
#[inline(always)]
pub(crate) fn all_plain(batch: &Batch) -> bool {
    batch.as_slice().iter().all(Mbuf::is_plain)
}

impl Path {
    /// Does what is left to do of packets of `memory`, unless who gets them takes it over, and gives them to `each`, in order
    /// and in one batch after the other, which it empties. What cannot be done is a drop of the port that the packet came in
    /// by.
    #[cold]
    pub(crate) fn finish(
        &mut self,
        memory: MemoryId,
        accepts: Accepts,
        batch: &mut Batch,
        mut each: impl FnMut(&mut Self, &mut Batch),
    ) {
        let mut done = Batch::new();
        for mut mbuf in batch.drain() {
            if done.room() == 0 {
                each(self, &mut done);
            }
            if accepts.takes(&mbuf) {
                let _ = done.push(mbuf);
            } else if let Some(cut) = mbuf.oversized() {
                self.cut(memory, &mbuf, cut, &mut done, &mut each);
            } else if mbuf.nb_segs() != 1 {
                self.lose(&mbuf, DropReason::TooLong);
            } else if mbuf.finish_checksum() {
                let _ = done.push(mbuf);
            } else {
                self.lose(&mbuf, DropReason::Malformed);
            }
        }
        if !done.is_empty() {
            each(self, &mut done);
        }
    }

    fn lose(&self, mbuf: &Mbuf, reason: DropReason) {
        if let Some(counters) = self.counters.ports.get(PortId(mbuf.port().0).index()) {
            counters.drops.add(reason, 1);
        }
    }

    /// Cuts a segment into packets.
    fn cut(
        &mut self,
        memory: MemoryId,
        whole: &Mbuf,
        cut: Oversized,
        done: &mut Batch,
        each: &mut impl FnMut(&mut Self, &mut Batch),
    ) {
        // From a private copy, which NFs that map the buffer cannot change any more.
        let mut headers = [0u8; MAX_HEADERS];
        let copied = whole.copy_to(&mut headers);
        let bytes = cut.headers();
        let segmenter = headers.get(..bytes).filter(|_| bytes <= copied).and_then(|headers| {
            let lengths = Lengths { l2: cut.l2.into(), l3: cut.l3.into(), l4: cut.l4.into() };
            Segmenter::new(headers, lengths, cut.v6, whole.pkt_len() as usize - bytes, cut.size).ok()
        });
        let Some(segmenter) = segmenter else { return self.lose(whole, DropReason::Malformed) };
        for n in 0..segmenter.count() {
            if done.room() == 0 {
                each(self, done);
            }
            let packet = self.memories[memory.index()].as_deref().map(|memory| {
                let mut buffers = Batch::new();
                memory.pool.alloc_into(&mut buffers, 1);
                buffers
                    .pop()
                    .map_or(Err(DropReason::NoBuffer), |buffer| packet(memory, whole, &segmenter, n, buffer))
            });
            match packet {
                Some(Ok(packet)) => {
                    // There is room: see above.
                    let _ = done.push(packet);
                }
                Some(Err(reason)) => self.lose(whole, reason),
                None => self.lose(whole, DropReason::NoBuffer),
            }
        }
    }
}

/// Packet `n` of a segment, in a buffer.
fn packet(
    memory: &Memory,
    whole: &Mbuf,
    segmenter: &Segmenter,
    n: usize,
    mut buffer: Mbuf,
) -> Result<Mbuf, DropReason> {
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
