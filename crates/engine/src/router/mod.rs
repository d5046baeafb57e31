// SPDX-License-Identifier: Apache-2.0
//! Virtual routers in the workers' snapshot.

mod destination_limit;
mod interface;
mod limits;
mod punt;
mod shared;
mod tunnels;

use std::collections::BTreeMap;
use std::sync::Arc;

use netvm_model::RouterId;
use netvm_router::Tables;
use netvm_wire::VlanId;

use crate::ids::PortId;

pub(crate) use destination_limit::DestinationLimit;
pub(crate) use interface::{Ingress, InterfacePath, OwnAddresses};
pub use interface::{RouterInterfaceState, RouterState};
pub(crate) use limits::UnresolvedLimit;
pub(crate) use punt::PuntLimits;
pub use punt::{PuntClass, PuntCounts, PuntReason};
pub(crate) use shared::SharedPort;
pub use tunnels::{EvpnUpdate, UnknownNetwork};
pub(crate) use tunnels::{Hosts, Tunnel, Tunnels, Vteps, source_hasher};

/// The interfaces of a router on one port.
#[derive(Debug)]
struct InterfaceIndex {
    port: PortId,
    /// The lowest VLAN of an interface (0: untagged).
    first: u16,
    /// Index of the interface with each VLAN from `first` to the highest, or [`NONE`]: at most 8 KiB, and one cache
    /// line if the VLANs are consecutive.
    interfaces: Box<[u16]>,
    /// If other routers have interfaces there in one of the VLANs.
    shared: Option<Arc<SharedPort>>,
}

/// The state of so many interfaces, four lines for each, takes a quarter of a first cache of 32 KiB.
const CACHED_INTERFACES: usize = 32;
/// No interface has this index.
const NONE: u16 = u16::MAX;

/// A router.
pub(crate) struct RouterPath {
    pub(crate) id: RouterId,
    /// In the order of the configuration, which [`netvm_router::Hop::interface`] indexes.
    pub(crate) interfaces: Box<[InterfacePath]>,
    pub(crate) tables: Arc<Tables>,
    /// Whether any interface checks the sources of IPv4 packets, or of IPv6 packets.
    pub(crate) checks_sources: [bool; 2],
    pub(crate) own: OwnAddresses,
    /// Its tunnels to other servers.
    pub(crate) tunnels: Arc<Tunnels>,
    /// Sorted by port.
    on: Box<[InterfaceIndex]>,
    /// Punt ports, sorted, with their interfaces.
    punts: Box<[(PortId, u16)]>,
}

/// The interfaces of a router on one port; possibly none.
#[derive(Clone, Copy)]
pub(crate) struct PortInterfaces<'a> {
    first: u16,
    interfaces: &'a [u16],
    pub(crate) shared: Option<&'a Arc<SharedPort>>,
}

impl RouterPath {
    /// `own`: its IPv4 addresses.
    pub(crate) fn new(
        id: RouterId,
        interfaces: Box<[InterfacePath]>,
        tables: Arc<Tables>,
        own: &[u32],
    ) -> Self {
        let mut by_port: BTreeMap<PortId, BTreeMap<u16, u16>> = BTreeMap::new();
        for (n, interface) in (0..).zip(&interfaces) {
            let vlan = interface.vlan.map_or(0, VlanId::get);
            by_port.entry(interface.port).or_default().insert(vlan, n);
        }
        let on = by_port.into_iter().map(|(port, vlans)| InterfaceIndex::new(port, &vlans)).collect();
        let mut punts: Box<[_]> = (0..).zip(&interfaces).map(|(n, interface)| (interface.punt, n)).collect();
        punts.sort_unstable();
        let checks = |family: usize| interfaces.iter().any(|interface| interface.urpf[family].is_some());
        let checks_sources = [checks(0), checks(1)];
        let (own, tunnels) = (OwnAddresses::new(own), Arc::default());
        Self { id, interfaces, tables, checks_sources, own, tunnels, on, punts }
    }

    /// Tells it which of its ports other routers share.
    pub(crate) fn set_shared(&mut self, shared: &BTreeMap<PortId, Arc<SharedPort>>) {
        for on in &mut self.on {
            on.shared = shared.get(&on.port).map(Arc::clone);
        }
    }

    /// The interfaces on a port.
    pub(crate) fn on(&self, port: PortId) -> PortInterfaces<'_> {
        match self.on.binary_search_by_key(&port, |on| on.port) {
            Ok(n) => {
                let InterfaceIndex { first, interfaces, shared, .. } = &self.on[n];
                PortInterfaces { first: *first, interfaces, shared: shared.as_ref() }
            }
            Err(_) => PortInterfaces { first: 0, interfaces: &[], shared: None },
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
        self.interfaces.len() > CACHED_INTERFACES
    }

    /// The interface with this index.
    #[inline(always)]
    pub(crate) fn interface(&self, number: u16) -> Option<&InterfacePath> {
        self.interfaces.get(usize::from(number))
    }
}

impl InterfaceIndex {
    /// `vlans`: the index of the interface with each VLAN.
    fn new(port: PortId, vlans: &BTreeMap<u16, u16>) -> Self {
        let first = vlans.keys().next().copied().unwrap_or(0);
        let last = vlans.keys().next_back().copied().unwrap_or(0);
        let interfaces = (first..=last).map(|vlan| vlans.get(&vlan).copied().unwrap_or(NONE)).collect();
        Self { port, first, interfaces, shared: None }
    }
}

impl PortInterfaces<'_> {
    #[inline(always)]
    pub(crate) const fn is_empty(self) -> bool {
        self.interfaces.is_empty()
    }

    #[inline(always)]
    pub(crate) const fn is_one(self) -> bool {
        self.interfaces.len() == 1
    }

    /// Index of the interface with this VLAN (0: untagged). A load without a search: VLANs of a burst may be in any
    /// order.
    #[inline(always)]
    pub(crate) fn with(self, vlan: u16) -> Option<u16> {
        let found = self.interfaces.get(usize::from(vlan.wrapping_sub(self.first)));
        found.copied().filter(|interface| *interface != NONE)
    }
}
