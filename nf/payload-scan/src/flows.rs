// SPDX-License-Identifier: Apache-2.0
//! Counts the clean packets of each flow, for `--skip-after`.

use netvm_wire::{FlowHasher, FlowKey, TcpFlags};

/// Number of slots; a power of two.
const FLOWS: usize = 1 << 16;

/// Counts by flow, as the engine defines flows. Bounded: a flow that takes another's slot resets that one's count.
/// Flows are identified by a 64-bit hash with a random key.
#[derive(Debug)]
pub(crate) struct CleanFlows {
    hasher: FlowHasher,
    /// Hash and count, indexed by the lower bits of the hash.
    flows: Box<[(u64, u16)]>,
}

impl CleanFlows {
    pub(crate) fn new() -> Self {
        Self { hasher: FlowHasher::new(), flows: vec![(0, 0); FLOWS].into() }
    }

    /// Counts a clean packet; true at `enough`.
    pub(crate) fn count(&mut self, key: FlowKey, enough: u16) -> bool {
        let place = self.place(key);
        place.1 = place.1.saturating_add(1);
        place.1 >= enough
    }

    /// Resets a flow after a packet that was not clean.
    pub(crate) fn forget(&mut self, key: FlowKey) {
        self.place(key).1 = 0;
    }

    /// Resets all flows.
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

/// The key without fields that differ within a flow.
fn of_flow(key: FlowKey) -> FlowKey {
    FlowKey { tcp_flags: TcpFlags::empty(), dscp: 0, icmp_type: 0, icmp_code: 0, arp_operation: 0, ..key }
}
