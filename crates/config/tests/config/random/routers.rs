// SPDX-License-Identifier: Apache-2.0
//! Random virtual routers.

use netvm_model::{
    Action, Forward, Host, Output, PortConfig, PortId, PortKind, PortPolicy, RouterConfig, RouterId,
    RouterInterface, Urpf,
};
use netvm_wire::{MacAddr, VlanId};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// Port, a quarter of the VLAN, whether it has addresses, punt rate, uRPF.
type RawInterface = (Index, u16, bool, u32, Option<Urpf>);

/// Suffix of the name, interfaces, whether it tracks connections, weight.
type RawRouter = (String, Vec<RawInterface>, bool, u16);

pub fn router() -> impl Strategy<Value = RawRouter> {
    let urpf = prop::option::of(prop::sample::select(vec![Urpf::Strict, Urpf::Loose]));
    let interface = (any::<Index>(), 0u16..=1000, any::<bool>(), 1u32..=100_000_000, urpf);
    ("[A-Za-z0-9_.-]{0,12}", vec(interface, 1..4), any::<bool>(), 1u16..=1000)
}

/// Has punt ports receive into the memory of their interface's port, which depends on all else.
pub fn place_punts(host: &mut Host) {
    let interfaces: Vec<(PortId, PortId)> =
        host.routers.iter().flat_map(|router| &router.interfaces).map(|one| (one.punt, one.port)).collect();
    for (punt, port) in interfaces {
        let group = host.port(port).and_then(|port| host.landing_group(port));
        host.ports[punt.index()].group = group;
    }
}

/// Gives the host routers, and has them take the place of switching here and there.
pub fn fill(host: &mut Host, routers: Vec<RawRouter>) {
    let ports = host.ports.len();
    for (n, (suffix, interfaces, track, weight)) in (0u8..).zip(routers) {
        let id = RouterId(n.into());
        let name = format!("r{n}{suffix}");
        let mut router = RouterConfig {
            id,
            name,
            interfaces: Vec::new(),
            routes: Vec::new(),
            track,
            weight,
            reserve: 0,
            nat64: None,
        };
        for (place, (port, vlan, addressed, punt_rate, urpf)) in (0u8..).zip(interfaces) {
            let port = host.ports[port.index(ports)].clone();
            let addresses = ["10.0.0.1/24", "2001:db8::1/64"].map(|address| address.parse().unwrap());
            let name = format!("i{place}");
            let punt = PortId(host.ports.len() as u16);
            let host_end = RouterInterface::host_end_of(&router.name, &name);
            let kind = PortKind::AfXdp { interface: host_end.clone(), generic: false };
            host.ports.push(PortConfig {
                mtu: port.mtu,
                policy: PortPolicy {
                    forward: Forward::Router(id),
                    weight: port.policy.weight,
                    ..PortPolicy::default()
                },
                ..PortConfig::new(punt, format!("{}.{name}", router.name), kind)
            });
            router.interfaces.push(RouterInterface {
                name,
                port: port.id,
                vlan: VlanId::new(vlan * 4 + u16::from(place)).ok(),
                mac: MacAddr([2, 0, 0, 0, n, place]),
                addresses: if addressed { addresses.into() } else { Vec::new() },
                punt_rate,
                urpf,
                punt,
                host_end,
                snat: None,
            });
        }
        host.routers.push(router);
    }
    share(host);
    let Some(first) = host.routers.first().map(|router| router.id) else { return };
    for rule in host.rules.iter_mut().filter(|rule| rule.actions.terminal == Some(Action::Normal)) {
        rule.actions.terminal = Some(Action::Router(first));
    }
    for port in host.ports.iter_mut().filter(|port| port.policy.forward == Forward::Normal) {
        port.policy.forward = Forward::Router(first);
    }
    for chain in host.chains.iter_mut().filter(|chain| chain.output == Output::Normal) {
        chain.output = Output::Router(first);
    }
}

/// Leaves shares to routers that have no port in common with another, and lets them reserve what their ports do.
fn share(host: &mut Host) {
    let ports: Vec<Vec<PortId>> = host.routers.iter().map(|router| router.ports().collect()).collect();
    for (n, router) in host.routers.iter_mut().enumerate() {
        let is_elsewhere =
            |port: &PortId| ports.iter().enumerate().any(|(other, ports)| other != n && ports.contains(port));
        if ports[n].iter().any(is_elsewhere) {
            router.weight = 1;
            continue;
        }
        let mine = host.ports.iter().filter(|port| ports[n].contains(&port.id));
        router.reserve = mine.map(|port| port.policy.reserve).sum();
    }
}
