//! Counters of ports, chains and routers since they were configured. Workers count by number since their start, but the
//! number of a removed item is reused.

use std::array;
use std::collections::BTreeMap;
use std::ops::{Add, Sub};

use netvm_model::{Host, RouterId};

use crate::counters::{ChainCounts, InterfaceCounts, PortCounts, RouterCounts};
use crate::drop_reason::DropReason;
use crate::ids::{ChainId, PortId};
use crate::manager::Engine;

/// Counters of a port, summed over the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortSums {
    pub(crate) counts: PortCounts,
    pub(crate) cycles: u64,
    pub(crate) waited: u64,
    pub(crate) interface: InterfaceCounts,
    pub(crate) drops: DropSums,
}

/// Counters of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChainSums {
    pub(crate) counts: ChainCounts,
    pub(crate) drops: DropSums,
}

/// Drops by reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DropSums(pub(crate) [u64; DropReason::COUNT]);

/// The values of the counters of each number when an item got the number.
#[derive(Debug, Default)]
pub(crate) struct Baselines {
    ports: BTreeMap<PortId, PortSums>,
    chains: BTreeMap<ChainId, ChainSums>,
    routers: BTreeMap<RouterId, RouterCounts>,
}

impl Default for DropSums {
    fn default() -> Self {
        Self([0; DropReason::COUNT])
    }
}

impl Add for DropSums {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(array::from_fn(|reason| self.0[reason] + other.0[reason]))
    }
}

impl Sub for DropSums {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self(array::from_fn(|reason| self.0[reason] - before.0[reason]))
    }
}

impl Sub for PortSums {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            counts: self.counts - before.counts,
            cycles: self.cycles - before.cycles,
            waited: self.waited - before.waited,
            interface: self.interface - before.interface,
            drops: self.drops - before.drops,
        }
    }
}

impl Add for ChainSums {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { counts: self.counts + other.counts, drops: self.drops + other.drops }
    }
}

impl Sub for ChainSums {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self { counts: self.counts - before.counts, drops: self.drops - before.drops }
    }
}

impl Engine {
    /// Starts the counters of items that `before` did not have.
    pub(crate) fn count_from_now(&mut self, before: &Host) {
        let (host, since) = (&self.host, &self.since);
        let (ports, chains) =
            (host.ports.iter().map(|port| port.id), host.chains.iter().map(|chain| chain.id));
        let routers = host.routers.iter().map(|router| router.id);
        self.since = Baselines {
            ports: carry(&since.ports, ports, |id| before.port(id).is_some(), |id| self.sums_of_port(id)),
            chains: carry(
                &since.chains,
                chains,
                |id| before.chain(id).is_some(),
                |id| self.sums_of_chain(id),
            ),
            routers: carry(
                &since.routers,
                routers,
                |id| before.router(id).is_some(),
                |id| self.sums_of_router(id),
            ),
        };
    }

    pub(crate) fn port_counts(&self, id: PortId) -> PortSums {
        self.sums_of_port(id) - self.since.ports.get(&id).copied().unwrap_or_default()
    }

    pub(crate) fn chain_counts(&self, id: ChainId) -> ChainSums {
        self.sums_of_chain(id) - self.since.chains.get(&id).copied().unwrap_or_default()
    }

    pub(crate) fn router_counts(&self, id: RouterId) -> RouterCounts {
        self.sums_of_router(id) - self.since.routers.get(&id).copied().unwrap_or_default()
    }

    fn sums_of_port(&self, id: PortId) -> PortSums {
        let index = id.index();
        PortSums {
            counts: self.sum(|c| c.ports[index].counts()),
            cycles: self.sum(|c| c.ports[index].cycles.get()),
            waited: self.sum(|c| c.ports[index].waited.get()),
            interface: self.sum(|c| c.ports[index].interface.counts()),
            drops: DropSums(DropReason::ALL.map(|reason| self.sum(|c| c.ports[index].drops.get(reason)))),
        }
    }

    /// The sums of a chain's number since the start of the workers.
    pub(crate) fn sums_of_chain(&self, id: ChainId) -> ChainSums {
        let index = id.index();
        ChainSums {
            counts: self.sum(|c| c.chains[index].counts()),
            drops: DropSums(DropReason::ALL.map(|reason| self.sum(|c| c.chains[index].drops.get(reason)))),
        }
    }

    fn sums_of_router(&self, id: RouterId) -> RouterCounts {
        self.sum(|c| c.routers[id.index()].counts())
    }
}

/// The baselines of these numbers: numbers that had an item `before` keep their baseline; others get the current
/// counts.
fn carry<Id: Copy + Ord, Sums: Copy>(
    known: &BTreeMap<Id, Sums>,
    ids: impl Iterator<Item = Id>,
    before: impl Fn(Id) -> bool,
    now: impl Fn(Id) -> Sums,
) -> BTreeMap<Id, Sums> {
    ids.filter_map(|id| Some((id, if before(id) { *known.get(&id)? } else { now(id) }))).collect()
}
