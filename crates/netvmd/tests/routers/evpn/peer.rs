// SPDX-License-Identifier: Apache-2.0
//! A server without netvm: the kernel's bridge and `vxlan` device with FRR.

use super::super::common::hosts::{Host, run};
use super::super::frr::Daemons;
use super::{bgp, prefix_of};

pub struct Peer {
    /// The server; its `eth0` leads to netvm's port.
    pub host: Host,
    vtep: &'static str,
}

impl Peer {
    /// A server whose VTEP has this address, with VNI 100.
    pub fn new(mark: &str, vtep: &'static str) -> Self {
        let host = Host::new(mark, &[&format!("{vtep}/{}", prefix_of(vtep))], &[]);
        let peer = Self { host, vtep };
        peer.add_network(100);
        peer
    }

    /// Adds a network, with a bridge.
    pub fn add_network(&self, vni: u32) {
        let Self { host, vtep } = self;
        host.ip(&format!("link add br{vni} type bridge"));
        host.ip(&format!("link set br{vni} addrgenmode none up"));
        host.ip(&format!("link add vxlan{vni} type vxlan id {vni} local {vtep} dstport 4789 nolearning"));
        host.ip(&format!("link set vxlan{vni} master br{vni} addrgenmode none"));
        host.ip(&format!("link set vxlan{vni} type bridge_slave learning off neigh_suppress on"));
        host.ip(&format!("link set vxlan{vni} up"));
    }

    /// Connects a host with this address to the bridge of VNI 100.
    pub fn plug(&self, guest: &Host, address: &str) {
        let (here, there) = (self.host.namespace(), guest.namespace());
        let name = format!("p{}", &there[there.len() - 6..]);
        run(&format!("ip link add {name} netns {here} type veth peer name eth0 netns {there}"));
        self.host.ip(&format!("link set {name} master br100 up"));
        guest.ip("link set lo up");
        guest.ip("link set eth0 mtu 1450 up");
        guest.ip(&format!("address add {address} dev eth0"));
    }

    /// FRR with these BGP peers.
    pub fn start_frr(&self, peers: &[&str]) -> Daemons {
        Daemons::frr(self.host.namespace(), &[("bgpd", bgp(self.vtep, peers))])
    }
}
