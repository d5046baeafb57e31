// SPDX-License-Identifier: Apache-2.0
//! Where packets pass: configurations of netvm, and the VXLAN device in the far namespace.

use std::net::Ipv4Addr;

use netvm_model::{
    ContainerConfig, Forward, Host, PUNT_RATE, PortId, PortKind, RouterConfig, RouterId, RouterInterface,
    VlanMode, VxlanConfig,
};
use netvm_router::{Hop, NextHop, NextHopId, Update};
use netvm_wire::{Ipv4Net, MacAddr, VlanId};

use super::super::container::hosts::{End, Hosts, PORTS, run};
use crate::error::BenchError;
use crate::measure::probe;
use crate::setup::layout::Layout;

/// The network.
pub const VNI: u32 = 100;
/// The VTEPs.
pub const NEAR_VTEP: &str = "192.0.2.1";
pub const NEAR_VTEP_NET: &str = "192.0.2.1/24";
pub const FAR_VTEP: &str = "192.0.2.2";
/// Longest packet between the VTEPs, so that those within may be 1500 bytes long.
pub const UNDERLAY_MTU: u16 = 1550;
/// The MAC addresses of the VTEPs' routers, and of the far namespace's interface.
const ROUTER_MACS: [MacAddr; 2] = [MacAddr([2, 0, 0, 0, 9, 1]), MacAddr([2, 0, 0, 0, 9, 2])];
const FAR_MAC: MacAddr = ROUTER_MACS[1];

/// The port to the far namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// Its kind is AF_XDP, else a packet socket.
    pub is_xdp: bool,
    /// It carries a tunnel.
    pub has_tunnel: bool,
}

/// What packets pass in netvm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// L2 switching between two containers.
    Switch,
    /// Two domains of L2 switching with a patch between them.
    Patch,
    /// Two domains with a tunnel between them.
    Tunnel,
    /// L2 switching, and a port to the far namespace.
    Wire(Wire),
}

impl Path {
    /// All.
    pub const ALL: [Self; 7] = [
        Self::Switch,
        Self::Patch,
        Self::Tunnel,
        Self::Wire(Wire { is_xdp: false, has_tunnel: false }),
        Self::Wire(Wire { is_xdp: false, has_tunnel: true }),
        Self::Wire(Wire { is_xdp: true, has_tunnel: false }),
        Self::Wire(Wire { is_xdp: true, has_tunnel: true }),
    ];

    /// The name of its case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Switch => "switch",
            Self::Patch => "patch",
            Self::Tunnel => "vxlan",
            Self::Wire(Wire { is_xdp: false, has_tunnel: false }) => "wire-af-packet",
            Self::Wire(Wire { is_xdp: false, has_tunnel: true }) => "wire-af-packet-vxlan",
            Self::Wire(Wire { is_xdp: true, has_tunnel: false }) => "wire-af-xdp",
            Self::Wire(Wire { is_xdp: true, has_tunnel: true }) => "wire-af-xdp-vxlan",
        }
    }

    /// The wire that it has.
    pub const fn wire(self) -> Option<Wire> {
        match self {
            Self::Wire(wire) => Some(wire),
            Self::Switch | Self::Patch | Self::Tunnel => None,
        }
    }
}

/// Moves the address of the far namespace to a VXLAN device on its interface.
///
/// # Errors
/// A command failed.
pub fn add_tunnel(hosts: &Hosts) -> Result<(), BenchError> {
    let End { namespace, port, address } = &hosts.all()[1];
    run(&format!("link set {port} mtu {UNDERLAY_MTU}"))?;
    for words in [
        format!("link set eth0 address {FAR_MAC} mtu {UNDERLAY_MTU}"),
        format!("address del {address} dev eth0"),
        format!("address add {FAR_VTEP}/24 dev eth0"),
        format!(
            "link add vx mtu 1500 type vxlan id {VNI} local {FAR_VTEP} remote {NEAR_VTEP} dstport 4789 dev eth0"
        ),
        format!("address add {address} dev vx"),
        "link set vx up".to_owned(),
    ] {
        run(&format!("-n {namespace} {words}"))?;
    }
    Ok(())
}

/// Tells the far namespace the address of netvm's router, which has no kernel that would resolve addresses.
///
/// # Errors
/// A command failed.
pub fn add_static_neighbours(hosts: &Hosts) -> Result<(), BenchError> {
    run(&format!(
        "-n {} neighbour replace {NEAR_VTEP} lladdr {} dev eth0",
        hosts.all()[1].namespace,
        ROUTER_MACS[0]
    ))
}

/// Has namespaces finish their checksums, and cut their segments: Open vSwitch without `userspace-tso-enable` sends on
/// what it gets, and with it, it does not know segments within a tunnel of others.
///
/// # Errors
/// A command failed.
pub fn finish_checksums(ends: &[End]) -> Result<(), BenchError> {
    ends.iter().try_for_each(|end| {
        // Standard output is for the report.
        let script = "ethtool -K eth0 tx off >/dev/null";
        let words = ["netns", "exec", &end.namespace, "sh", "-c", script];
        probe::ip(&words)
    })
}

/// Routes of a router.
pub type Routes = Vec<(RouterId, Update)>;

/// netvm's configuration, and the routes of its routers.
pub fn host(mut layout: Layout, hosts: &Hosts, path: Path) -> (Host, Routes) {
    let [near, far] = hosts.all();
    let container = |end: &End| {
        PortKind::Container(ContainerConfig {
            namespace: end.namespace.clone(),
            addresses: vec![end.address],
            ..ContainerConfig::default()
        })
    };
    let near = layout.port(&near.port, container(near), 1500);
    match path {
        Path::Switch => {
            let far = layout.port(&far.port, container(far), 1500);
            let mut host = layout.build();
            [near, far].iter().for_each(|port| switch(&mut host, *port, None));
            (host, Routes::new())
        }
        Path::Patch | Path::Tunnel => {
            let far = layout.port(&far.port, container(far), 1500);
            if path == Path::Tunnel {
                tunnel_between(layout, [near, far])
            } else {
                let patches = patch(&mut layout, 1500);
                let mut host = layout.build();
                for (n, ports) in [(1, [near, patches[0]]), (2, [far, patches[1]])] {
                    ports.iter().for_each(|port| switch(&mut host, *port, Some(n)));
                }
                (host, Routes::new())
            }
        }
        Path::Wire(Wire { is_xdp, has_tunnel }) => {
            let interface = PORTS[1].to_owned();
            let kind = if is_xdp {
                PortKind::AfXdp { interface, generic: false }
            } else {
                PortKind::AfPacket { interface }
            };
            let mtu = if has_tunnel { UNDERLAY_MTU } else { 1500 };
            let wire = layout.port(PORTS[1], kind, mtu);
            if has_tunnel {
                let vtep = Vtep::new(&mut layout, 0, wire);
                let mut host = layout.build();
                [near, vtep.port].iter().for_each(|port| switch(&mut host, *port, None));
                let routes = vec![vtep.connect(&mut host)];
                (host, routes)
            } else {
                let mut host = layout.build();
                [near, wire].iter().for_each(|port| switch(&mut host, *port, None));
                (host, Routes::new())
            }
        }
    }
}

/// Two domains of L2 switching, each with one of these ports, joined by a tunnel: the VLANs 1 and 2. Ports of the near
/// VTEP have the numbers after the existing ones: the patch, then the VTEP.
pub fn tunnel_between(mut layout: Layout, ends: [PortId; 2]) -> (Host, Routes) {
    let patches = patch(&mut layout, UNDERLAY_MTU);
    let vteps = [0, 1].map(|n| Vtep::new(&mut layout, n, patches[n]));
    let mut host = layout.build();
    let mut routes = Routes::new();
    for ((vlan, end), vtep) in (1..).zip(ends).zip(vteps) {
        [end, vtep.port].iter().for_each(|port| switch(&mut host, *port, Some(vlan)));
        routes.push(vtep.connect(&mut host));
    }
    (host, routes)
}

/// Has L2 switching forward what a port receives, in a VLAN.
pub fn switch(host: &mut Host, port: PortId, vlan: Option<u16>) {
    let policy = &mut host.ports[port.index()].policy;
    policy.forward = Forward::Normal;
    if let Some(vlan) = vlan.and_then(|vlan| VlanId::new(vlan).ok()) {
        policy.vlan = VlanMode::Access(vlan);
    }
}

fn patch(layout: &mut Layout, mtu: u16) -> [PortId; 2] {
    let near = layout.port("patch1", PortKind::Patch { peer: PortId::default() }, mtu);
    let far = layout.port("patch2", PortKind::Patch { peer: near }, mtu);
    layout.set_kind(near, PortKind::Patch { peer: far });
    [near, far]
}

/// A VTEP: its port, and a router with an interface on the port that leads to the other one.
struct Vtep {
    side: usize,
    port: PortId,
    underlay: PortId,
    punt: PortId,
}

impl Vtep {
    /// The VTEP of a side, 0 or 1.
    fn new(layout: &mut Layout, side: usize, underlay: PortId) -> Self {
        let [local, remote] = Self::addresses(side);
        let config = VxlanConfig {
            vni: VNI,
            router: RouterId(side as u16),
            local: local.into(),
            remotes: vec![remote.into()],
            ..VxlanConfig::default()
        };
        let port = layout.port(&format!("overlay{side}"), PortKind::Vxlan(config), 1500);
        let punt = layout.port(&format!("kernel{side}"), PortKind::Sink, UNDERLAY_MTU);
        Self { side, port, underlay, punt }
    }

    /// Its address, and that of the other one.
    fn addresses(side: usize) -> [Ipv4Addr; 2] {
        let [near, far] = [[192, 0, 2, 1], [192, 0, 2, 2]].map(Ipv4Addr::from);
        if side == 0 { [near, far] } else { [far, near] }
    }

    /// Adds its router, and returns the routes.
    fn connect(&self, host: &mut Host) -> (RouterId, Update) {
        let id = RouterId(self.side as u16);
        let name = format!("bench{}", self.side);
        let interface = RouterInterface {
            name: "wan".to_owned(),
            port: self.underlay,
            vlan: None,
            mac: ROUTER_MACS[self.side],
            addresses: Vec::new(),
            punt_rate: PUNT_RATE,
            urpf: None,
            punt: self.punt,
            host_end: RouterInterface::host_end_of(&name, "wan"),
            snat: None,
        };
        host.routers.push(RouterConfig {
            id,
            name,
            interfaces: vec![interface],
            routes: Vec::new(),
            track: false,
            weight: 1,
            reserve: 0,
            nat64: None,
        });
        host.ports[self.underlay.index()].policy.forward = Forward::Router(id);
        let [local, remote] = Self::addresses(self.side).map(|address| Ipv4Net::host(address).into());
        let via = Hop { interface: 0, mac: ROUTER_MACS[1 - self.side] };
        let update = Update {
            next_hops: vec![(NextHopId(1), NextHop::Via(via))],
            routes: vec![(local, Some(NextHopId::LOCAL)), (remote, Some(NextHopId(1)))],
        };
        (id, update)
    }
}
