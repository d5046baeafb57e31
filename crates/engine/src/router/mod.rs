//! Virtual routers in the workers' snapshot.

mod destination_limit;
mod punt;

use std::collections::BTreeMap;
use std::sync::Arc;

use netvm_config::model::{RouterId, Urpf};
use netvm_router::Tables;
use netvm_wire::{MacAddr, VlanId};

use crate::ids::PortId;

pub(crate) use destination_limit::DestinationLimit;
pub(crate) use punt::PuntLimits;
pub use punt::{PuntClass, PuntCounts, PuntReason};

/// An interface of a router.
#[derive(Clone, Debug)]
pub(crate) struct InterfacePath {
    /// The port that it uses.
    pub(crate) port: PortId,
    /// The VLAN tag of its packets.
    pub(crate) vlan: Option<VlanId>,
    pub(crate) mac: MacAddr,
    /// Additional addresses, for example of VRRP.
    pub(crate) also: Box<[MacAddr]>,
    /// Longest IP packet.
    pub(crate) mtu: u32,
    /// The reverse path check of its packets' sources; `None`: no check.
    pub(crate) urpf: Option<Urpf>,
    /// The port to the router's kernel namespace.
    pub(crate) punt: PortId,
    /// Limits of punted packets.
    pub(crate) punts: Arc<PuntLimits>,
}

/// The interfaces of a router on one port.
#[derive(Debug)]
struct OnPort {
    port: PortId,
    /// The lowest VLAN of an interface (0: untagged).
    first: u16,
    /// Index of the interface with each VLAN from `first` to the highest, or [`NONE`]: at most 8 KiB, and one cache line if the
    /// VLANs are consecutive.
    interfaces: Box<[u16]>,
}

/// The state of so many interfaces, four lines for each, takes a quarter of a first cache of 32 KiB.
const FEW: usize = 32;
/// No interface has this index.
const NONE: u16 = u16::MAX;

/// A router.
pub(crate) struct RouterPath {
    pub(crate) id: RouterId,
    /// In the order of the configuration, which [`netvm_router::Hop::interface`] indexes.
    pub(crate) interfaces: Box<[InterfacePath]>,
    pub(crate) tables: Arc<Tables>,
    /// Whether any interface checks sources.
    pub(crate) checks_sources: bool,
    /// Sorted by port.
    on: Box<[OnPort]>,
    /// Punt ports, sorted, with their interfaces.
    punts: Box<[(PortId, u16)]>,
}

/// The interfaces of a router on one port; possibly none.
#[derive(Clone, Copy)]
pub(crate) struct Here<'a> {
    first: u16,
    interfaces: &'a [u16],
}

impl RouterPath {
    pub(crate) fn new(id: RouterId, interfaces: Box<[InterfacePath]>, tables: Arc<Tables>) -> Self {
        let mut by_port: BTreeMap<PortId, BTreeMap<u16, u16>> = BTreeMap::new();
        for (n, interface) in (0..).zip(&interfaces) {
            let vlan = interface.vlan.map_or(0, VlanId::get);
            by_port.entry(interface.port).or_default().insert(vlan, n);
        }
        let on = by_port.into_iter().map(|(port, vlans)| OnPort::new(port, &vlans)).collect();
        let mut punts: Box<[_]> = (0..).zip(&interfaces).map(|(n, interface)| (interface.punt, n)).collect();
        punts.sort_unstable();
        let checks_sources = interfaces.iter().any(|interface| interface.urpf.is_some());
        Self { id, interfaces, tables, checks_sources, on, punts }
    }

    /// The interfaces on a port.
    pub(crate) fn on(&self, port: PortId) -> Here<'_> {
        match self.on.binary_search_by_key(&port, |on| on.port) {
            Ok(n) => Here { first: self.on[n].first, interfaces: &self.on[n].interfaces },
            Err(_) => Here { first: 0, interfaces: &[] },
        }
    }

    /// The interface whose punt port this is.
    pub(crate) fn punted_by(&self, port: PortId) -> Option<&InterfacePath> {
        let n = self.punts.binary_search_by_key(&port, |(punt, _)| *punt).ok()?;
        self.interface(self.punts[n].1)
    }

    /// Whether it has more interfaces than a core's first cache holds beside the packets.
    #[inline(always)]
    pub(crate) fn has_many_interfaces(&self) -> bool {
        self.interfaces.len() > FEW
    }

    /// The interface with this index.
    #[inline(always)]
    pub(crate) fn interface(&self, number: u16) -> Option<&InterfacePath> {
        self.interfaces.get(usize::from(number))
    }
}

impl OnPort {
    /// `vlans`: the index of the interface with each VLAN.
    fn new(port: PortId, vlans: &BTreeMap<u16, u16>) -> Self {
        let first = vlans.keys().next().copied().unwrap_or(0);
        let last = vlans.keys().next_back().copied().unwrap_or(0);
        let interfaces = (first..=last).map(|vlan| vlans.get(&vlan).copied().unwrap_or(NONE)).collect();
        Self { port, first, interfaces }
    }
}

impl Here<'_> {
    #[inline(always)]
    pub(crate) const fn is_empty(self) -> bool {
        self.interfaces.is_empty()
    }

    #[inline(always)]
    pub(crate) const fn is_one(self) -> bool {
        self.interfaces.len() == 1
    }

    /// Index of the interface with this VLAN (0: untagged). A load without a search: VLANs of a burst may be in any order.
    #[inline(always)]
    pub(crate) fn with(self, vlan: u16) -> Option<u16> {
        let found = self.interfaces.get(usize::from(vlan.wrapping_sub(self.first)));
        found.copied().filter(|interface| *interface != NONE)
    }
}
