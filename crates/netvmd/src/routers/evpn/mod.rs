// SPDX-License-Identifier: Apache-2.0
//! EVPN of the networks of `vxlan` ports with `control = "evpn"`. A routing daemon in the namespace of a router speaks
//! it with other servers, and knows the kernel's devices there alone:
//!
//! ```text
//!  bridge br100 ─┬─ vxlan100   forwarding database: addresses behind other servers (the daemon writes, netvmd reads)
//!     │          └─ local100   the same: addresses behind ports of this server (netvmd writes, the daemon reads)
//!     └ neighbours: IP addresses of hosts behind other servers (the daemon), of hosts of this server (netvmd)
//! ```
//!
//! No packet of a port passes these devices: the engine has the same addresses in its own databases.
//!
//! The namespace of a router is a VRF. A network that a router has an interface in (L3VNI) has its devices there, and
//! so has one whose hosts it routes for (L2VNI). The `vxlan` device sends by the namespace of the router that reaches
//! the VTEPs (`link-netnsid`). The router's own interface and the bridge of an L3VNI are one: routes by the bridge lead
//! to the interface.

mod attributes;
mod devices;
mod fdb;
mod hosts;
mod local;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use netvm_engine::PortId;
use netvm_model::{Forward, Host, PortConfig, RouterId};
use netvm_wire::MacAddr;

pub use devices::DeviceError;
pub(super) use devices::{Devices, Underlays, find};
pub(super) use fdb::{FdbEntry, Tables, dump};
pub(super) use hosts::HostEntry;
pub(super) use local::{INTERVAL, Local, Wanted, Writer};

/// A network with EVPN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Network {
    /// The engine's port.
    pub(super) port: PortId,
    pub(super) vni: u32,
    /// The router that reaches the VTEPs.
    pub(super) underlay: RouterId,
    /// Its name, if the devices are in another router's namespace, a VRF of it.
    underlay_name: Option<String>,
    /// The router's interface in a network that only routers share (L3VNI); `None`: hosts share it.
    pub(super) gate: Option<Gate>,
    /// The VTEP of this host.
    local: IpAddr,
    udp_port: u16,
    mtu: u32,
}

/// An interface by which a router reaches those of other servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gate {
    /// Its place among the router's interfaces.
    pub(super) place: u16,
    /// The MAC address that other servers send to: the bridge has the same, as a routing daemon says that one.
    pub(super) mac: MacAddr,
}

impl Network {
    /// Those whose devices are in the namespace of a router.
    pub(super) fn all(host: &Host, router: RouterId) -> Vec<Self> {
        let network = |port: &PortConfig| {
            let config = port.kind.info().tunnel.filter(|config| config.is_evpn())?;
            let vrf = host.router(host.vrf_of(port)?).filter(|vrf| vrf.id == router)?;
            let underlay = host.router(config.router)?;
            let is_routed = port.policy.forward == Forward::Router(router);
            let places = (0..).zip(&vrf.interfaces).filter(|(_, one)| is_routed && one.port == port.id);
            Some(Self {
                underlay_name: (underlay.id != vrf.id).then(|| underlay.name.clone()),
                gate: places.map(|(place, one)| Gate { place, mac: one.mac }).next(),
                port: port.id,
                vni: config.vni,
                underlay: config.router,
                local: config.local,
                udp_port: u16::try_from(config.udp_port).ok()?,
                mtu: port.mtu.into(),
            })
        };
        host.ports.iter().filter_map(network).collect()
    }

    fn bridge(&self) -> String {
        format!("br{}", self.vni)
    }

    fn vxlan(&self) -> String {
        format!("vxlan{}", self.vni)
    }

    fn local_port(&self) -> String {
        format!("local{}", self.vni)
    }

    /// The other end of [`Network::local_port`], which stays down.
    fn unused_end(&self) -> String {
        format!("peer{}", self.vni)
    }
}
