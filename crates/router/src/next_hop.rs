//! What routes point to.

use netvm_wire::MacAddr;

/// Ids of next hops are below this.
pub const MAX_NEXT_HOPS: usize = 1 << 15;
/// Most hops of a [`NextHop::Spread`].
pub const MAX_SPREAD: usize = 16;

/// Number of a next hop of one router, below [`MAX_NEXT_HOPS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NextHopId(pub u16);

impl NextHopId {
    /// What no route matches; always [`NextHop::Punt`].
    pub const PUNT: Self = Self(0);

    /// The number as an index.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Whether a table can have it.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.index() < MAX_NEXT_HOPS
    }
}

/// A neighbour that packets go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hop {
    /// The interface that it is behind: its place among those of the router.
    pub interface: u16,
    /// Its MAC address.
    pub mac: MacAddr,
}

/// What is done with packets of a route.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum NextHop {
    /// The kernel gets them.
    #[default]
    Punt,
    /// They are dropped without a word.
    Blackhole,
    /// They go to a neighbour.
    Via(Hop),
    /// They go to one of several, by flow (ECMP). A hop is there once for each unit of its weight; 2 to [`MAX_SPREAD`].
    Spread(Box<[Hop]>),
}

impl NextHop {
    /// The neighbour for a flow with this hash; `None` where there is none to send to, as with [`NextHop::Punt`] and
    /// [`NextHop::Blackhole`].
    #[inline]
    #[must_use]
    pub fn choose(&self, hash: u32) -> Option<&Hop> {
        match self {
            Self::Via(hop) => Some(hop),
            // The high bits of hash times length: even for any length, and no division.
            Self::Spread(hops) => hops.get(((u64::from(hash) * hops.len() as u64) >> 32) as usize),
            Self::Punt | Self::Blackhole => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_spread_evenly_over_any_number_of_hops() {
        for count in 2..=MAX_SPREAD as u16 {
            let hops = (0..count).map(|interface| Hop { interface, mac: MacAddr::ZERO });
            let spread = NextHop::Spread(hops.collect());
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
    fn there_is_no_neighbour_without_one() {
        for next_hop in [NextHop::Punt, NextHop::Blackhole, NextHop::Spread(Box::default())] {
            assert_eq!(next_hop.choose(u32::MAX), None);
        }
    }
}
