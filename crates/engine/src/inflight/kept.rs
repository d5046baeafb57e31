// SPDX-License-Identifier: Apache-2.0
//! Buffers that an NF thread keeps: empty ones, for packets of its own, and packets that it holds. They are in the
//! in-flight table, in words that name the thread, so only this thread can send or release them, and a sweep of it
//! finds them without the owner table. Audits leave them alone, because an NF may keep a buffer for as long as it runs.
//!
//! ```text
//!             keep (quota left)                  take_back_kept, take_kept
//!  in engine ──────────────────▶ out, kept ──────────────────────────────▶ in engine
//! ```
//!
//! Cost: nothing for NFs that keep no buffers: a word of a kept buffer differs from those of others in the bits that
//! [`WorkerView`](super::table::WorkerView) compares anyway. Of others, as `hand_out` and `take_back_from_table`.

use dpdk::{Batch, Mbuf};
use netvm_ring::{Consumer, Descriptor, Span};

use super::take_back::fits;
use super::{InFlight, set_owners};
use crate::drop_reason::Violation;
use crate::ids::LinkId;

impl InFlight {
    /// Number of buffers that an NF thread may keep besides those that it keeps.
    pub(crate) fn room_to_keep(&self, link: LinkId) -> usize {
        let thread = self.threads[link.index()].as_deref();
        thread.map_or(0, |thread| thread.may_keep.saturating_sub(thread.kept) as usize)
    }

    /// Engine → kept, of packets from the front of the batch, as many as the thread's quota allows. `write` gets their
    /// spans. Returns their number.
    pub(crate) fn keep(&mut self, link: LinkId, batch: &mut Batch, write: impl FnOnce(&[Span])) -> usize {
        let count = self.room_to_keep(link).min(batch.len());
        let Some(thread) = self.threads[link.index()].as_deref_mut() else { return 0 };
        let packets = &batch.as_slice()[..count];
        set_owners(thread.table.owner_writer(thread.nf_thread), packets, &mut self.spans);
        let (spans, mbufs) = (&self.spans[..count], &batch.raw()[..count]);
        // SAFETY: `set_owners` computed the spans of these packets, packets on this path have one segment, and the
        // batch forgets them below.
        unsafe {
            thread.table.insert(spans, mbufs, thread.table.mark_kept(self.worker, thread.nf_thread));
            batch.forget_front(count);
        }
        thread.kept += count as u32;
        write(&self.spans[..count]);
        count
    }

    /// Kept → engine: the caller owns the packet of this buffer.
    pub(crate) fn take_kept(&mut self, link: LinkId, buffer: u32) -> Result<Mbuf, Violation> {
        let Some(thread) = self.threads[link.index()].as_deref_mut() else {
            return Err(Violation::BufferNotOut);
        };
        let mbuf = thread.table.of(self.worker).kept_by(thread.nf_thread).take(buffer)?;
        thread.kept = thread.kept.saturating_sub(1);
        Ok(mbuf)
    }

    /// Takes packets in buffers that the thread keeps, with the verdict of `first`. Returns their number.
    pub(super) fn take_back_kept(
        &mut self,
        link: LinkId,
        first: Descriptor,
        from_nf: &mut Consumer,
        run: &mut Batch,
    ) -> usize {
        let Some(thread) = self.threads[link.index()].as_deref_mut().filter(|thread| thread.kept > 0) else {
            return 0;
        };
        let (bits, geometry) = (first.verdict_key(), thread.table.geometry());
        let view = thread.table.of(self.worker).kept_by(thread.nf_thread);
        let taken = from_nf.pop_cached(run.room(), |descriptor| {
            let span = descriptor.span();
            if !(bits.matches(descriptor) && fits(span, geometry)) {
                return false;
            }
            let Ok(mut mbuf) = view.take(span.buffer()) else { return false };
            // SAFETY: the span lies in the mbuf's buffer, as just checked; a packet that was kept has one segment.
            unsafe { mbuf.set_bounds_unchecked(span.offset(), span.length()) };
            run.add(mbuf);
            true
        });
        thread.kept = thread.kept.saturating_sub(taken as u32);
        taken
    }
}
