// SPDX-License-Identifier: Apache-2.0
//! An engine with the routers.

use netvm_model::{
    Action, Actions, Forward, Host, Idle, Match, PUNT_RATE, PortId, PortKind, RouterConfig, RouterId,
    RouterInterface, Rule, RuleId, RuleParts,
};
use netvm_policy::{Masked, mac_bits};
use netvm_router::{Hop, NextHop, NextHopId, Update};
use netvm_wire::{IpNet, Ipv4Net, VlanId};

use super::pairs::{End, InterfacePairs, Side};
use super::traffic::Halves;
use super::{HostInterfaces, SINK};
use crate::error::BenchError;
use crate::setup::layout::Layout;
use crate::setup::rig::Rig;

/// Starts the engine and loads the routers' routes.
pub(super) fn start(
    interfaces: &HostInterfaces,
    pairs: InterfacePairs,
    table: Option<&Halves>,
    cores: &[u32],
) -> Result<Rig, BenchError> {
    let mut rig = Rig::start(&host(interfaces, pairs, cores), &[])?;
    for of_router in pairs.by_router() {
        let Some(first) = of_router.first() else { continue };
        let update = routes(&pairs.ends(&of_router), table);
        rig.load_routes_of(RouterId(pairs.router_of(*first).into()), &update)?;
    }
    Ok(rig)
}

/// A route to the destination behind each interface of a router, and those of the table by its interfaces in turn.
fn routes(ends: &[End], table: Option<&Halves>) -> Update {
    let numbered = || (0u16..).zip(ends);
    let hop = |n: u16| NextHopId(1 + n);
    let via = |(n, _)| (hop(n), NextHop::Via(Hop { interface: n, mac: SINK }));
    let own = |(n, end): (u16, &End)| (IpNet::from(Ipv4Net::host(end.destination().into())), Some(hop(n)));
    let mut routes: Vec<_> = numbered().map(own).collect();
    let halves = table.into_iter().flat_map(|table| [(Side::Out, &table.out), (Side::In, &table.back)]);
    for (side, half) in halves {
        let hops: Vec<_> = numbered().filter(|(_, end)| end.side == side).map(|(n, _)| hop(n)).collect();
        let nets = half.routes.iter().zip(hops.iter().cycle());
        routes.extend(nets.map(|((net, _), hop)| (*net, Some(*hop))));
    }
    Update { next_hops: numbered().map(via).collect(), routes }
}

fn host(interfaces: &HostInterfaces, pairs: InterfacePairs, cores: &[u32]) -> Host {
    let mut layout = Layout::on(cores, Idle::Adaptive);
    for interface in interfaces.near.iter().chain(&interfaces.out) {
        let kind = PortKind::AfXdp { interface: interface.clone(), generic: false };
        let port = layout.port(interface, kind, 1500);
        layout.set_queues(port, interfaces.queues);
    }
    // Sinks replace the punt ports.
    for n in pairs.all() {
        for side in [Side::In, Side::Out] {
            layout.port(&format!("kernel-{}{n}", side.name()), PortKind::Sink, 1500);
        }
    }
    let mut host = layout.build();
    let port = |end: End| match end.side {
        Side::In => PortId(pairs.below(end) as u16),
        Side::Out => PortId((pairs.ingress + pairs.below(end)) as u16),
    };
    let punt = |end: End| {
        PortId((pairs.ingress + pairs.egress + 2 * usize::from(end.pair)) as u16 + end.side as u16)
    };
    for of_router in pairs.by_router() {
        let Some(first) = of_router.first() else { continue };
        let number = pairs.router_of(*first);
        let (id, name) = (RouterId(number.into()), format!("study{number}"));
        let ends = pairs.ends(&of_router);
        let interface = |end: &End| RouterInterface {
            port: port(*end),
            vlan: pairs.vlan_of(end.pair).and_then(|vlan| VlanId::new(vlan).ok()),
            mac: end.mac(),
            addresses: Vec::new(),
            punt_rate: PUNT_RATE,
            urpf: None,
            punt: punt(*end),
            host_end: RouterInterface::host_end_of(&name, &end.name()),
            name: end.name(),
            snat: None,
        };
        if pairs.are_tagged {
            for end in &ends {
                host.ports[port(*end).index()].policy.forward = Forward::Router(id);
            }
        } else {
            let to_router = |end: &End| Masked::<u64>::new(mac_bits(end.mac()), (1 << 48) - 1);
            let mut from: Vec<_> = ends.iter().map(|end| port(*end)).collect();
            from.sort_unstable();
            from.dedup();
            host.rules.push(Rule::from(RuleParts {
                id: RuleId(number.into()),
                name: name.clone(),
                matches: Match {
                    from,
                    destination_mac: ends.iter().map(to_router).collect(),
                    ..Match::default()
                },
                actions: Actions { terminal: Some(Action::Router(id)), ..Actions::default() },
            }));
        }
        // Routers with their own host interfaces get equal shares.
        let weight = if pairs.egress > 1 { 2 } else { 1 };
        host.routers.push(RouterConfig {
            id,
            interfaces: ends.iter().map(interface).collect(),
            name,
            routes: Vec::new(),
            track: false,
            weight,
            reserve: 0,
            nat64: None,
        });
    }
    host
}
