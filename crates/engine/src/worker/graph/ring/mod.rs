// SPDX-License-Identifier: Apache-2.0
//! The ring of an NF thread. In: packets for it. Out: their descriptors in the ring;
//! [`InFlight`](crate::inflight::InFlight) owns the packets. Packets for which the ring has no room are dropped.
//!
//! Cost of a descriptor: 8 bytes that move to the other core (the other 8 bytes are only compared), and handing out. It
//! depends on how far apart the cores are.

pub(crate) mod start_queue;

use dpdk::{Batch, Mbuf};
use netvm_capture_ring::Direction;
use netvm_ring::Descriptor;
use netvm_wire::ConnState;

use crate::capture::{CaptureMeta, CapturePoint};
use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::memory::mark::state_of;
use crate::worker::graph::observe;
use crate::worker::next::{CountedAt, RingEnd};
use crate::worker::packet::keys::hash_of;
use crate::worker::state::Datapath;
use crate::worker::state::burst::Context;

/// Hands packets to an NF thread, and drops packets for which its ring has no room; the batch is empty afterwards.
#[inline]
pub(crate) fn hand_out(dp: &mut Datapath, cx: Context<'_>, end: RingEnd, batch: &mut Batch) {
    // Descriptors carry the flow's hash.
    let hashed = cx.snapshot.chain(end.chain).is_some_and(|path| path.hashed);
    let is_like = !hashed && !end.from.is_some_and(|from| cx.snapshot.tracks(from));
    let count = enqueue(dp, end, Describe { hashed, is_like }, batch);
    if end.from.is_some() {
        observe::entered_chain(dp, end.chain, count);
    }
    if !batch.is_empty() {
        let reason = if end.from.is_some() { DropReason::ChainFull } else { DropReason::DownstreamFull };
        observe::drop(dp, CountedAt::Chain(end.chain), reason, batch);
    }
}

/// What descriptors say of their packets.
#[derive(Clone, Copy)]
struct Describe {
    /// The hash of each one's flow.
    hashed: bool,
    /// The same of all from one port.
    is_like: bool,
}

/// Hands packets from the front of the batch to one NF thread, as many as fit into its ring.
#[inline]
fn enqueue(dp: &mut Datapath, at: RingEnd, describe: Describe, batch: &mut Batch) -> usize {
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
        let port = from.filter(|_| describe.is_like).or_else(|| like_all(packets, describe));
        if let Some(port) = port {
            let like = like(port.0);
            link.to_nf.write_each(0, spans, |span| like.with_packet(*span));
        } else {
            for ((n, mbuf), span) in (0..).zip(packets).zip(spans) {
                let argument = Descriptor::arrival(mbuf.port().0, state_of(mbuf) as u8);
                let descriptor = like(argument).with_packet(*span);
                let hashed = if describe.hashed { descriptor.with_hash(hash_of(mbuf)) } else { descriptor };
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

/// The common ingress port of packets whose descriptors carry neither hash nor state; `None` if they differ.
fn like_all(packets: &[Mbuf], describe: Describe) -> Option<PortId> {
    let port = packets.first()?.port();
    let is_like = |mbuf: &Mbuf| mbuf.port() == port && state_of(mbuf) == ConnState::Untracked;
    (!describe.hashed && packets.iter().all(is_like)).then_some(PortId(port.0))
}
