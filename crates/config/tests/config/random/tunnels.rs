// SPDX-License-Identifier: Apache-2.0
//! Random ports of VXLAN networks, which need a router.

use std::net::IpAddr;

use netvm_model::{FRAME_HEADER, Host, PortConfig, PortId, PortKind, RouterId, VxlanConfig, VxlanControl};
use proptest::prelude::*;
use proptest::sample::subsequence;

/// Bytes before a packet: IPv6, UDP, VXLAN, the inner Ethernet header and a tag.
const HEADROOM: u16 = 40 + 8 + 8 + FRAME_HEADER + 4;
/// Shortest MTU of a port.
const MIN_MTU: u16 = 68;

/// With the number of its router among those of the host, which are not there yet.
pub fn vxlan() -> impl Strategy<Value = PortKind> {
    let last = subsequence(vec![2u8, 3, 4, 5], 1..=3).prop_shuffle();
    let numbers = (0u32..=0x00ff_ffff, 1u32..=65_535, 1u32..=255, prop::option::of(0u32..=63));
    (any::<bool>(), last, numbers, any::<[bool; 2]>(), 0u16..3).prop_map(
        |(is_v4, last, (vni, udp_port, ttl, dscp), [df, neigh_suppress], router)| {
            let address = |last: u8| -> IpAddr {
                let text = if is_v4 { format!("10.0.0.{last}") } else { format!("2001:db8::{last}") };
                text.parse().unwrap()
            };
            let (local, remotes) = (address(1), last.into_iter().map(address).collect());
            let router = RouterId(router);
            let control = VxlanControl::Static;
            PortKind::Vxlan(VxlanConfig {
                vni,
                router,
                local,
                control,
                remotes,
                udp_port,
                ttl,
                dscp,
                df,
                neigh_suppress,
            })
        },
    )
}

/// Before the host has its routers: without any, there are no tunnels; else buffers have room for outer headers.
pub fn make_room(host: &mut Host, routers: usize) {
    let mut has_tunnels = false;
    for port in &mut host.ports {
        if matches!(port.kind, PortKind::Vxlan(_)) {
            has_tunnels |= routers > 0;
            if routers == 0 {
                port.kind = PortKind::Sink;
            }
        }
    }
    if has_tunnels {
        host.groups.iter_mut().for_each(|group| group.headroom = group.headroom.max(HEADROOM));
    }
}

/// Gives tunnels a router of the host whose interfaces take their packets, and each a network of its own.
pub fn fill(host: &mut Host) {
    for port in &mut host.ports {
        if let PortKind::Vxlan(config) = &mut port.kind {
            config.router = host.routers[config.router.index() % host.routers.len()].id;
            config.vni = config.vni & 0x00ff_ff00 | u32::from(port.id.0);
        }
    }
    // One that is an interface of a router limits others.
    while let Some((port, most)) = host.ports.iter().find_map(|port| too_long(host, port)) {
        let port = &mut host.ports[port.index()];
        port.mtu = most.max(MIN_MTU);
        if most < MIN_MTU {
            port.kind = PortKind::Sink;
        }
        let (id, mtu) = (port.id, port.mtu);
        let interfaces = host.routers.iter().flat_map(|router| &router.interfaces);
        let punts = interfaces.filter(|interface| interface.port == id).map(|interface| interface.punt);
        for punt in punts.collect::<Vec<_>>() {
            host.ports[punt.index()].mtu = mtu;
        }
    }
}

/// A tunnel whose packets are too long for its router, and the longest that are not.
fn too_long(host: &Host, port: &PortConfig) -> Option<(PortId, u16)> {
    let PortKind::Vxlan(config) = &port.kind else { return None };
    let interfaces = &host.router(config.router)?.interfaces;
    let longest = interfaces.iter().map(|interface| host.ports[interface.port.index()].mtu).max()?;
    let most = longest.saturating_sub(config.overhead());
    (port.mtu > most).then_some((port.id, most))
}
