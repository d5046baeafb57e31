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

mod attributes;
mod devices;
mod fdb;
mod hosts;
mod local;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use netvm_engine::PortId;
use netvm_model::{Host, PortConfig, RouterId};

pub use devices::DeviceError;
pub(super) use devices::{Devices, find};
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
    /// The VTEP of this host.
    local: IpAddr,
    udp_port: u16,
    mtu: u32,
}

impl Network {
    /// Those whose devices are in the namespace of a router.
    pub(super) fn all(host: &Host, router: RouterId) -> Vec<Self> {
        let network = |port: &PortConfig| {
            let config = port.kind.info().tunnel.filter(|config| config.is_evpn())?;
            Some(Self {
                port: port.id,
                vni: config.vni,
                underlay: config.router,
                local: config.local,
                udp_port: u16::try_from(config.udp_port).ok()?,
                mtu: port.mtu.into(),
            })
        };
        host.ports.iter().filter_map(network).filter(|network| network.underlay == router).collect()
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
