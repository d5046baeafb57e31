//! Ports on the switch with one IP address or one MAC address: packets for it reach only one of them.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;

use netvm_model::{Forward, Guest, Host, InterfaceAddress, PortConfig, PortId, PortKind, VlanMode};
use netvm_wire::MacAddr;

use crate::syntax::finding::{Findings, Kind, Span};
use crate::syntax::place::Place;

pub(super) fn check(findings: &Findings, file: &Place<'_>, host: &Host) {
    let (mut addresses, mut macs) = (Seen::new(), Seen::new());
    for (port, place) in host.ports.iter().zip(file.items("port")) {
        // Ports that do not switch may repeat addresses: rules keep them apart.
        if !matches!(port.policy.forward, Forward::Normal) {
            continue;
        }
        for address in addresses_of(port) {
            let found = (format!("address {address}"), port.name.as_str(), place.of("addresses"));
            note(findings, addresses.insert((vlan(port), *address), found));
        }
        for (mac, key) in macs_of(host, port) {
            let found = (format!("MAC address {mac}"), port.name.as_str(), place.of(key));
            note(findings, macs.insert((vlan(port), mac), found));
        }
    }
}

/// What was found, of which port, where.
type Found<'a> = (String, &'a str, Span);

/// The first port with each address.
struct Seen<'a, K>(HashMap<K, Found<'a>>);

impl<'a, K: Eq + Hash> Seen<'a, K> {
    fn new() -> Self {
        Self(HashMap::new())
    }

    /// The port that had it before, and the one that has it now, if there is one.
    fn insert(&mut self, key: K, found: Found<'a>) -> Option<[Found<'a>; 2]> {
        match self.0.get(&key) {
            Some(first) => Some([first.clone(), found]),
            None => {
                self.0.insert(key, found);
                None
            }
        }
    }
}

fn note(findings: &Findings, both: Option<[Found<'_>; 2]>) {
    let Some([(_, first, there), (what, port, here)]) = both else { return };
    findings
        .note(Kind::SharedAddress, format!("ports {first} and {port} have one {what}"))
        .at(here, "again")
        .at(there, format!("port {first} has it"))
        .help("packets for it reach one of the two: give each its own, or put the ports into different VLANs")
        .keep();
}

/// The network in which a port's untagged packets are.
const fn vlan(port: &PortConfig) -> Option<u16> {
    match &port.policy.vlan {
        VlanMode::Access(vlan) => Some(vlan.get()),
        VlanMode::Trunk { native: Some(vlan), .. } => Some(vlan.get()),
        VlanMode::Unaware | VlanMode::Trunk { native: None, .. } => None,
    }
}

fn addresses_of(port: &PortConfig) -> impl Iterator<Item = &IpAddr> {
    let addresses: &[InterfaceAddress] = match &port.kind {
        PortKind::Container(container) => &container.addresses,
        PortKind::Host(host) => &host.addresses,
        _ => &[],
    };
    addresses.iter().map(|address| &address.address)
}

/// The MAC addresses behind a port that the configuration knows, and the key that is wrong. That of a host interface without
/// `mac` depends on the machine.
fn macs_of(host: &Host, port: &PortConfig) -> Vec<(MacAddr, &'static str)> {
    let own = match &port.kind {
        PortKind::Container(container) => Some(container.own_mac()),
        PortKind::Host(host) => host.mac,
        PortKind::E1000 { .. } => port.card_mac(),
        PortKind::VhostUser { .. } => card_of(host, port.id),
        _ => None,
    };
    own.into_iter().map(|mac| (mac, "mac")).collect()
}

/// The MAC address of the VM's card at a port.
fn card_of(host: &Host, port: PortId) -> Option<MacAddr> {
    let cards = host.vms.iter().filter_map(|vm| match &vm.guest {
        Guest::Ordinary { cards } => Some(cards),
        Guest::Nf { .. } => None,
    });
    cards.flatten().find(|card| card.port == port).map(|card| card.mac)
}
