// SPDX-License-Identifier: Apache-2.0
//! Which replica of a role gets a packet.

use netvm_region::{Balance, MAX_NF_THREADS};

use super::TxRings;
use super::next_hop::NextHop;

impl TxRings {
    pub(super) fn choose(&mut self, replicas: &[u8], next_hop: &NextHop, hash: u8) -> u8 {
        match (next_hop.destination.balance(), self.sticky.get(usize::from(next_hop.role))) {
            (Balance::LeastOccupied, _) => self.least_occupied(replicas),
            (Balance::Sticky, Some(Some(_))) => self.sticky_replica(replicas, next_hop.role, hash),
            _ => replicas[usize::from(hash) % replicas.len()],
        }
    }

    /// The flow's replica; at its first packet the least occupied one.
    fn sticky_replica(&mut self, replicas: &[u8], role: u16, hash: u8) -> u8 {
        let least = self.least_occupied(replicas);
        let Some(Some(sticky)) = self.sticky.get(usize::from(role)) else { return least };
        let is_available = |nf_thread: u16| replicas.iter().any(|replica| u16::from(*replica) == nf_thread);
        sticky.choose(hash.into(), self.tick, is_available, || least.into()) as u8
    }

    fn least_occupied(&mut self, replicas: &[u8]) -> u8 {
        let load = |tx_rings: &mut Self, nf_thread: u8| {
            let tx_ring = tx_rings.nf_threads[usize::from(nf_thread) % MAX_NF_THREADS].as_mut();
            tx_ring.map_or(u32::MAX, |tx_ring| tx_ring.producer.occupancy() + tx_ring.pending)
        };
        let mut best = (u32::MAX, replicas[0]);
        for nf_thread in replicas {
            let load = load(self, *nf_thread);
            if load < best.0 {
                best = (load, *nf_thread);
            }
        }
        best.1
    }
}
