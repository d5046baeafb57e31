// SPDX-License-Identifier: Apache-2.0
//! A router with two interfaces between captures, and frames for it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use netvm_engine::{InterfaceCounts, PortId, PuntCounts, PuntReason, RouterView};
use netvm_model::{
    EngineConfig, Forward, Host, PortConfig, PortKind, RouterConfig, RouterId, RouterInterface,
};
use netvm_router::{Hop, NextHop, NextHopId, Update};
use netvm_wire::{FrameBuilder, IpNet, MacAddr, VlanId, checksum};

use crate::support::Rig;
use crate::support::pcap::{Scratch, finish};

pub const LIMIT: Duration = Duration::from_secs(60);

/// Ports, by number: those of the interfaces, and those to the kernel.
pub const LAN: u16 = 0;
pub const WAN: u16 = 1;
pub const LAN_PUNT: u16 = 2;
pub const WAN_PUNT: u16 = 3;

/// A host on the LAN, the router's interfaces, and the gateway behind its other one.
pub const HOST: MacAddr = MacAddr([2, 0, 0, 0, 1, 9]);
pub const IN: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa]);
pub const OUT: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xb]);
pub const GATEWAY: MacAddr = MacAddr([2, 0, 0, 0, 9, 1]);

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn v4(to: &str) -> FrameBuilder<'static> {
    FrameBuilder::new(HOST, IN).ip(ip("10.0.0.9"), ip(to)).ttl(64)
}

pub fn v6(to: &str) -> FrameBuilder<'static> {
    FrameBuilder::new(HOST, IN).ip(ip("2001:db8::9"), ip(to)).ttl(64)
}

/// A datagram that has a route, different from all others.
pub fn datagram(of_v6: bool, number: u32) -> Vec<u8> {
    let frame = if of_v6 { v6("2001:db8:1::2") } else { v4("192.0.2.2") };
    frame.udp(1000, 53).payload(&number.to_be_bytes()).to_vec().unwrap()
}

/// A frame with a tag, unless `vlan` is 0.
pub fn tagged(frame: &[u8], vlan: u16) -> Vec<u8> {
    if vlan == 0 {
        return frame.to_vec();
    }
    let [high, low] = vlan.to_be_bytes();
    [&frame[..12], &[0x81, 0, high, low], &frame[12..]].concat()
}

/// With the right header checksum, if it is IPv4.
pub fn seal(mut frame: Vec<u8>) -> Vec<u8> {
    if frame[14] >> 4 == 4 {
        let end = 14 + usize::from(frame[14] & 15) * 4;
        frame[24..26].fill(0);
        let sum = checksum::internet_checksum(&frame[14..end]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

pub fn via(interface: u16) -> NextHop {
    NextHop::Via(Hop { interface, mac: GATEWAY })
}

pub fn route(net: &str, to: u16) -> (IpNet, Option<NextHopId>) {
    (net.parse().unwrap(), Some(NextHopId(to)))
}

/// By the gateway, connected, to the router itself, and nowhere.
pub fn routes() -> Update {
    Update {
        next_hops: vec![(NextHopId(1), via(1)), (NextHopId(9), NextHop::Blackhole)],
        routes: vec![
            route("192.0.2.0/24", 1),
            route("2001:db8:1::/48", 1),
            route("224.0.0.0/3", 1),
            route("fe80::/10", 1),
            route("10.0.0.0/24", 0),
            route("10.0.0.1/32", 0),
            route("198.51.100.0/24", 9),
        ],
    }
}

/// A router whose interfaces have these VLANs on these ports; it gets all packets from the LAN.
pub fn routed(mut ports: Vec<PortConfig>, lan: u16, wan: u16) -> Host {
    let interface = |name: &str, port, vlan, mac, punt| RouterInterface {
        name: name.to_owned(),
        port: PortId(port),
        vlan: VlanId::new(vlan).ok(),
        mac,
        addresses: Vec::new(),
        punt_rate: 1_000_000,
        urpf: None,
        punt: PortId(punt),
        host_end: RouterInterface::host_end_of("blue", name),
        snat: None,
    };
    for port in [LAN, LAN_PUNT, WAN_PUNT] {
        ports[usize::from(port)].policy.forward = Forward::Router(RouterId(0));
    }
    let interfaces =
        vec![interface("lan", LAN, lan, IN, LAN_PUNT), interface("wan", WAN, wan, OUT, WAN_PUNT)];
    let routers = vec![RouterConfig {
        id: RouterId(0),
        name: "blue".to_owned(),
        interfaces,
        routes: Vec::new(),
        track: false,
        weight: 1,
        reserve: 0,
        nat64: None,
    }];
    Host { ports, routers, ..Host::default() }
}

/// The same between captures: the LAN receives `frames`. The WAN's MTU is 150 bytes.
pub fn host(scratch: &Scratch, frames: &[Vec<u8>], lan: u16, wan: u16) -> Host {
    let ports = [LAN, WAN, LAN_PUNT, WAN_PUNT];
    let frames = |port: u16| if port == LAN { frames } else { &[] };
    routed_with_mtu(ports.map(|port| scratch.port(port, frames(port))), lan, wan)
}

/// The same, but the kernel sends `frames` by the WAN, and the LAN receives nothing.
pub fn host_of_kernel(scratch: &Scratch, frames: &[Vec<u8>], lan: u16, wan: u16) -> Host {
    let ports = [LAN, WAN, LAN_PUNT, WAN_PUNT];
    let frames = |port: u16| if port == WAN_PUNT { frames } else { &[] };
    routed_with_mtu(ports.map(|port| scratch.port(port, frames(port))), lan, wan)
}

fn routed_with_mtu(mut ports: [PortConfig; 4], lan: u16, wan: u16) -> Host {
    ports[usize::from(WAN)].mtu = 150;
    routed(ports.into(), lan, wan)
}

/// Applies a host and tells its router the routes before anything comes in. Returns how many buffers were free then.
pub fn start_routed(rig: &mut Rig, host: &Host, update: &Update) -> Vec<u32> {
    let mut quiet = host.clone();
    for port in &mut quiet.ports {
        if let PortKind::Pcap { input, .. } = &mut port.kind {
            *input = None;
        }
    }
    rig.engine.apply(&quiet).unwrap();
    rig.engine.update_router(RouterId(0), update.clone()).unwrap();
    let routes = update.routes.iter().filter(|(net, _)| matches!(net, IpNet::V4(_))).count();
    let known = |engine: &netvm_engine::Engine| engine.routers()[0].routes.0 == routes;
    assert!(rig.until(LIMIT, known), "{}", rig.describe());
    let free = rig.free_buffers();
    rig.engine.apply(host).unwrap();
    free
}

/// The outcome of captures.
pub struct Played {
    /// Drops at all ports, by reason.
    pub drops: BTreeMap<&'static str, u64>,
    pub router: RouterView,
    /// By punt port and class.
    pub punts: BTreeMap<PortId, [PuntCounts; PuntReason::COUNT]>,
    /// What passed the interfaces, by punt port.
    pub interfaces: BTreeMap<PortId, InterfaceCounts>,
}

impl Played {
    pub fn of(host: &Host, update: &Update) -> Self {
        let mut rig = Rig::new(&EngineConfig::default());
        let free = start_routed(&mut rig, host, update);
        finish(&mut rig);
        let (router, punts) = (rig.engine.routers()[0], rig.engine.punt_counts());
        let ports = rig.engine.ports();
        let interfaces = ports.iter().map(|port| (port.id, port.router_interface)).collect();
        let mut drops = BTreeMap::new();
        for (reason, count) in ports.iter().flat_map(|port| port.drops.clone()) {
            *drops.entry(reason.name()).or_insert(0) += count;
        }
        // Closing the ports gives back what they hold.
        rig.engine
            .apply(&Host { ports: Vec::new(), routers: Vec::new(), rules: Vec::new(), ..host.clone() })
            .unwrap();
        let home = |rig: &Rig| rig.free_buffers().iter().zip(&free).all(|(now, before)| now >= before);
        assert!(home(&rig), "{:?} of {free:?} buffers are back", rig.free_buffers());
        Self { drops, router, punts, interfaces }
    }
}
