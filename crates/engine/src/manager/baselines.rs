// SPDX-License-Identifier: Apache-2.0
//! Counters of ports, chains and routers since they were configured. Workers count by number since their start, but the
//! number of a removed item is reused.

use std::array;
use std::collections::BTreeMap;
use std::ops::{Add, Sub};

use netvm_model::{Host, RouterId};

use crate::counters::{ChainCounts, DropCounts, InterfaceCounts, PortCounts, RouterCounts};
use crate::drop_reason::DropReason;
use crate::ids::{ChainId, PortId};
use crate::manager::workers::Workers;
use crate::snapshot::Shortened;

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
pub(crate) struct DropSums([u64; DropReason::COUNT]);

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

impl DropSums {
    /// With the drops of a device before packets were received, and after they were sent.
    pub(crate) fn with_device(mut self, missed: u64, refused: u64) -> Self {
        self.0[DropReason::RxMissed as usize] += missed;
        self.0[DropReason::TxRefused as usize] += refused;
        self
    }

    /// By reason, without zeros.
    pub(crate) fn by_reason(self) -> DropCounts {
        DropReason::ALL.into_iter().zip(self.0).filter(|(_, count)| *count > 0).collect()
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

impl Baselines {
    /// Starts the counters of items that `before` did not have. `shortened`: variants of chains, which go on.
    pub(crate) fn follow(&mut self, before: &Host, host: &Host, shortened: &[Shortened], workers: &Workers) {
        let ports = host.ports.iter().map(|port| (port.id, before.port(port.id).is_some()));
        let chains = host.chains.iter().map(|chain| (chain.id, before.chain(chain.id).is_some()));
        let chains = chains.chain(shortened.iter().map(|short| (short.id, true)));
        let routers = host.routers.iter().map(|router| (router.id, before.router(router.id).is_some()));
        carry(&mut self.ports, ports, |id| sums_of_port(workers, id));
        carry(&mut self.chains, chains, |id| sums_of_chain(workers, id));
        carry(&mut self.routers, routers, |id| sums_of_router(workers, id));
    }

    /// Starts the counters of a variant of a chain.
    pub(crate) fn begin_chain(&mut self, id: ChainId, workers: &Workers) {
        self.chains.insert(id, sums_of_chain(workers, id));
    }

    pub(crate) fn port(&self, id: PortId, workers: &Workers) -> PortSums {
        sums_of_port(workers, id) - self.ports.get(&id).copied().unwrap_or_default()
    }

    pub(crate) fn chain(&self, id: ChainId, workers: &Workers) -> ChainSums {
        sums_of_chain(workers, id) - self.chains.get(&id).copied().unwrap_or_default()
    }

    pub(crate) fn router(&self, id: RouterId, workers: &Workers) -> RouterCounts {
        sums_of_router(workers, id) - self.routers.get(&id).copied().unwrap_or_default()
    }
}

fn sums_of_port(workers: &Workers, id: PortId) -> PortSums {
    let index = id.index();
    PortSums {
        counts: workers.sum(|c| c.ports[index].counts()),
        cycles: workers.sum(|c| c.ports[index].cycles.get()),
        waited: workers.sum(|c| c.ports[index].waited.get()),
        interface: workers.sum(|c| c.ports[index].interface.counts()),
        drops: DropSums(DropReason::ALL.map(|reason| workers.sum(|c| c.ports[index].drops.get(reason)))),
    }
}

fn sums_of_chain(workers: &Workers, id: ChainId) -> ChainSums {
    let index = id.index();
    ChainSums {
        counts: workers.sum(|c| c.chains[index].counts()),
        drops: DropSums(DropReason::ALL.map(|reason| workers.sum(|c| c.chains[index].drops.get(reason)))),
    }
}

fn sums_of_router(workers: &Workers, id: RouterId) -> RouterCounts {
    workers.sum(|c| c.routers[id.index()].counts())
}

/// Keeps the baselines of these numbers, each with whether it had an item before; others get the current counts.
fn carry<Id: Copy + Ord, Sums: Copy>(
    baselines: &mut BTreeMap<Id, Sums>,
    ids: impl Iterator<Item = (Id, bool)>,
    now: impl Fn(Id) -> Sums,
) {
    let baseline =
        |(id, had_item): (Id, bool)| Some((id, if had_item { *baselines.get(&id)? } else { now(id) }));
    let carried = ids.filter_map(baseline).collect();
    *baselines = carried;
}
