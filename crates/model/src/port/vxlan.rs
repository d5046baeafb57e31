// SPDX-License-Identifier: Apache-2.0
//! Ports of a VXLAN network (RFC 7348): what they send goes to other servers in UDP datagrams, by a virtual router.

use std::net::{IpAddr, Ipv4Addr};

use netvm_ids::RouterId;
use netvm_wire::vxlan::{UDP_PORT, V4_HEADERS, V6_HEADERS, Vni};

use super::FRAME_HEADER;
use super::keys::{Key, KeyValue};
use crate::words::words;

/// Who says which VTEPs a network has, and what is behind them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum VxlanControl {
    /// The configuration has the VTEPs; addresses behind them are learned from their packets.
    #[default]
    Static,
    /// BGP EVPN (RFC 7432, RFC 8365): what a routing daemon tells the kernel of the router's namespace.
    Evpn,
}

words!(VxlanControl: "static" => Static, "evpn" => Evpn);

/// The keys of a [`PortKind::Vxlan`](crate::PortKind::Vxlan).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VxlanConfig {
    /// The network, at most [`Vni::MAX`].
    pub vni: u32,
    /// The router whose routes lead to the remote VTEPs.
    pub router: RouterId,
    /// The address of this VTEP, one of the router.
    pub local: IpAddr,
    /// Who says which remote VTEPs there are.
    pub control: VxlanControl,
    /// The addresses of the remote VTEPs, of the same family, with [`VxlanControl::Static`].
    pub remotes: Vec<IpAddr>,
    /// The UDP port of all VTEPs.
    pub udp_port: u32,
    /// TTL or hop limit of the datagrams.
    pub ttl: u32,
    /// Their DSCP; `None`: that of the packet within.
    pub dscp: Option<u32>,
    /// Whether routers on the way may not fragment them.
    pub df: bool,
    /// Whether ARP requests and neighbour solicitations for addresses that EVPN says are answered here.
    pub neigh_suppress: bool,
}

impl Default for VxlanConfig {
    fn default() -> Self {
        Self {
            vni: 1,
            router: RouterId::default(),
            local: Ipv4Addr::UNSPECIFIED.into(),
            control: VxlanControl::default(),
            remotes: Vec::new(),
            udp_port: UDP_PORT.into(),
            ttl: 64,
            dscp: None,
            df: true,
            neigh_suppress: true,
        }
    }
}

impl VxlanConfig {
    /// Bytes by which the IP packet of a datagram is longer than the packet within: those headers, and the inner
    /// Ethernet header.
    #[must_use]
    pub const fn overhead(&self) -> u16 {
        let headers = if self.local.is_ipv4() { V4_HEADERS } else { V6_HEADERS };
        headers as u16 + FRAME_HEADER
    }

    /// Whether EVPN says which VTEPs there are, and which addresses are behind them.
    #[must_use]
    pub const fn is_evpn(&self) -> bool {
        matches!(self.control, VxlanControl::Evpn)
    }

    pub(super) fn keys(&mut self) -> Vec<Key<'_>> {
        let vni = KeyValue::Number(&mut self.vni, 0..=Vni::MAX.into());
        let router = KeyValue::Router(&mut self.router);
        let local = KeyValue::Address(&mut self.local);
        let remotes = KeyValue::Addresses(&mut self.remotes);
        vec![
            Key::required("vni", "give the number of the network, such as `vni = 100`", vni),
            Key::required(
                "router",
                "name the router that reaches the other VTEPs, such as `router = \"blue\"`",
                router,
            ),
            Key::required("local", "give an address of that router, such as `local = \"192.0.2.1\"`", local),
            Key::new("control", KeyValue::SparseWord(&mut self.control)),
            Key::new("remote", remotes),
            Key::new("udp_port", KeyValue::Number(&mut self.udp_port, 1..=u16::MAX.into())),
            Key::new("ttl", KeyValue::Number(&mut self.ttl, 1..=u8::MAX.into())),
            Key::new("dscp", KeyValue::OptionalNumber(&mut self.dscp, 0..=63)),
            Key::new("df", KeyValue::Flag(&mut self.df)),
            Key::new("neigh_suppress", KeyValue::Flag(&mut self.neigh_suppress)),
        ]
    }
}
