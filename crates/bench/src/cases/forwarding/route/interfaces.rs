// SPDX-License-Identifier: Apache-2.0
//! Packets through a router of an engine with many interfaces.
//!
//! ```text
//!   net_null + traffic -> worker: router, a route by each of N - 1 interfaces, each with a VLAN -> a null port
//! ```
//!
//! Each interface has a punt port, which receives nothing.

use netvm_model::{
    Forward, Host, Idle, PUNT_RATE, PortId, PortKind, RouterConfig, RouterId, RouterInterface,
};
use netvm_router::{Hop, NextHop, NextHopId, Update};
use netvm_wire::{IpNet, Ipv4Net, MacAddr, VlanId};

use super::engine::{BUFFERS, FRAME, ROUTER_MAC, RoutedTraffic, measure_host};
use crate::measure::harness::{Measured, Plan};
use crate::setup::layout::Layout;

/// Measures a router with this number of interfaces, 2 to 512, in packets per second of the worker's CPU time.
///
/// # Errors
/// [`BenchError`](crate::error::BenchError) if packets were punted or dropped.
pub fn run(name: &str, core: u32, interfaces: u16, plan: &Plan) -> Measured {
    let next_hops = interfaces - 1;
    let via = |n: u16| {
        let hop = Hop { interface: 1 + n, mac: MacAddr([2, 0, 0, 3, (n >> 8) as u8, n as u8]) };
        (NextHopId(1 + n), NextHop::Via(hop))
    };
    let address = |n: u16| [20, (n >> 8) as u8, n as u8, 1];
    let route = |n: u16| (IpNet::from(Ipv4Net::host(address(n).into())), Some(NextHopId(1 + n)));
    let update =
        Update { next_hops: (0..next_hops).map(via).collect(), routes: (0..next_hops).map(route).collect() };
    // Pseudo-random order (Fibonacci hashing: Knuth volume 3, section 6.4). The traffic's destinations must have a
    // static lifetime.
    let to = |n: u32| {
        let next_hop = (u64::from(n.wrapping_mul(0x9e37_79b1)) * u64::from(next_hops)) >> 32;
        u32::from_ne_bytes(address(next_hop as u16))
    };
    let destinations: &'static [u32] = (0..1 << 16).map(to).collect::<Vec<_>>().leak();
    let traffic = RoutedTraffic::new(&update, destinations);
    measure_host(name, &host(core, interfaces), traffic, plan)
}

fn host(core: u32, interfaces: u16) -> Host {
    let mut layout = Layout::new(core, Idle::Poll);
    let group = layout.group("route", BUFFERS, 2048);
    layout.port("in", PortKind::Null { size: FRAME }, 1500);
    layout.port("out", PortKind::Sink, 1500);
    for n in 0..interfaces {
        layout.port(&format!("kernel{n}"), PortKind::Sink, 1500);
    }
    let mut host = layout.build();
    for port in &mut host.ports {
        port.group = Some(group);
    }
    host.ports[0].policy.forward = Forward::Router(RouterId(0));
    let interface = |n: u16| {
        let name = format!("if{n}");
        RouterInterface {
            port: PortId(n.min(1)),
            vlan: VlanId::new(n).ok(),
            mac: if n == 0 { ROUTER_MAC } else { MacAddr([2, 0, 0, 1, (n >> 8) as u8, n as u8]) },
            addresses: Vec::new(),
            punt_rate: PUNT_RATE,
            urpf: None,
            punt: PortId(2 + n),
            host_end: RouterInterface::host_end_of("bench", &name),
            name,
            snat: None,
        }
    };
    host.routers = vec![RouterConfig {
        id: RouterId(0),
        name: "bench".to_owned(),
        interfaces: (0..interfaces).map(interface).collect(),
        routes: Vec::new(),
        track: false,
        weight: 1,
        reserve: 0,
        nat64: None,
    }];
    host
}
