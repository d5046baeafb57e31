//! How many packets of each flow were found clean.

use netvm_wire::{FlowHasher, FlowKey, TcpFlags};

/// Flows that are told apart at a time; a power of two.
const FLOWS: usize = 1 << 16;

/// Counts by flow, as the engine knows flows. Bounded: a flow that takes another's place makes that one begin anew, and is
/// never taken for it (but for two that agree in 64 bits of a hash with a random key).
#[derive(Debug)]
pub(crate) struct CleanFlows {
    hasher: FlowHasher,
    /// By the lower bits of the hash: the hash, and the count.
    flows: Box<[(u64, u16)]>,
}

impl CleanFlows {
    pub(crate) fn new() -> Self {
        Self { hasher: FlowHasher::new(), flows: vec![(0, 0); FLOWS].into() }
    }

    /// Counts a packet of a flow; whether these are `enough` now.
    pub(crate) fn count(&mut self, key: FlowKey, enough: u16) -> bool {
        let place = self.place(key);
        place.1 = place.1.saturating_add(1);
        place.1 >= enough
    }

    /// A packet of a flow was not clean: it begins anew.
    pub(crate) fn forget(&mut self, key: FlowKey) {
        self.place(key).1 = 0;
    }

    /// All flows begin anew.
    pub(crate) fn clear(&mut self) {
        self.flows.fill((0, 0));
    }

    fn place(&mut self, key: FlowKey) -> &mut (u64, u16) {
        let hash = self.hasher.key(&of_flow(key));
        let place = &mut self.flows[hash as usize % FLOWS];
        if place.0 != hash {
            *place = (hash, 0);
        }
        place
    }
}

/// The key without what differs from packet to packet of a flow.
fn of_flow(key: FlowKey) -> FlowKey {
    FlowKey { tcp_flags: TcpFlags::empty(), dscp: 0, icmp_type: 0, icmp_code: 0, arp_operation: 0, ..key }
}
