// SPDX-License-Identifier: Apache-2.0
//! The ports of programs that are hops, as workers see them: which chain a packet continues that comes back by a port.

use std::sync::Arc;

use netvm_wire::MacAddr;

use super::program_flows::{ProgramFlows, Side};
use crate::ids::{ChainId, PortId};
use crate::port_bits::PortBits;

/// The programs of a hop: packets enter one of them by its port.
#[derive(Clone, Debug)]
pub(crate) struct PairTarget {
    /// The position in the chain.
    pub(crate) hop: u8,
    /// The side by which packets enter.
    pub(crate) side: Side,
    /// The programs route, so they get only what can be routed.
    pub(crate) routes: bool,
    /// The port of each program; not empty. Both directions of a flow choose the same program.
    pub(crate) ports: Box<[PortId]>,
}

/// What packets have passed that come back from a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) chain: ChainId,
    pub(crate) hop: u8,
    /// The port that received all packets of the chain, if there is one such port.
    pub(crate) from: Option<PortId>,
}

/// A port of a program.
#[derive(Clone, Debug)]
pub(crate) struct PairReturn {
    pub(crate) port: PortId,
    /// The program's other port, or this one if it has no other.
    pub(crate) other: PortId,
    /// What packets have passed which come back here, by the side that they had entered by; `None`: none comes back.
    pub(crate) passed: [Option<Passed>; 2],
    /// Whether packets go through the program. If not, those that come back have been overtaken.
    pub(crate) is_up: bool,
    /// What is known of flows, if that is needed for packets that come back.
    pub(crate) flows: Option<Arc<ProgramFlows>>,
    /// The MAC address of the program's port that packets get, and lose when they come back.
    pub(crate) mac: Option<MacAddr>,
    /// Whether packets enter with a TTL that is higher by one.
    pub(crate) raises_ttl: bool,
}

impl PairReturn {
    /// The side by which all packets had entered that come back here, if it is one.
    pub(crate) fn only_side(&self) -> Option<Side> {
        match (self.other != self.port, self.passed[0].is_some()) {
            (false, _) => None,
            (true, is_left) => Some(Side::from(!is_left)),
        }
    }
}

/// The ports of all programs.
#[derive(Clone, Debug, Default)]
pub(crate) struct PairPorts {
    all: PortBits,
    /// By port.
    returns: Box<[PairReturn]>,
    /// Whether any program gets other packets than the chain has, or its flows are noted.
    prepare: bool,
}

impl PairPorts {
    pub(crate) fn new(mut returns: Vec<PairReturn>) -> Self {
        returns.sort_unstable_by_key(|one| one.port);
        let mut all = PortBits::default();
        returns.iter().for_each(|one| all.add(one.port));
        returns.dedup_by_key(|one| one.port);
        let prepare = returns.iter().any(|one| one.flows.is_some() || one.raises_ttl);
        Self { all, returns: returns.into(), prepare }
    }

    /// Whether this is the port of a program.
    #[inline(always)]
    pub(crate) fn has(&self, port: PortId) -> bool {
        self.all.has(port)
    }

    /// Whether packets that enter are prepared for any of them.
    #[inline(always)]
    pub(crate) const fn prepare(&self) -> bool {
        self.prepare
    }

    /// What comes back by a port.
    pub(crate) fn of(&self, port: PortId) -> Option<&PairReturn> {
        let n = self.returns.binary_search_by_key(&port, |one| one.port).ok()?;
        self.returns.get(n)
    }
}
