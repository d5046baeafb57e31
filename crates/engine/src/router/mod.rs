//! Virtual routers in the workers' snapshot.

mod punt;

use std::sync::Arc;

use netvm_config::model::{RouterId, Urpf};
use netvm_router::Tables;
use netvm_wire::{MacAddr, VlanId};

use crate::ids::PortId;

pub(crate) use punt::{DestinationLimit, PuntLimits};
pub use punt::{PuntClass, PuntCounts};

/// An interface of a router.
#[derive(Clone, Debug)]
pub(crate) struct InterfacePath {
    /// The port that it uses.
    pub(crate) port: PortId,
    /// The VLAN tag of its packets.
    pub(crate) vlan: Option<VlanId>,
    pub(crate) mac: MacAddr,
    /// Addresses besides, as VRRP has one.
    pub(crate) also: Box<[MacAddr]>,
    /// Longest IP packet.
    pub(crate) mtu: u32,
    /// Which sources its packets may have; `None`: any.
    pub(crate) urpf: Option<Urpf>,
    /// The port to the router's kernel namespace.
    pub(crate) punt: PortId,
    /// Limits what is punted to the kernel.
    pub(crate) punts: Arc<PuntLimits>,
}

/// Maps a port and VLAN (0: untagged) to a router interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct At {
    port: u16,
    vlan: u16,
    interface: u16,
}

/// A router.
pub(crate) struct RouterPath {
    pub(crate) id: RouterId,
    /// In the order of the configuration, which [`netvm_router::Hop::interface`] indexes.
    pub(crate) interfaces: Box<[InterfacePath]>,
    pub(crate) tables: Arc<Tables>,
    /// Some interface looks at sources.
    pub(crate) checks_sources: bool,
    /// Sorted by port, then by VLAN.
    at: Box<[At]>,
}

/// The interfaces of a router on one port.
#[derive(Clone, Copy)]
pub(crate) struct Here<'a>(&'a [At]);

impl RouterPath {
    pub(crate) fn new(id: RouterId, interfaces: Box<[InterfacePath]>, tables: Arc<Tables>) -> Self {
        let at = |(n, interface): (u16, &InterfacePath)| At {
            port: interface.port.0,
            vlan: interface.vlan.map_or(0, VlanId::get),
            interface: n,
        };
        let mut at: Box<[At]> = (0..).zip(&interfaces).map(at).collect();
        at.sort_unstable();
        let checks_sources = interfaces.iter().any(|interface| interface.urpf.is_some());
        Self { id, interfaces, tables, checks_sources, at }
    }

    /// The interfaces on a port.
    pub(crate) fn on(&self, port: PortId) -> Here<'_> {
        let first = self.at.partition_point(|at| at.port < port.0);
        let count = self.at[first..].partition_point(|at| at.port == port.0);
        Here(&self.at[first..first + count])
    }

    /// The interface whose punt port this is.
    pub(crate) fn punted_by(&self, port: PortId) -> Option<&InterfacePath> {
        self.interfaces.iter().find(|interface| interface.punt == port)
    }

    /// The interface with this index.
    #[inline(always)]
    pub(crate) fn interface(&self, number: u16) -> Option<&InterfacePath> {
        self.interfaces.get(usize::from(number))
    }
}

impl Here<'_> {
    #[inline(always)]
    pub(crate) const fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    #[inline(always)]
    pub(crate) const fn is_one(self) -> bool {
        self.0.len() == 1
    }

    /// Index of the interface with this VLAN (0: untagged).
    #[inline(always)]
    pub(crate) fn with(self, vlan: u16) -> Option<u16> {
        if let [only] = self.0 {
            return (only.vlan == vlan).then_some(only.interface);
        }
        let index = self.0.binary_search_by_key(&vlan, |at| at.vlan).ok()?;
        self.0.get(index).map(|at| at.interface)
    }
}
