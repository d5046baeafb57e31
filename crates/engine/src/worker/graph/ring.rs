//! The ring of an NF thread. In: packets for it. Out: their descriptors in the ring;
//! [`InFlight`](crate::inflight::InFlight) owns the packets. Packets for which the ring has no room are dropped.
//!
//! Cost of a descriptor: 8 bytes that move to the other core (the other 8 bytes are only compared), and handing out. It
//! depends on how far apart the cores are.

use dpdk::{Batch, Mbuf};
use netvm_capture_ring::Direction;
use netvm_ring::Descriptor;

use super::observe;
use crate::capture::{CaptureMeta, CapturePoint};
use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::worker::next::{CountedAt, RingEnd};
use crate::worker::packet::keys::hash_of;
use crate::worker::state::Datapath;
use crate::worker::state::burst::Context;

/// Hands packets to an NF thread, and drops packets for which its ring has no room; the batch is empty afterwards.
#[inline]
pub(crate) fn hand_out(dp: &mut Datapath, cx: Context<'_>, end: RingEnd, batch: &mut Batch) {
    // Descriptors carry the flow's hash.
    let hashed = cx.snapshot.chain(end.chain).is_some_and(|path| path.hashed);
    let count = enqueue(dp, end, hashed, batch);
    if end.from.is_some() {
        observe::entered_chain(dp, end.chain, count);
    }
    if !batch.is_empty() {
        let reason = if end.from.is_some() { DropReason::ChainFull } else { DropReason::DownstreamFull };
        observe::drop(dp, CountedAt::Chain(end.chain), reason, batch);
    }
}

/// Hands packets from the front of the batch to one NF thread, as many as fit into its ring.
#[inline]
fn enqueue(dp: &mut Datapath, at: RingEnd, hashed: bool, batch: &mut Batch) -> usize {
    let RingEnd { link, chain, hop, from } = at;
    let worker = dp.id;
    let wanted = batch.len() as u32;
    let Some(end) = dp.nfs.get_mut(link) else { return 0 };
    let count = end.to_nf.room(wanted).min(wanted);
    if count == 0 {
        return 0;
    }
    if dp.is_capturing {
        let point = CapturePoint::Hop { chain, hop, role: end.role };
        dp.capture(&CaptureMeta::at(point, Direction::In), &batch.as_slice()[..count as usize]);
    }
    let Datapath { nfs, in_flight, counters, latency, .. } = dp;
    let Some(link) = nfs.get_mut(link) else { return 0 };
    let followed = latency.is_among(&batch.raw()[..count as usize]);
    link.to_nf.prefetch_index();
    link.to_nf.prefetch(0, count);
    let like = |port: u16| Descriptor::default().on_path(chain.0, hop, port, worker.0);
    let is_out = in_flight.hand_out(link.id, count as usize, batch, |packets, spans| {
        if !hashed && let Some(port) = from.or_else(|| port_of_all(packets)) {
            let like = like(port.0);
            link.to_nf.write_each(0, spans, |span| like.with_packet(*span));
        } else {
            for ((n, mbuf), span) in (0..).zip(packets).zip(spans) {
                let descriptor = like(mbuf.port().0).with_packet(*span);
                let hashed = if hashed { descriptor.with_hash(hash_of(mbuf)) } else { descriptor };
                link.to_nf.write(n, hashed);
            }
        }
    });
    if !is_out {
        return 0;
    }
    link.to_nf.publish(count);
    if followed {
        latency.handed_out(chain, hop);
    }
    // The next burst is probably as long. Its slots arrive while other links are served.
    link.to_nf.prefetch(0, count);
    link.note_published();
    if let Some(counters) = counters.links.get(link.id.index()) {
        counters.delivered.add(count.into());
    }
    count as usize
}

/// The ingress port of all packets, if it is the same.
fn port_of_all(packets: &[Mbuf]) -> Option<PortId> {
    let port = packets.first()?.port();
    packets.iter().all(|mbuf| mbuf.port() == port).then_some(PortId(port.0))
}
