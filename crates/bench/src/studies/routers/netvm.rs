//! An engine with the routers.

use netvm_model::{
    Action, Actions, Forward, Host, Idle, Match, PUNT_RATE, PortId, PortKind, RouterConfig, RouterId,
    RouterInterface, Rule, RuleId, RuleParts,
};
use netvm_policy::{Masked, mac_bits};
use netvm_router::{Hop, NextHop, NextHopId, Update};
use netvm_wire::{IpNet, Ipv4Net, VlanId};

use super::{Lanes, OUT, SINK, destination, mac};
use crate::error::BenchError;
use crate::setup::layout::Layout;
use crate::setup::rig::Rig;
use crate::setup::routes::RouteTable;

/// Starts the engine and loads the routers' routes.
pub(super) fn start(
    near: &[String],
    lanes: Lanes,
    table: Option<&RouteTable>,
    core: u32,
) -> Result<Rig, BenchError> {
    let mut rig = Rig::start(&host(near, lanes, core), &[])?;
    for of_router in lanes.by_router() {
        let Some(first) = of_router.first() else { continue };
        // The second interface of each lane, by its index in the router.
        let via = |n: u16| (NextHopId(1 + n), NextHop::Via(Hop { interface: 2 * n + 1, mac: SINK }));
        let count = of_router.len() as u16;
        let own = (0..).zip(&of_router).map(|(n, lane)| {
            let network = IpNet::from(Ipv4Net::host(destination(*lane).into()));
            (network, Some(NextHopId(1 + n)))
        });
        let nets = table.into_iter().flat_map(|table| table.routes.iter().map(|(net, _)| *net));
        let more = nets.zip((0..count).cycle()).map(|(net, n)| (net, Some(NextHopId(1 + n))));
        let update = Update { next_hops: (0..count).map(via).collect(), routes: own.chain(more).collect() };
        rig.load_routes_of(RouterId(lanes.router_of(*first).into()), &update)?;
    }
    Ok(rig)
}

fn host(near: &[String], lanes: Lanes, core: u32) -> Host {
    let mut layout = Layout::new(core, Idle::Adaptive);
    for (near, out) in near.iter().zip(OUT) {
        for interface in [near.as_str(), out] {
            layout.port(interface, PortKind::AfXdp { interface: interface.to_owned(), generic: false }, 1500);
        }
    }
    // Sinks replace the punt ports.
    for n in lanes.all() {
        for side in ["in", "out"] {
            layout.port(&format!("kernel-{side}{n}"), PortKind::Sink, 1500);
        }
    }
    let mut host = layout.build();
    let near = |lane: u8| 2 * lanes.pair_of(lane) as u16;
    for of_router in lanes.by_router() {
        let Some(first) = of_router.first() else { continue };
        let number = lanes.router_of(*first);
        let (id, name) = (RouterId(number.into()), format!("study{number}"));
        let interface = |lane: u8, side: u8| {
            let interface = format!("{}{lane}", ["in", "out"][usize::from(side)]);
            RouterInterface {
                port: PortId(near(lane) + u16::from(side)),
                vlan: lanes.vlan_of(lane).and_then(|vlan| VlanId::new(vlan).ok()),
                mac: mac(lane, side),
                addresses: Vec::new(),
                punt_rate: PUNT_RATE,
                urpf: None,
                punt: PortId(2 * (lanes.pairs as u16 + u16::from(lane)) + u16::from(side)),
                host_end: RouterInterface::host_end_of(&name, &interface),
                name: interface,
            }
        };
        let interfaces = of_router.iter().flat_map(|lane| [0, 1].map(|side| interface(*lane, side)));
        let interfaces = interfaces.collect();
        if lanes.are_of_one {
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
        let weight = if lanes.pairs > 1 { 2 } else { 1 };
        host.routers.push(RouterConfig { id, name, interfaces, routes: Vec::new(), weight, reserve: 0 });
    }
    host
}
