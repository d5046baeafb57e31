//! To the replicas that flows stick to. In: packets for several replicas. Out: each to the replica of its flow, which
//! was the emptiest one when the flow's first packet came.
//!
//! Predicted cost: the key of each packet once more (20 cycles) and a bucket (a line of 64 KiB at worst); a burst that
//! goes to several replicas is published once for each.

use dpdk::Batch;
use netvm_config::model::MAX_REPLICAS;
use netvm_region::Sticky;

use super::enqueue::{AtHop, enqueue_or_drop};
use crate::ids::LinkId;
use crate::worker::packet::keys::symmetric_hash_of;
use crate::worker::state::{BURST, Datapath};

/// Hands each packet to the replica of its flow; the batch is empty afterwards. Returns how many were handed over.
#[inline(never)]
pub(crate) fn deliver_sticky(
    dp: &mut Datapath,
    (sticky, links): (&Sticky, &[LinkId]),
    at: AtHop,
    batch: &mut Batch,
) -> usize {
    let links = &links[..links.len().min(MAX_REPLICAS)];
    // Packets that wait for each replica, with those of this burst.
    let mut loads = [u32::MAX; MAX_REPLICAS];
    for (load, link) in loads.iter_mut().zip(links) {
        *load = dp.nfs.occupancy(*link);
    }
    let now = dp.clock.tick as u16;
    let mut choices = [0u8; BURST];
    for (choice, mbuf) in choices.iter_mut().zip(batch.as_slice()) {
        let is_there = |link: u16| links.contains(&LinkId(link));
        let chosen = sticky.choose(symmetric_hash_of(mbuf), now, is_there, || least(&loads, links).0);
        let n = links.iter().position(|link| link.0 == chosen).unwrap_or(0);
        loads[n] = loads[n].saturating_add(1);
        *choice = n as u8;
    }
    let mut shares: [Batch; MAX_REPLICAS] = std::array::from_fn(|_| Batch::new());
    for (mbuf, choice) in batch.drain().zip(choices) {
        // Each is as large as the batch that they come from: there is room.
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

/// The link with the least load; the first one if there is none.
fn least(loads: &[u32], links: &[LinkId]) -> LinkId {
    let least = links.iter().zip(loads).min_by_key(|(_, load)| **load);
    least.map_or(LinkId(0), |(link, _)| *link)
}
