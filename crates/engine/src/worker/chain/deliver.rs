//! Into a hop. In: packets for the NFs of a hop, all from one memory. Out: to the ring of the replica that the hop's
//! balancing chooses. Packets for another trust group are copied. Offload work is done first,
//! unless all NFs of the group take it as it comes.
//!
//! Cost to one replica: two comparisons per burst. Least occupied: one look at each ring's indexes per burst. By hash:
//! a key per packet.

use dpdk::{Batch, Mbuf};

use super::enqueue::{AtHop, enqueue_or_drop};
use super::sticky::deliver_sticky;
use crate::drop_reason::DropReason;
use crate::ids::{ChainId, PortId};
use crate::snapshot::{ChainPath, Choice, Replicas};
use crate::worker::packet::keys::hash_of;
use crate::worker::packet::runs::runs;
use crate::worker::state::Datapath;
use crate::worker::state::burst::{Context, Origin};
use crate::worker::tx::copy::copy_into;
use crate::worker::tx::offload::{Receiver, Takes, all_plain, finish};

/// Packets of a chain on their way to its next hop or out of it.
#[derive(Clone, Copy)]
pub(crate) struct Delivery<'a> {
    pub(crate) cx: Context<'a>,
    pub(crate) chain: ChainId,
    /// Descriptors carry the flow's hash.
    hashed: bool,
    /// The port that all of them came in by, if known.
    port: Option<PortId>,
    /// The reason of drops for want of room.
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

/// Hands packets to NFs of a hop, and drops those that find no room; the batch is empty afterwards. Returns how many
/// were handed over.
#[inline]
pub(crate) fn deliver(
    dp: &mut Datapath,
    delivery: &Delivery<'_>,
    replicas: Replicas<'_>,
    batch: &mut Batch,
) -> usize {
    if dp.ports.has_offload_work && !all_plain(batch) {
        let memory = delivery.cx.memory;
        let as_they_come = replicas.offloads && dp.memories.home_of(replicas.group) == Some(memory);
        let receiver = Receiver { memory, takes: if as_they_come { Takes::Nf } else { Takes::Nothing } };
        let mut delivered = 0;
        finish(dp, receiver, batch, |dp, batch| {
            delivered += deliver_finished(dp, delivery, replicas, batch);
        });
        return delivered;
    }
    deliver_finished(dp, delivery, replicas, batch)
}

/// Hands over packets without offload work that the NFs do not take.
#[inline]
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
        let lost = copy_into(dp, home, memory, batch);
        if lost > 0
            && let Some(counters) = dp.counters.chains.get(chain.index())
        {
            counters.drops.add(DropReason::NoBuffer, lost as u64);
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
