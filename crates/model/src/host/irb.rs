// SPDX-License-Identifier: Apache-2.0
//! Routers at networks of tunnels (integrated routing and bridging, RFC 9135).

use netvm_ids::RouterId;
use netvm_wire::VlanId;

use super::Host;
use crate::port::{Forward, PortConfig, SendsTo, VlanMode};
use crate::router::{RouterConfig, RouterInterface};

impl Host {
    /// The interfaces of routers in the VLAN of a port of L2 switching, by which they route for its hosts.
    pub fn routed_at<'a>(
        &'a self,
        port: &'a PortConfig,
    ) -> impl Iterator<Item = (&'a RouterConfig, &'a RouterInterface)> {
        let is_switched = port.policy.forward == Forward::Normal;
        let all =
            self.routers.iter().flat_map(|router| router.interfaces.iter().map(move |one| (router, one)));
        all.filter(move |(_, interface)| {
            let end =
                self.port(interface.port).filter(|end| end.kind.info().sends_to == Some(SendsTo::Bridge));
            is_switched && end.is_some_and(|end| vlan_at(end, interface.vlan) == vlan_at(port, None))
        })
    }

    /// The router in whose namespace the kernel knows the network of a tunnel: the one that routes there, so that the
    /// namespace is a VRF of it; else the one that reaches the VTEPs.
    #[must_use]
    pub fn vrf_of(&self, port: &PortConfig) -> Option<RouterId> {
        let tunnel = port.kind.info().tunnel?;
        match port.policy.forward {
            Forward::Router(router) => Some(router),
            _ => Some(self.routed_at(port).next().map_or(tunnel.router, |(router, _)| router.id)),
        }
    }
}

/// The VLAN of packets with this tag that a port receives (inner `None`: it is not aware of VLANs).
fn vlan_at(port: &PortConfig, tag: Option<VlanId>) -> Option<Option<VlanId>> {
    match &port.policy.vlan {
        VlanMode::Unaware => tag.is_none().then_some(None),
        VlanMode::Access(vlan) => tag.is_none().then_some(Some(*vlan)),
        VlanMode::Trunk { native, .. } => tag.or(*native).map(Some),
    }
}
