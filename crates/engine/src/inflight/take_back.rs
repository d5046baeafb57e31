// SPDX-License-Identifier: Apache-2.0
//! Takes packets back: checks descriptors that an NF thread returned against its source's queue, then against the
//! in-flight table.
//!
//! In: descriptors from the NF's ring, with arbitrary contents. Out: a run of packets that the worker owns and that
//! share a verdict, with bounds inside their buffers; or one control message; or one refused descriptor.
//!
//! Cost per packet in order: the low words of descriptors come from the NF's core (8 lines for 64 packets, prefetched a
//! run ahead). 15 instructions compare them with the queue, a row of slots at a time and without a branch for each.
//! After a difference, the rest of the turn handles one descriptor at a time. The check for control messages is one
//! branch per run: messages differ from packets in the bits that all descriptors of a run share.

use dpdk::{Batch, Mbuf, MbufPtr};
use netvm_region::Geometry;
use netvm_ring::{Consumer, Descriptor, Message, Span};

use super::InFlight;
use crate::drop_reason::Violation;
use crate::ids::LinkId;

/// Shortest packet that an NF may make of another: an Ethernet header. Shorter ones, which captures and guests send,
/// come back only at the bounds at which they were handed out.
const MIN_LENGTH: u16 = 14;

/// One turn of one NF thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    link: LinkId,
    /// All rows have matched so far.
    by_rows: bool,
}

impl Turn {
    pub(crate) const fn new(link: LinkId) -> Self {
        Self { link, by_rows: true }
    }
}

/// The next item that an NF thread returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Returned {
    /// No descriptor that the cached ring index shows.
    Nothing,
    /// Packets, now in the batch, with the chain, hop, action and argument of this descriptor.
    Packets(Descriptor),
    /// The same, of packets in buffers that the thread kept.
    Kept(Descriptor),
    /// A control message.
    Message(Message),
    /// A packet whose new bounds leave its buffer or hold no Ethernet header; it was freed.
    BadBounds,
    /// A descriptor without a packet that is out, or an unknown message.
    Refused(Violation),
}

impl InFlight {
    /// Takes back the next packets with the same verdict, as many as the empty batch `run` holds, or one descriptor of
    /// another kind.
    #[inline(always)]
    pub(crate) fn take_back(&mut self, turn: &mut Turn, from_nf: &mut Consumer, run: &mut Batch) -> Returned {
        while let Some(first) = from_nf.peek_cached() {
            if first.is_control() {
                return self.take_one(turn.link, from_nf, run);
            }
            if self.take_back_in_order(turn, first, from_nf, run) > 0
                || self.take_back_from_table(turn.link, first, from_nf, run) > 0
            {
                return Returned::Packets(first);
            }
            if self.take_back_kept(turn.link, first, from_nf, run) > 0 {
                return Returned::Kept(first);
            }
            if !self.find_source(turn.link, first.buffer()) {
                return self.take_one(turn.link, from_nf, run);
            }
        }
        Returned::Nothing
    }

    /// Takes packets that come back in the order in which the source got them. Returns their number.
    #[inline(always)]
    fn take_back_in_order(
        &mut self,
        turn: &mut Turn,
        first: Descriptor,
        from_nf: &mut Consumer,
        run: &mut Batch,
    ) -> usize {
        let Some(thread) = self.threads[turn.link.index()].as_deref() else { return 0 };
        let source = thread.source;
        let Some(thread) = self.threads[source.index()].as_deref_mut() else { return 0 };
        let bits = first.verdict_key();
        let geometry = thread.table.geometry();
        let (spans, mbufs) = thread.queue.front();
        let room = spans.len().min(run.room());
        let mut taken = if turn.by_rows { from_nf.pop_matching(&spans[..room], bits) } else { 0 };
        if taken == 0 {
            turn.by_rows = false;
            let mut next = spans.iter().zip(mbufs);
            taken = from_nf.pop_cached(room, |descriptor| {
                let Some((handed, mbuf)) = next.next() else { return false };
                let span = descriptor.span();
                bits.matches(descriptor) && (span == *handed || is_moved(*handed, span, *mbuf, geometry))
            });
        }
        // SAFETY: `hand_out` made the batch forget these packets, and the queue forgets them below.
        unsafe { run.adopt(&mbufs[..taken]) };
        thread.queue.pop(taken);
        thread.publish_level(self.worker);
        // The next run crosses while this one is acted on.
        from_nf.prefetch_cached(Batch::CAPACITY as u32);
        taken
    }

    /// Takes packets that are in the table and that this worker handed to any thread of the group. Returns their
    /// number.
    #[inline]
    fn take_back_from_table(
        &self,
        link: LinkId,
        first: Descriptor,
        from_nf: &mut Consumer,
        run: &mut Batch,
    ) -> usize {
        let Some(thread) = self.threads[link.index()].as_deref() else { return 0 };
        let (bits, geometry, view) =
            (first.verdict_key(), thread.table.geometry(), thread.table.of(self.worker));
        let (spare, room) = run.spare();
        let mut taken = 0;
        // Leaves unusual descriptors in the ring for `take_one`, so that this loop keeps few values.
        from_nf.pop_cached(room, |descriptor| {
            let span = descriptor.span();
            if !(bits.matches(descriptor) & fits(span, geometry)) {
                return false;
            }
            let Ok(mut mbuf) = view.take(span.buffer()) else { return false };
            // SAFETY: the span lies in the mbuf's buffer, as just checked; a packet that was handed out has one
            // segment.
            unsafe { mbuf.set_bounds_unchecked(span.offset(), span.length()) };
            // SAFETY: `spare` has place for `room`, and fewer have been taken.
            unsafe { spare.add(taken).write(mbuf.into_raw().as_ptr()) };
            taken += 1;
            true
        });
        // The next run crosses while this one is acted on.
        from_nf.prefetch_cached(Batch::CAPACITY as u32);
        // SAFETY: this number of pointers was written, and `into_raw` gave up each packet.
        unsafe { run.assume_added(taken) };
        taken
    }

    /// Takes one descriptor that is not a packet in the table with bounds that an NF may set. Reads it again: a hostile
    /// NF may have changed it.
    #[cold]
    fn take_one(&mut self, link: LinkId, from_nf: &mut Consumer, run: &mut Batch) -> Returned {
        let (mut returned, mut buffer) = (Returned::Nothing, u32::MAX);
        let Some(thread) = self.threads[link.index()].as_deref() else { return returned };
        from_nf.pop_cached(1, |descriptor| {
            returned = if descriptor.is_control() {
                descriptor.message().map_or(Returned::Refused(Violation::UnknownMessage), Returned::Message)
            } else {
                buffer = descriptor.buffer();
                match thread.table.of(self.worker).take(buffer) {
                    Ok(mbuf) if is_as_handed(&mbuf, descriptor.span()) => {
                        run.add(mbuf);
                        Returned::Packets(descriptor)
                    }
                    Ok(_) => Returned::BadBounds,
                    Err(violation) => Returned::Refused(violation),
                }
            };
            true
        });
        if let Returned::Refused(Violation::BufferNotOut) = returned
            && self.take_kept(link, buffer).is_ok()
        {
            returned = Returned::BadBounds;
        }
        returned
    }
}

/// Whether an NF may give a packet these bounds.
#[inline(always)]
pub(super) fn fits(span: Span, geometry: &Geometry) -> bool {
    geometry.contains(span.buffer(), span.offset(), span.length()) & (span.length() >= MIN_LENGTH)
}

/// Whether the packet comes back at the bounds at which it was handed out: its mbuf still has them.
fn is_as_handed(mbuf: &Mbuf, span: Span) -> bool {
    (mbuf.data_off(), mbuf.data_len()) == (span.offset(), span.length())
}

/// Whether the packet comes back at other bounds in its buffer; if so, sets the bounds of its mbuf.
#[inline(never)]
fn is_moved(handed: Span, span: Span, mbuf: MbufPtr, geometry: &Geometry) -> bool {
    if handed.buffer() != span.buffer() || !fits(span, geometry) {
        return false;
    }
    // SAFETY: a packet in a queue has no owner but the queue's; the span lies in its buffer, and it has one segment.
    unsafe { mbuf.borrow().set_bounds_unchecked(span.offset(), span.length()) };
    true
}
