// SPDX-License-Identifier: Apache-2.0
//! Look-up of the next hop. In: a packet's chain and hop, or a role. Out: the destination by the next-hop table.

use netvm_region::{Destination, Table};
use netvm_ring::Descriptor;

/// The destination of packets of one chain and hop, cached for the runs of a burst.
pub(super) struct NextHop {
    key: (u16, u8, Option<u16>),
    pub(super) destination: Destination,
    /// The role at that hop; `u16::MAX` if there is none.
    pub(super) role: u16,
}

impl NextHop {
    pub(super) const fn none() -> Self {
        // No packet has this key: roles are below MAX_ROLES.
        Self { key: (u16::MAX, u8::MAX, Some(u16::MAX)), destination: Destination::engine(0), role: u16::MAX }
    }

    #[inline(always)]
    pub(super) fn matches(&self, descriptor: &Descriptor, role: Option<u16>) -> bool {
        self.key == (descriptor.chain(), descriptor.hop(), role)
    }

    pub(super) fn next(table: &Table, descriptor: &Descriptor) -> Self {
        let (chain, hop) = (descriptor.chain(), descriptor.hop());
        let destination = table.hop(chain, hop.wrapping_add(1));
        // The destination's hop, because hops may be bypassed.
        let roles = table.hop_roles.get(usize::from(chain));
        let role = roles.and_then(|roles| roles.get(usize::from(destination.hop))).copied().unwrap_or(0);
        Self { key: (chain, hop, None), destination, role: role.wrapping_sub(1) }
    }

    pub(super) fn role(table: &Table, descriptor: &Descriptor, role: u16) -> Self {
        let (chain, hop) = (descriptor.chain(), descriptor.hop());
        Self { key: (chain, hop, Some(role)), destination: table.role(chain, hop, role), role }
    }
}
