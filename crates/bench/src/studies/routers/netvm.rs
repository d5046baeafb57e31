// SPDX-License-Identifier: Apache-2.0
//! An engine with the routers.

use netvm_model::{
    Action, Actions, Forward, Host, Idle, Match, PUNT_RATE, PortId, PortKind, RouterConfig, RouterId,
    RouterInterface, Rule, RuleId, RuleParts,
};
use netvm_policy::{Masked, mac_bits};
use netvm_router::{Hop, NextHop, NextHopId, Update};
use netvm_wire::{IpNet, Ipv4Net, VlanId};

use super::{InterfacePairs, OUT, SINK, destination, mac};
use crate::error::BenchError;
use crate::setup::layout::Layout;
use crate::setup::rig::Rig;
use crate::setup::routes::RouteTable;

/// Starts the engine and loads the routers' routes.
pub(super) fn start(
    near: &[String],
    pairs: InterfacePairs,
    table: Option<&RouteTable>,
    core: u32,
) -> Result<Rig, BenchError> {
    let mut rig = Rig::start(&host(near, pairs, core), &[])?;
    for of_router in pairs.by_router() {
        let Some(first) = of_router.first() else { continue };
        // The second interface of each pair, by its index in the router.
        let via = |n: u16| (NextHopId(1 + n), NextHop::Via(Hop { interface: 2 * n + 1, mac: SINK }));
        let count = of_router.len() as u16;
        let own = (0..).zip(&of_router).map(|(n, pair)| {
            let network = IpNet::from(Ipv4Net::host(destination(*pair).into()));
            (network, Some(NextHopId(1 + n)))
        });
        let nets = table.into_iter().flat_map(|table| table.routes.iter().map(|(net, _)| *net));
        let more = nets.zip((0..count).cycle()).map(|(net, n)| (net, Some(NextHopId(1 + n))));
        let update = Update { next_hops: (0..count).map(via).collect(), routes: own.chain(more).collect() };
        rig.load_routes_of(RouterId(pairs.router_of(*first).into()), &update)?;
    }
    Ok(rig)
}

fn host(near: &[String], pairs: InterfacePairs, core: u32) -> Host {
    let mut layout = Layout::new(core, Idle::Adaptive);
    for (near, out) in near.iter().zip(OUT) {
        for interface in [near.as_str(), out] {
            layout.port(interface, PortKind::AfXdp { interface: interface.to_owned(), generic: false }, 1500);
        }
    }
    // Sinks replace the punt ports.
    for n in pairs.all() {
        for side in ["in", "out"] {
            layout.port(&format!("kernel-{side}{n}"), PortKind::Sink, 1500);
        }
    }
    let mut host = layout.build();
    let near = |pair: u8| 2 * pairs.host_pair_of(pair) as u16;
    for of_router in pairs.by_router() {
        let Some(first) = of_router.first() else { continue };
        let number = pairs.router_of(*first);
        let (id, name) = (RouterId(number.into()), format!("study{number}"));
        let interface = |pair: u8, side: u8| {
            let interface = format!("{}{pair}", ["in", "out"][usize::from(side)]);
            RouterInterface {
                port: PortId(near(pair) + u16::from(side)),
                vlan: pairs.vlan_of(pair).and_then(|vlan| VlanId::new(vlan).ok()),
                mac: mac(pair, side),
                addresses: Vec::new(),
                punt_rate: PUNT_RATE,
                urpf: None,
                punt: PortId(2 * (pairs.host_pairs as u16 + u16::from(pair)) + u16::from(side)),
                host_end: RouterInterface::host_end_of(&name, &interface),
                name: interface,
                snat: None,
            }
        };
        let interfaces = of_router.iter().flat_map(|pair| [0, 1].map(|side| interface(*pair, side)));
        let interfaces = interfaces.collect();
        if pairs.are_of_one {
            host.ports[usize::from(near(*first))].policy.forward = Forward::Router(id);
        } else {
            let to_router = Masked::<u64>::new(mac_bits(mac(*first, 0)), (1 << 48) - 1);
            let from = vec![PortId(near(*first))];
            host.rules.push(Rule::from(RuleParts {
                id: RuleId(number.into()),
                name: name.clone(),
                matches: Match { from, destination_mac: vec![to_router], ..Match::default() },
                actions: Actions { terminal: Some(Action::Router(id)), ..Actions::default() },
            }));
        }
        // Routers with their own host interfaces get equal shares.
        let weight = if pairs.host_pairs > 1 { 2 } else { 1 };
        host.routers.push(RouterConfig {
            id,
            name,
            interfaces,
            routes: Vec::new(),
            track: false,
            weight,
            reserve: 0,
            nat64: None,
        });
    }
    host
}
