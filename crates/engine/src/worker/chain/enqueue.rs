//! Into the ring of one NF thread. In: packets for it. Out: their descriptors in its ring, and the packets in the hands
//! of [`InFlight`](crate::inflight::InFlight).
//!
//! Predicted cost, in bursts of 64: 8 bytes of descriptor that cross (the others are compared with what is there), and
//! handing out: about 9 cycles a packet, in some 35 instructions. Measured: 8 to 10 at 2.6 GHz where a line takes 120
//! cycles to the other core, 12 to 14 where it takes 430.

use dpdk::{Batch, Mbuf};
use netvm_ring::Descriptor;

use crate::drop_reason::DropReason;
use crate::ids::{ChainId, LinkId, PortId};
use crate::worker::packet::keys::hash_of;
use crate::worker::state::Datapath;

/// What descriptors say about packets, and why packets without room are dropped.
#[derive(Clone, Copy)]
pub(crate) struct AtHop {
    pub(crate) chain: ChainId,
    pub(crate) hop: u8,
    /// Descriptors carry the flow's hash.
    pub(crate) hashed: bool,
    /// The port that all packets came in by, if known.
    pub(crate) port: Option<PortId>,
    pub(crate) full: DropReason,
}

/// Hands packets to one NF thread, and drops those that its ring has no room for. Returns how many were handed over.
#[inline]
pub(crate) fn enqueue_or_drop(dp: &mut Datapath, link: LinkId, at: AtHop, batch: &mut Batch) -> usize {
    let delivered = enqueue(dp, link, at, batch);
    if !batch.is_empty() {
        dp.drop_in_chain(at.chain, at.full, batch);
    }
    delivered
}

/// Hands packets from the front of the batch to one NF thread, as many as its ring has room for.
#[inline]
fn enqueue(dp: &mut Datapath, link: LinkId, at: AtHop, batch: &mut Batch) -> usize {
    let worker = dp.id;
    let Datapath { nfs, in_flight, counters, .. } = dp;
    let Some(link) = nfs.get_mut(link) else { return 0 };
    let wanted = batch.len() as u32;
    let count = link.to_nf.room(wanted).min(wanted);
    if count == 0 {
        return 0;
    }
    link.to_nf.prefetch_index();
    link.to_nf.prefetch(0, count);
    let AtHop { chain, hop, hashed, port, .. } = at;
    let from = |port: u16| Descriptor::default().on_path(chain.0, hop, port, worker.0);
    let is_out = in_flight.hand_out(link.id, count as usize, batch, |packets, spans| {
        if !hashed && let Some(port) = port.or_else(|| port_of_all(packets)) {
            let like = from(port.0);
            link.to_nf.write_each(0, spans, |span| like.with_packet(*span));
        } else {
            for ((n, mbuf), span) in (0..).zip(packets).zip(spans) {
                let descriptor = from(mbuf.port().0).with_packet(*span);
                let hashed = if hashed { descriptor.with_hash(hash_of(mbuf)) } else { descriptor };
                link.to_nf.write(n, hashed);
            }
        }
    });
    if !is_out {
        return 0;
    }
    link.to_nf.publish(count);
    // The next burst is probably as long; its slots cross while others are being served.
    link.to_nf.prefetch(0, count);
    link.note_published();
    if let Some(counters) = counters.links.get(link.id.index()) {
        counters.delivered.add(count.into());
    }
    count as usize
}

/// The port that all packets came in by, if it is one.
fn port_of_all(packets: &[Mbuf]) -> Option<PortId> {
    let port = packets.first()?.port();
    packets.iter().all(|mbuf| mbuf.port() == port).then_some(PortId(port.0))
}
