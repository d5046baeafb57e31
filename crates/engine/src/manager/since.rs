//! Counters of ports, chains and routers since they were configured. Workers count by number since their start, but the
//! number of a removed item is reused.

use std::array;
use std::collections::BTreeMap;

use netvm_model::{Host, RouterId};

use crate::counters::{Counter, InterfaceCounters, RouterCounters, WorkerCounters};
use crate::drop_reason::DropReason;
use crate::ids::{ChainId, PortId};
use crate::manager::Engine;

/// Counters of a port, summed over the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortSums {
    pub(crate) rx_packets: u64,
    pub(crate) rx_bytes: u64,
    pub(crate) rx_coalesced: u64,
    pub(crate) tx_packets: u64,
    pub(crate) tx_bytes: u64,
    pub(crate) cycles: u64,
    pub(crate) waited: u64,
    pub(crate) interface: InterfaceCounts,
    pub(crate) drops: [u64; DropReason::COUNT],
}

/// Counts of packets through an interface of a virtual router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct InterfaceCounts {
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes of these, without FCS and the interface's tag.
    pub rx_bytes: u64,
    /// Of these, packets that the router dropped, except those dropped by a punt limit.
    pub rx_dropped: u64,
    /// Packets sent, forwarded or by the kernel.
    pub tx_packets: u64,
    /// Bytes of these, without FCS and the interface's tag.
    pub tx_bytes: u64,
}

impl InterfaceCounts {
    fn since(&self, before: &Self) -> Self {
        Self {
            rx_packets: self.rx_packets - before.rx_packets,
            rx_bytes: self.rx_bytes - before.rx_bytes,
            rx_dropped: self.rx_dropped - before.rx_dropped,
            tx_packets: self.tx_packets - before.tx_packets,
            tx_bytes: self.tx_bytes - before.tx_bytes,
        }
    }
}

/// Counters of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChainSums {
    pub(crate) entered: u64,
    pub(crate) left: u64,
    pub(crate) drops: [u64; DropReason::COUNT],
}

/// Counters of a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct RouterSums {
    pub(crate) forwarded: u64,
    pub(crate) punted: u64,
    pub(crate) from_kernel: u64,
}

/// The values of the counters of each number when an item got the number.
#[derive(Debug, Default)]
pub(crate) struct Baselines {
    ports: BTreeMap<PortId, PortSums>,
    chains: BTreeMap<ChainId, ChainSums>,
    routers: BTreeMap<RouterId, RouterSums>,
}

impl Default for PortSums {
    fn default() -> Self {
        let drops = [0; DropReason::COUNT];
        let interface = InterfaceCounts::default();
        Self {
            rx_packets: 0,
            rx_bytes: 0,
            rx_coalesced: 0,
            tx_packets: 0,
            tx_bytes: 0,
            cycles: 0,
            waited: 0,
            interface,
            drops,
        }
    }
}

impl Default for ChainSums {
    fn default() -> Self {
        Self { entered: 0, left: 0, drops: [0; DropReason::COUNT] }
    }
}

impl PortSums {
    fn since(&self, before: &Self) -> Self {
        Self {
            rx_packets: self.rx_packets - before.rx_packets,
            rx_bytes: self.rx_bytes - before.rx_bytes,
            rx_coalesced: self.rx_coalesced - before.rx_coalesced,
            tx_packets: self.tx_packets - before.tx_packets,
            tx_bytes: self.tx_bytes - before.tx_bytes,
            cycles: self.cycles - before.cycles,
            waited: self.waited - before.waited,
            interface: self.interface.since(&before.interface),
            drops: less(&self.drops, &before.drops),
        }
    }
}

impl ChainSums {
    pub(crate) fn add(&mut self, other: &Self) {
        self.entered += other.entered;
        self.left += other.left;
        self.drops.iter_mut().zip(other.drops).for_each(|(sum, more)| *sum += more);
    }

    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            entered: self.entered - before.entered,
            left: self.left - before.left,
            drops: less(&self.drops, &before.drops),
        }
    }
}

impl RouterSums {
    fn since(&self, before: &Self) -> Self {
        Self {
            forwarded: self.forwarded - before.forwarded,
            punted: self.punted - before.punted,
            from_kernel: self.from_kernel - before.from_kernel,
        }
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
        self.sums_of_port(id).since(&self.since.ports.get(&id).copied().unwrap_or_default())
    }

    pub(crate) fn chain_counts(&self, id: ChainId) -> ChainSums {
        self.sums_of_chain(id).since(&self.since.chains.get(&id).copied().unwrap_or_default())
    }

    pub(crate) fn router_counts(&self, id: RouterId) -> RouterSums {
        self.sums_of_router(id).since(&self.since.routers.get(&id).copied().unwrap_or_default())
    }

    fn sums_of_port(&self, id: PortId) -> PortSums {
        let index = id.index();
        PortSums {
            rx_packets: self.sum(|c| c.ports[index].rx_packets.get()),
            rx_bytes: self.sum(|c| c.ports[index].rx_bytes.get()),
            rx_coalesced: self.sum(|c| c.ports[index].rx_coalesced.get()),
            tx_packets: self.sum(|c| c.ports[index].tx_packets.get()),
            tx_bytes: self.sum(|c| c.ports[index].tx_bytes.get()),
            cycles: self.sum(|c| c.ports[index].cycles.get()),
            waited: self.sum(|c| c.ports[index].waited.get()),
            interface: self.sums_of_interface(index),
            drops: DropReason::ALL.map(|reason| self.sum(|c| c.ports[index].drops.get(reason))),
        }
    }

    fn sums_of_interface(&self, index: usize) -> InterfaceCounts {
        let sum = |of: fn(&InterfaceCounters) -> &Counter| self.sum(|c| of(&c.ports[index].interface).get());
        InterfaceCounts {
            rx_packets: sum(|interface| &interface.rx_packets),
            rx_bytes: sum(|interface| &interface.rx_bytes),
            rx_dropped: sum(|interface| &interface.rx_dropped),
            tx_packets: sum(|interface| &interface.tx_packets),
            tx_bytes: sum(|interface| &interface.tx_bytes),
        }
    }

    /// The sums of a chain's number since the start of the workers.
    pub(crate) fn sums_of_chain(&self, id: ChainId) -> ChainSums {
        let index = id.index();
        ChainSums {
            entered: self.sum(|c| c.chains[index].entered.get()),
            left: self.sum(|c| c.chains[index].left.get()),
            drops: DropReason::ALL.map(|reason| self.sum(|c| c.chains[index].drops.get(reason))),
        }
    }

    fn sums_of_router(&self, id: RouterId) -> RouterSums {
        let sum = |of: fn(&RouterCounters) -> &Counter| {
            self.sum(|c: &WorkerCounters| of(&c.routers[id.index()]).get())
        };
        RouterSums {
            forwarded: sum(|router| &router.forwarded),
            punted: sum(|router| &router.punted),
            from_kernel: sum(|router| &router.from_kernel),
        }
    }
}

/// The baselines of these numbers: numbers that had an item `before` keep their baseline; others get the current counts.
fn carry<Id: Copy + Ord, Sums: Copy>(
    known: &BTreeMap<Id, Sums>,
    ids: impl Iterator<Item = Id>,
    before: impl Fn(Id) -> bool,
    now: impl Fn(Id) -> Sums,
) -> BTreeMap<Id, Sums> {
    ids.filter_map(|id| Some((id, if before(id) { *known.get(&id)? } else { now(id) }))).collect()
}

fn less(now: &[u64; DropReason::COUNT], before: &[u64; DropReason::COUNT]) -> [u64; DropReason::COUNT] {
    array::from_fn(|reason| now[reason] - before[reason])
}
