//! The ports of programs that are hops, as workers see them: which chain a packet continues that comes back by a port.

use crate::ids::{ChainId, PortId, RoleId};
use crate::port_bits::PortBits;

/// The programs of a hop: packets enter one of them by its port.
#[derive(Clone, Debug)]
pub(crate) struct PairTarget {
    /// The position in the chain.
    pub(crate) hop: u8,
    /// The port of each program; not empty. Both directions of a flow choose the same program.
    pub(crate) ports: Box<[PortId]>,
}

/// A port of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PairReturn {
    pub(crate) port: PortId,
    pub(crate) role: RoleId,
    /// The chain and the hop that packets have passed which come back here; `None`: no chain's packets do.
    pub(crate) passed: Option<(ChainId, u8)>,
    /// The port that received all packets of the chain, if there is one such port.
    pub(crate) from: Option<PortId>,
}

/// The ports of all programs.
#[derive(Clone, Debug, Default)]
pub(crate) struct PairPorts {
    all: PortBits,
    /// By port.
    returns: Box<[PairReturn]>,
}

impl PairPorts {
    pub(crate) fn new(mut returns: Vec<PairReturn>) -> Self {
        returns.sort_unstable_by_key(|one| one.port);
        let mut all = PortBits::default();
        returns.iter().for_each(|one| all.add(one.port));
        Self { all, returns: returns.into() }
    }

    /// Whether this is the port of a program.
    #[inline(always)]
    pub(crate) fn has(&self, port: PortId) -> bool {
        self.all.has(port)
    }

    /// What comes back by a port.
    pub(crate) fn of(&self, port: PortId) -> Option<&PairReturn> {
        let n = self.returns.binary_search_by_key(&port, |one| one.port).ok()?;
        self.returns.get(n)
    }
}
