// SPDX-License-Identifier: Apache-2.0
//! A router with as many interfaces as a host has room for: 512, each with a port of its own and a punt port.

use super::plan::{self, *};
use crate::support::pcap::{Scratch, finish};
use crate::support::{Rig, port};
use netvm_engine::PortId;
use netvm_model::{EngineConfig, Forward, Host, MAX_PORTS, PortConfig, PortKind, RouterId, RouterInterface};
use netvm_router::{Hop, NextHop, NextHopId, Update};
use netvm_wire::{MacAddr, parse};

/// Interfaces. Number `n` is on port `2n`, its punt port is the next one.
const INTERFACES: u16 = (MAX_PORTS / 2) as u16;
/// Where packets come in: port 300.
const IN: u16 = 150;
/// Where they leave into captures: ports 700 and 1022.
const OUT: [u16; 2] = [350, INTERFACES - 1];

fn mac(interface: u16) -> MacAddr {
    let [high, low] = interface.to_be_bytes();
    MacAddr([2, 0, 0, 5, high, low])
}

fn neighbour(interface: u16) -> MacAddr {
    let [high, low] = interface.to_be_bytes();
    MacAddr([2, 0, 0, 6, high, low])
}

/// An address behind an interface.
fn behind(interface: u16) -> String {
    format!("10.{}.{}.9", 100 + interface / 256, interface % 256)
}

fn to(address: &str) -> Vec<u8> {
    let mut frame = v4(address).udp(1000, 53).payload(b"many").to_vec().unwrap();
    frame[..6].copy_from_slice(&mac(IN).0);
    frame
}

/// The router. What comes in by any port goes to it.
fn host(ports: Vec<PortConfig>) -> Host {
    let mut host = routed(ports, 0, 0);
    let like = host.routers[0].interfaces[0].clone();
    let interface = |n: u16| RouterInterface {
        name: format!("if{n}"),
        port: PortId(2 * n),
        punt: PortId(2 * n + 1),
        mac: mac(n),
        host_end: RouterInterface::host_end_of("blue", &format!("if{n}")),
        ..like.clone()
    };
    host.routers[0].interfaces = (0..INTERFACES).map(interface).collect();
    for port in &mut host.ports {
        port.policy.forward = Forward::Router(RouterId(0));
    }
    host
}

/// A route by each interface.
fn by_each() -> Update {
    let id = |n: u16| NextHopId(1 + n);
    let via = |n: u16| (id(n), NextHop::Via(Hop { interface: n, mac: neighbour(n) }));
    let route = |n: u16| plan::route(&format!("{}/32", behind(n)), id(n).0);
    Update { next_hops: (0..INTERFACES).map(via).collect(), routes: (0..INTERFACES).map(route).collect() }
}

#[test]
fn a_router_has_512_interfaces_on_as_many_ports() {
    let others = || (0..INTERFACES).filter(|n| *n != IN);
    // Several bursts: quiet ports are not polled in each turn.
    let frames: Vec<Vec<u8>> = (0..4).flat_map(|_| others()).map(|n| to(&behind(n))).collect();
    let unknown: Vec<Vec<u8>> = vec![to("203.0.113.1"); 3];
    let from_kernel: Vec<Vec<u8>> = (0..5).map(|n| datagram(false, n)).collect();
    let scratch = Scratch::new();
    let quiet = |number: u16| port(number, &format!("p{number}"), PortKind::Sink);
    let mut ports: Vec<PortConfig> = (0..2 * INTERFACES).map(quiet).collect();
    for (number, frames) in [
        (2 * IN, [&frames[..], &unknown[..]].concat()),
        (2 * IN + 1, Vec::new()),
        (2 * OUT[0], Vec::new()),
        (2 * OUT[1], Vec::new()),
        (2 * OUT[1] + 1, from_kernel.clone()),
    ] {
        ports[usize::from(number)] = scratch.port(number, &frames);
    }
    let host = host(ports);
    let mut rig = Rig::new(&EngineConfig::default());
    start_routed(&mut rig, &host, &by_each());
    finish(&mut rig);
    let view = rig.engine.ports();
    assert_eq!(view.len(), MAX_PORTS);
    let router = rig.engine.routers()[0];
    let expected = (frames.len() as u64, unknown.len() as u64, from_kernel.len() as u64);
    assert_eq!((router.forwarded, router.punted, router.from_kernel), expected, "{:?}", rig.notices);
    for n in others() {
        let sent = view[usize::from(2 * n)].tx_packets;
        let kernels = if n == OUT[1] { from_kernel.len() as u64 } else { 0 };
        assert_eq!(sent, 4 + kernels, "port {}", 2 * n);
        let of_interface = view[usize::from(2 * n + 1)].router_interface;
        assert_eq!((of_interface.tx_packets, of_interface.rx_packets), (4 + kernels, 0), "interface {n}");
    }
    assert!(view.iter().all(|port| port.drops.is_empty()));
    rig.engine.apply(&Host { ports: Vec::new(), routers: Vec::new(), ..Host::default() }).unwrap();
    assert_eq!(scratch.sent(2 * IN + 1), unknown, "the kernel gets what has no route");
    for (n, kernels) in [(OUT[0], &[][..]), (OUT[1], &from_kernel[..])] {
        let (own, forwarded): (Vec<_>, Vec<_>) =
            scratch.sent(2 * n).into_iter().partition(|frame| kernels.contains(frame));
        assert_eq!(own, kernels);
        for frame in forwarded {
            let key = *parse(&frame).unwrap().key();
            assert_eq!((key.source_mac, key.destination_mac), (mac(n), neighbour(n)));
            assert_eq!(key.destination.to_string(), behind(n));
        }
    }
}
