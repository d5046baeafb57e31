// SPDX-License-Identifier: Apache-2.0
//! Ports on the switch with one IP address or one MAC address: packets for it reach only one of them. Also the groups
//! that ports are members of ([`multicast`]).

mod multicast;

use std::collections::HashMap;
use std::hash::Hash;

use netvm_model::{Forward, Guest, GuestCard, Host, PortConfig, PortId, VlanMode};
use netvm_wire::MacAddr;

use crate::syntax::file_table::FileTable;
use crate::syntax::finding::{Findings, Kind, Span};

pub(super) fn check(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    multicast::check(findings, file, host);
    let (mut addresses, mut macs) = (Seen::new(), Seen::new());
    for (port, place) in host.ports.iter().zip(file.items("port")) {
        // Ports that do not switch may repeat addresses: rules keep them apart.
        if !matches!(port.policy.forward, Forward::Normal) {
            continue;
        }
        for address in port.kind.info().addresses.iter().map(|address| &address.address) {
            let found = (format!("address {address}"), port.name.as_str(), place.of("addresses"));
            note(findings, addresses.insert((vlan(port), *address), found));
        }
        if let Some(mac) = mac_of(host, port) {
            let found = (format!("MAC address {mac}"), port.name.as_str(), place.of("mac"));
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
        .note(Kind::SharedAddress, format!("ports {first} and {port} have the same {what}"))
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

/// The MAC address behind a port, if the configuration knows it. That of a host interface without `mac` depends on the
/// machine.
fn mac_of(host: &Host, port: &PortConfig) -> Option<MacAddr> {
    match port.kind.info().card {
        Some(GuestCard::VirtioNet) => card_of(host, port.id),
        _ => port.own_mac(),
    }
}

/// The MAC address of the VM's card at a port.
fn card_of(host: &Host, port: PortId) -> Option<MacAddr> {
    let cards = host.vms.iter().filter_map(|vm| match &vm.guest {
        Guest::Ordinary { cards } => Some(cards),
        Guest::Nf { .. } => None,
    });
    cards.flatten().find(|card| card.port == port).map(|card| card.mac)
}
