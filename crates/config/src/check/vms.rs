// SPDX-License-Identifier: Apache-2.0
//! VMs whose role a process already has, and network cards that share a port or an address.

use std::collections::{BTreeSet, HashMap};

use netvm_model::{Guest, GuestCard, Host, MAX_REPLICAS, NfStart, RoleId, VmStart};

use crate::syntax::file_table::FileTable;
use crate::syntax::finding::{Findings, Kind, Span};

pub(super) fn check(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    let mut reported = BTreeSet::new();
    for (vm, place) in host.vms.iter().zip(file.items("vm")) {
        if let Guest::Nf { role, .. } = vm.guest {
            nf(findings, host, role, place.of("role"));
            if host.vm_threads(role) > MAX_REPLICAS && reported.insert(role) {
                too_many(findings, host, role, place.of("role"));
            }
        }
    }
    cards(findings, file, host);
}

fn nf(findings: &Findings, host: &Host, role: RoleId, place: Span) {
    let managed = |nf: &&netvm_model::NfConfig| !matches!(nf.start, NfStart::External { .. });
    if let Some(nf) = host.nf(role).filter(managed) {
        findings
            .note(Kind::Conflict, format!("netvmd starts NF {} as a process", nf.role))
            .at(place, "this VM has the same role")
            .help(format!("remove `command` from [[nf]] {}: its VMs replace the process", nf.role))
            .keep();
    }
}

fn too_many(findings: &Findings, host: &Host, role: RoleId, place: Span) {
    let name = host.nf(role).map_or("", |nf| nf.role.as_str());
    findings
        .note(Kind::TooMany, format!("the VMs of {name} have {} threads", host.vm_threads(role)))
        .at(place, "exceeds the limit")
        .help(format!("a hop chooses among at most {MAX_REPLICAS} threads, the sum over its VMs"))
        .keep();
}

/// Cards whose port is of the wrong kind, and cards with the same port or address.
fn cards(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    let (mut ports, mut macs) = (HashMap::new(), HashMap::new());
    let ordinary = host.vms.iter().zip(file.items("vm")).flat_map(|(vm, place)| match &vm.guest {
        Guest::Ordinary { cards } => {
            cards.iter().enumerate().map(|(n, card)| (vm, place.clone(), n, card)).collect()
        }
        Guest::Nf { .. } => Vec::new(),
    });
    for (vm, place, n, card) in ordinary {
        let Some(port) = host.port(card.port) else { continue };
        let port_place = place.element("ports", n);
        let mac_place =
            if place.key("macs").is_some() { place.element("macs", n) } else { port_place.clone() };
        let info = port.kind.info();
        let conflict = match (info.card, info.socket()) {
            (Some(GuestCard::E1000), _)
                if place.key("macs").is_some() && port.card_mac() != Some(card.mac) =>
            {
                Some((
                    format!("port {} has the card and its address", port.name),
                    "this VM's `macs` has another address for it",
                    format!("set `mac` of port {} instead", port.name),
                ))
            }
            (Some(_), Some((path, _))) if path.is_absolute() => None,
            (Some(_), _) => Some((
                format!("the socket of port {} has a relative path", port.name),
                "QEMU runs in another folder",
                format!("give port {} an absolute `path`", port.name),
            )),
            (None, _) => Some((
                format!("port {} is {}, not vhost-user or e1000", port.name, info.word),
                "not a port for a guest",
                "guests are behind ports with `kind = \"vhost-user\"` or `kind = \"e1000\"`".to_owned(),
            )),
        };
        let conflict = conflict.or_else(|| {
            let owner = port.socket.owner.as_ref().filter(|_| vm.start != VmStart::Manual)?;
            Some((
                format!("the socket of port {} belongs to {owner}", port.name),
                "netvmd gives it to the user that runs this VM's QEMU",
                format!("leave `socket_owner` of port {} out, and set `user` of the VM", port.name),
            ))
        });
        if let Some((message, label, help)) = conflict {
            findings.note(Kind::Conflict, message).at(port_place.clone(), label).help(help).keep();
        }
        let again = |message: String, place: &Span, (first, owner): &(Span, &str), help: &str| {
            let note = findings.note(Kind::Duplicate, message).at(place.clone(), "again");
            note.at(first.clone(), format!("VM {owner} has it")).help(help).keep();
        };
        if let Some(first) = ports.get(&card.port) {
            let message = format!("two network cards are behind port {}", port.name);
            again(message, &port_place, first, "give every card a port of its own");
        }
        let mac = port.card_mac().unwrap_or(card.mac);
        if let Some(first) = macs.get(&mac) {
            let message = format!("two network cards have the address {mac}");
            again(message, &mac_place, first, "give every card an address of its own in `macs`");
        }
        ports.entry(card.port).or_insert((port_place, vm.name.as_str()));
        macs.entry(mac).or_insert((mac_place, vm.name.as_str()));
    }
}
