// SPDX-License-Identifier: Apache-2.0
//! Router interfaces that match the same packets, and interfaces that receive no packets; published
//! ports.

use std::collections::HashMap;

use netvm_model::{
    Action, Forward, Host, Output, PortConfig, PortId, RouterConfig, RouterId, RouterInterface,
};
use netvm_wire::{MacAddr, VlanId};

use crate::syntax::file_table::FileTable;
use crate::syntax::finding::{Findings, Kind, Span};

mod publish;
mod tunnels;

/// The fields that select an interface for a packet: within a router, and between routers.
#[derive(PartialEq, Eq, Hash)]
enum Packets {
    OfRouter(RouterId, PortId, Option<VlanId>),
    OfAny(PortId, Option<VlanId>, MacAddr),
}

const OWN: (&str, &str) = (
    "two interfaces of one router have the same port and VLAN",
    "give one of them another `vlan` or `port`; one interface can have addresses of several networks",
);
const ANY: (&str, &str) = (
    "interfaces of two routers have the same port, VLAN and MAC address",
    "give one of them another `mac`, `vlan` or `port`",
);

pub(super) fn check(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    publish::check(findings, file, host);
    tunnels::check(findings, file, host);
    let mut seen = HashMap::new();
    for (router, place) in host.routers.iter().zip(file.items("router")) {
        for (interface, place) in router.interfaces.iter().zip(place.items("interface")) {
            let name = host.port(interface.port).map_or("", |port| port.name.as_str());
            if let Some((of, _)) = host.punted_by(interface.port) {
                findings
                    .note(Kind::BadValue, format!("`port` cannot be `{name}`"))
                    .at(place.of("port"), format!("the port from router {} to its kernel", of.name))
                    .help("name a [[port]]")
                    .keep();
                continue;
            }
            let (port, vlan) = (interface.port, interface.vlan);
            let own = Packets::OfRouter(router.id, port, vlan);
            let known = [(own, OWN), (Packets::OfAny(port, vlan, interface.mac), ANY)];
            let first = known.iter().find_map(|(key, words)| Some((seen.get(key)?, words)));
            if let Some((first, (message, help))) = first {
                findings
                    .note(Kind::Duplicate, *message)
                    .at(place.item(), "packets for this one")
                    .at(Span::clone(first), "are packets for this one")
                    .help(*help)
                    .keep();
            }
            for (key, _) in known {
                seen.entry(key).or_insert_with(|| place.item());
            }
            if !leads_to_any(host, port, vlan, router.id) {
                findings
                    .note(
                        Kind::Unused,
                        format!("no packet that comes in by port {name} goes to router {}", router.name),
                    )
                    .at(place.item(), "gets no packets")
                    .help(format!(
                        "add a [[rule]] with `from = \"{name}\"` and `router = \"{}\"`",
                        router.name
                    ))
                    .keep();
            }
        }
    }
}

/// Whether packets that a port receives may go to a router, or to another one in the same VLAN, with which it shares
/// them by MAC address.
fn leads_to_any(host: &Host, port: PortId, vlan: Option<VlanId>, router: RouterId) -> bool {
    let shares = |other: &&RouterConfig| {
        let is_there = |interface: &RouterInterface| (interface.port, interface.vlan) == (port, vlan);
        other.id != router && other.interfaces.iter().any(is_there)
    };
    leads_to(host, port, router)
        || host.routers.iter().filter(shares).any(|other| leads_to(host, port, other.id))
}

/// Whether packets that a port receives may go to a router.
fn leads_to(host: &Host, port: PortId, router: RouterId) -> bool {
    let forward = host.port(port).is_some_and(|port| port.policy.forward == Forward::Router(router));
    let by_chain =
        |port: &PortConfig| host.chains_from(port).any(|chain| chain.output == Output::Router(router));
    forward
        || host.rules_from(port).any(|rule| rule.actions.terminal == Some(Action::Router(router)))
        || host.port(port).is_some_and(by_chain)
}
