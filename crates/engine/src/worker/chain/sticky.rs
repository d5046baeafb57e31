//! To the replicas that flows stick to: by occupancy at a flow's first packet, the same one from then on.
//!
//! Predicted cost: the key of each packet once more (20 cycles) and a bucket (a line of 64 KiB at worst); a burst that goes to
//! several replicas is published once for each.

use dpdk::Batch;
use netvm_config::model::MAX_REPLICAS;
use netvm_region::Sticky;

use crate::ids::LinkId;
use crate::worker::chain::deliver::Place;
use crate::worker::classify::lookup::{MOST, key_of};
use crate::worker::state::Path;

impl Path {
    /// Hands each packet to the replica of its flow; the batch is empty afterwards. Returns how many were handed on.
    #[inline(never)]
    pub(crate) fn deliver_sticky(
        &mut self,
        sticky: &Sticky,
        links: &[LinkId],
        place: Place,
        batch: &mut Batch,
    ) -> usize {
        let links = &links[..links.len().min(MAX_REPLICAS)];
        // What each replica has to do, with what this burst brings it.
        let mut loads = [u32::MAX; MAX_REPLICAS];
        for (load, link) in loads.iter_mut().zip(links) {
            *load = self.links[link.index()].as_mut().map_or(u32::MAX, |link| link.to_nf.occupancy());
        }
        let mut choices = [0u8; MOST];
        for (choice, mbuf) in choices.iter_mut().zip(batch.as_slice()) {
            let tuple = key_of(mbuf).ok().and_then(|key| key.five_tuple());
            let hash = tuple.map_or(0, |tuple| tuple.symmetric_hash());
            let is_there = |link: u16| links.contains(&LinkId(link));
            let chosen = sticky.choose(hash, self.tick as u16, is_there, || least(&loads, links).0);
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
                delivered += self.push_or_drop(*link, place, share);
            }
        }
        delivered
    }
}

/// The link with the least to do; the first one if there is none.
fn least(loads: &[u32], links: &[LinkId]) -> LinkId {
    let least = links.iter().zip(loads).min_by_key(|(_, load)| **load);
    least.map_or(LinkId(0), |(link, _)| *link)
}
