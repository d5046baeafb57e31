//! Delivers packets to a hop. In: packets for the NFs of a hop, all from one memory. Out: their descriptors in the ring of
//! the replica that the hop's balancing chooses; [`InFlight`](crate::inflight::InFlight) owns the packets. Packets for
//! another trust group are copied. Pending offloads are done first, unless all NFs of the group accept them.
//!
//! Cost with one replica: two comparisons per burst. Least occupied: each ring's indexes once per burst. By hash: a key per
//! packet. Sticky: a key per packet (20 cycles) and a bucket (a line of 64 KiB at worst); a burst for several replicas is
//! published once for each.
//!
//! Predicted cost of a descriptor in bursts of 64: 8 bytes that move to the other core (the other 8 bytes are only compared),
//! and handing out: about 9 cycles per packet in some 35 instructions. Measured at 2.6 GHz: 8 to 10 cycles if a cache line
//! takes 120 cycles to the other core, 12 to 14 if it takes 430.

use dpdk::{Batch, Mbuf};
use netvm_model::MAX_REPLICAS;
use netvm_ring::Descriptor;
use netvm_tap::Direction;

use crate::drop_reason::DropReason;
use crate::ids::{ChainId, LinkId, PortId};
use crate::snapshot::{ChainPath, Choice, Replicas, StickyChoice};
use crate::tap::{Passing, Place};
use crate::worker::packet::keys::{hash_of, symmetric_hash_of};
use crate::worker::packet::runs::runs;
use crate::worker::state::burst::{Context, Origin};
use crate::worker::state::{BURST, Datapath};
use crate::worker::tx::copy::copy_into;
use crate::worker::tx::offload::{Receiver, Takes, all_plain, finish};

/// Packets of a chain that go to its next hop or leave it.
#[derive(Clone, Copy)]
pub(crate) struct Delivery<'a> {
    pub(crate) cx: Context<'a>,
    pub(crate) chain: ChainId,
    /// Descriptors carry the flow's hash.
    hashed: bool,
    /// The ingress port of all packets, if known and the same.
    port: Option<PortId>,
    /// The drop reason if there is no room.
    full: DropReason,
}

impl<'a> Delivery<'a> {
    /// At the entry of a chain.
    #[inline(always)]
    pub(crate) const fn into_chain(origin: Origin<'a>, chain: ChainId, path: &ChainPath) -> Self {
        let (port, full) = (Some(origin.port), DropReason::ChainFull);
        Self { cx: origin.cx, chain, hashed: path.hashed, port, full }
    }

    /// From one hop to the next.
    #[inline(always)]
    pub(crate) const fn onwards(cx: Context<'a>, chain: ChainId, path: &ChainPath) -> Self {
        Self { cx, chain, hashed: path.hashed, port: None, full: DropReason::DownstreamFull }
    }
}

/// Hands packets to NFs of a hop, and drops packets without room; the batch is empty afterwards. Returns the number of
/// packets handed out.
#[inline]
pub(crate) fn deliver(
    dp: &mut Datapath,
    delivery: &Delivery<'_>,
    replicas: Replicas<'_>,
    batch: &mut Batch,
) -> usize {
    if dp.ports.has_offload_work && !all_plain(batch) {
        return finish_and_deliver(dp, delivery, replicas, batch);
    }
    deliver_finished(dp, delivery, replicas, batch)
}

/// Finishes offloads that the NFs do not accept, and hands out the packets.
#[inline(never)]
fn finish_and_deliver(
    dp: &mut Datapath,
    delivery: &Delivery<'_>,
    replicas: Replicas<'_>,
    batch: &mut Batch,
) -> usize {
    let memory = delivery.cx.memory;
    let as_they_come = replicas.offloads && dp.memories.home_of(replicas.group) == Some(memory);
    let receiver = Receiver { memory, takes: if as_they_come { Takes::Nf } else { Takes::Nothing } };
    let mut delivered = 0;
    finish(dp, receiver, batch, |dp, batch| {
        delivered += deliver_finished(dp, delivery, replicas, batch);
    });
    delivered
}

/// Hands out packets whose pending offloads, if any, the NFs accept.
#[inline(always)]
fn deliver_finished(
    dp: &mut Datapath,
    delivery: &Delivery<'_>,
    replicas: Replicas<'_>,
    batch: &mut Batch,
) -> usize {
    let memory = delivery.cx.memory;
    let Delivery { chain, hashed, port, full, .. } = *delivery;
    let Some(home) = dp.memories.home_of(replicas.group) else {
        dp.drop_in_chain(chain, DropReason::NfDown, batch);
        return 0;
    };
    if home != memory {
        let mut lost = copy_into(dp, home, memory, batch);
        if !lost.is_empty() {
            dp.drop_in_chain(chain, DropReason::NoBuffer, &mut lost);
        }
    }
    let at = AtHop { chain, hop: replicas.hop, hashed, port, full };
    match (replicas.links, replicas.choice) {
        ([only], _) => enqueue_or_drop(dp, *only, at, batch),
        (several, Choice::LeastOccupied) => {
            let mut best = (u32::MAX, several[0]);
            for link in several {
                let load = dp.nfs.occupancy(*link);
                if load < best.0 {
                    best = (load, *link);
                }
            }
            enqueue_or_drop(dp, best.1, at, batch)
        }
        (several, Choice::Sticky(sticky)) => deliver_sticky(dp, (sticky, several), at, batch),
        (several, Choice::FlowHash) => {
            let mut delivered = 0;
            let choose = |mbuf: &Mbuf| several[usize::from(hash_of(mbuf)) % several.len()];
            runs(batch, choose, |link, run| delivered += enqueue_or_drop(dp, link, at, run));
            delivered
        }
    }
}

/// Hands each packet to the replica of its flow; the batch is empty afterwards. Returns the number of packets handed out.
#[inline(never)]
fn deliver_sticky(
    dp: &mut Datapath,
    (sticky, links): (&StickyChoice, &[LinkId]),
    at: AtHop,
    batch: &mut Batch,
) -> usize {
    let links = &links[..links.len().min(MAX_REPLICAS)];
    let nf_threads = &sticky.nf_threads[..links.len().min(sticky.nf_threads.len())];
    // Packets that wait for each replica, with those of this burst.
    let mut loads = [u32::MAX; MAX_REPLICAS];
    for (load, link) in loads.iter_mut().zip(links) {
        *load = dp.nfs.occupancy(*link);
    }
    let now = dp.clock.tick as u16;
    let mut choices = [0u8; BURST];
    for (choice, mbuf) in choices.iter_mut().zip(batch.as_slice()) {
        let is_available = |nf_thread: u16| nf_threads.iter().any(|one| u16::from(one.0) == nf_thread);
        let best = || nf_threads.get(least(&loads[..links.len()])).map_or(0, |one| u16::from(one.0));
        let chosen = sticky.table.choose(symmetric_hash_of(mbuf), now, is_available, best);
        let n = nf_threads.iter().position(|one| u16::from(one.0) == chosen).unwrap_or(0);
        loads[n] = loads[n].saturating_add(1);
        *choice = n as u8;
    }
    let mut shares: [Batch; MAX_REPLICAS] = std::array::from_fn(|_| Batch::new());
    for (mbuf, choice) in batch.drain().zip(choices) {
        // Each share is as large as the original batch, so there is room.
        let _ = shares[usize::from(choice) % MAX_REPLICAS].push(mbuf);
    }
    let mut delivered = 0;
    for (link, share) in links.iter().zip(&mut shares) {
        if !share.is_empty() {
            delivered += enqueue_or_drop(dp, *link, at, share);
        }
    }
    delivered
}

/// The number of the replica with the least load.
fn least(loads: &[u32]) -> usize {
    let least = loads.iter().enumerate().min_by_key(|(_, load)| **load);
    least.map_or(0, |(n, _)| n)
}

/// Contents of descriptors, and the drop reason of packets without room.
#[derive(Clone, Copy)]
struct AtHop {
    chain: ChainId,
    hop: u8,
    /// Descriptors carry the flow's hash.
    hashed: bool,
    /// The ingress port of all packets, if known and the same.
    port: Option<PortId>,
    full: DropReason,
}

/// Hands packets to one NF thread, and drops packets for which its ring has no room. Returns the number handed out.
#[inline]
fn enqueue_or_drop(dp: &mut Datapath, link: LinkId, at: AtHop, batch: &mut Batch) -> usize {
    let delivered = enqueue(dp, link, at, batch);
    if !batch.is_empty() {
        dp.drop_in_chain(at.chain, at.full, batch);
    }
    delivered
}

/// Hands packets from the front of the batch to one NF thread, as many as fit into its ring.
#[inline]
fn enqueue(dp: &mut Datapath, link: LinkId, at: AtHop, batch: &mut Batch) -> usize {
    let worker = dp.id;
    let wanted = batch.len() as u32;
    let Some(end) = dp.nfs.get_mut(link) else { return 0 };
    let count = end.to_nf.room(wanted).min(wanted);
    if count == 0 {
        return 0;
    }
    if dp.is_tapped {
        let place = Place::Hop { chain: at.chain, hop: at.hop, role: end.role };
        dp.tap(&Passing::at(place, Direction::In), &batch.as_slice()[..count as usize]);
    }
    let Datapath { nfs, in_flight, counters, latency, .. } = dp;
    let Some(link) = nfs.get_mut(link) else { return 0 };
    let followed = latency.is_among(&batch.raw()[..count as usize]);
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
