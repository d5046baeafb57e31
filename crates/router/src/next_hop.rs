// SPDX-License-Identifier: Apache-2.0
//! Next hops of routes.

use netvm_wire::MacAddr;

/// Ids of next hops are below this.
pub const MAX_NEXT_HOPS: usize = 1 << 15;
/// Most hops of a [`NextHop::Ecmp`].
pub const MAX_ECMP: usize = 16;

/// Number of a next hop within a router, below [`MAX_NEXT_HOPS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NextHopId(pub u16);

impl NextHopId {
    /// The next hop of packets that no route matches; always [`NextHop::Punt`].
    pub const PUNT: Self = Self(0);
    /// By convention, the next hop of the router's own addresses, a [`NextHop::Punt`]: the ways to limit what is punted
    /// differ.
    pub const LOCAL: Self = Self(2);
    /// The same for neighbours that the kernel has to resolve, of networks that no interface of the engine connects.
    pub const RESOLVE: Self = Self(3);
    /// The same for routes that only the kernel understands, so that [`NextHopId::PUNT`] says that there is no route.
    pub const KERNEL: Self = Self(4);
    /// The same for neighbours whose MAC address the kernel knew a while ago and has to resolve again.
    pub const LOST: Self = Self(5);

    /// The id as an index.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Whether the id is in range.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.index() < MAX_NEXT_HOPS
    }
}

/// A neighbour to forward packets to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hop {
    /// The router's interface towards the neighbour, as an index.
    pub interface: u16,
    /// Its MAC address.
    pub mac: MacAddr,
}

/// What happens to the packets of a route.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum NextHop {
    /// Punt them to the kernel.
    #[default]
    Punt,
    /// Punt them to the kernel, which resolves the neighbour on the router's interface of this index: its network is
    /// connected there.
    Glean(u16),
    /// Drop them silently.
    Blackhole,
    /// Forward them to a neighbour.
    Via(Hop),
    /// Forward each flow to one of 2 to [`MAX_ECMP`] neighbours (ECMP). A neighbour is listed once per unit of its
    /// weight.
    Ecmp(Box<[Hop]>),
}

impl NextHop {
    /// The neighbour for a flow hash; `None` where there is none.
    #[inline]
    #[must_use]
    pub fn choose(&self, hash: u32) -> Option<&Hop> {
        match self {
            Self::Via(hop) => Some(hop),
            // The high half of hash × length: uniform for any length, without a division.
            Self::Ecmp(hops) => hops.get(((u64::from(hash) * hops.len() as u64) >> 32) as usize),
            Self::Punt | Self::Glean(_) | Self::Blackhole => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_spread_evenly_over_any_number_of_hops() {
        for count in 2..=MAX_ECMP as u16 {
            let hops = (0..count).map(|interface| Hop { interface, mac: MacAddr::ZERO });
            let spread = NextHop::Ecmp(hops.collect());
            let mut found = vec![0u32; usize::from(count)];
            for n in 0..1u32 << 16 {
                let hop = spread.choose(n << 16 | 0x5555).unwrap();
                found[usize::from(hop.interface)] += 1;
            }
            let share = (1u32 << 16) / u32::from(count);
            assert!(found.iter().all(|n| n.abs_diff(share) <= 1), "{found:?}");
        }
    }

    #[test]
    fn punt_and_blackhole_have_no_neighbour() {
        for next_hop in [NextHop::Punt, NextHop::Glean(0), NextHop::Blackhole, NextHop::Ecmp(Box::default())]
        {
            assert_eq!(next_hop.choose(u32::MAX), None);
        }
    }
}
