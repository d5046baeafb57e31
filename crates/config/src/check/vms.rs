//! Virtual machines: what they are to netvm, and what only one of them can have.

use std::collections::BTreeSet;

use toml::Spanned;

use crate::finding::{Findings, Kind, Span};
use crate::model::{Guest, Host, Idle, MAX_REPLICAS, NfStart, PortKind, RoleId, VmConfig};
use crate::raw::{RawGuest, RawHost, RawVm};

pub(super) fn check(findings: &Findings, raw: &RawHost, host: &Host) {
    let mut told = BTreeSet::new();
    let mut cards = Cards::default();
    for (vm, written) in host.vms.iter().zip(&raw.vms) {
        match (&vm.guest, &written.guest) {
            (Guest::Nf { role, .. }, Some(RawGuest::Nf { role: place, .. })) => {
                nf(findings, host, *role, place);
                if host.vm_threads(*role) > MAX_REPLICAS && told.insert(*role) {
                    too_many(findings, host, *role, place);
                }
            }
            (Guest::Ordinary { .. }, Some(RawGuest::Ordinary { cards: places })) => {
                cards.check(findings, host, vm, places);
            }
            _ => {}
        }
        cores(findings, host, vm, written);
    }
}

fn nf(findings: &Findings, host: &Host, role: RoleId, place: &Spanned<String>) {
    let managed = |nf: &&crate::model::NfConfig| matches!(nf.start, NfStart::Managed { .. });
    if let Some(nf) = host.nf(role).filter(managed) {
        findings
            .note(Kind::Conflict, format!("netvmd starts NF {} as a process", nf.role))
            .at(place.span(), "and this VM is to be it, too?")
            .help(format!("take `command` out of [[nf]] {}: its VMs take its place", nf.role))
            .keep();
    }
}

fn too_many(findings: &Findings, host: &Host, role: RoleId, place: &Spanned<String>) {
    findings
        .note(Kind::TooMany, format!("the VMs of {} have {} threads", place.get_ref(), host.vm_threads(role)))
        .at(place.span(), "too many together")
        .help(format!("a hop chooses among at most {MAX_REPLICAS} threads, those of all its VMs together"))
        .keep();
}

/// What ports and addresses have been seen.
#[derive(Default)]
struct Cards<'a> {
    ports: Vec<(&'a str, Span, &'a str)>,
    macs: Vec<(String, Span, &'a str)>,
}

impl<'a> Cards<'a> {
    fn check(
        &mut self,
        findings: &Findings,
        host: &'a Host,
        vm: &'a VmConfig,
        places: &[(Spanned<String>, Spanned<netvm_wire::MacAddr>)],
    ) {
        let Guest::Ordinary { cards } = &vm.guest else { return };
        for (card, (port_place, mac_place)) in cards.iter().zip(places) {
            let Some(port) = host.port(card.port) else { continue };
            if !matches!(port.kind, PortKind::VhostUser { .. }) {
                findings
                    .note(
                        Kind::Conflict,
                        format!("port {} is {}, not vhost-user", port.name, port.kind.word()),
                    )
                    .at(port_place.span(), "no guest can have it")
                    .help("guests are behind ports with `kind = \"vhost-user\"`")
                    .keep();
            }
            if matches!(&port.kind, PortKind::VhostUser { path, .. } if !path.is_absolute()) {
                findings
                    .note(Kind::Conflict, format!("the socket of port {} has a relative path", port.name))
                    .at(port_place.span(), "QEMU runs in another folder")
                    .help(format!("give port {} an absolute `path`", port.name))
                    .keep();
            }
            if let Some((_, first, owner)) = self.ports.iter().find(|(name, _, _)| *name == port.name) {
                findings
                    .note(Kind::Duplicate, format!("two network cards are behind port {}", port.name))
                    .at(port_place.span(), "again")
                    .at(first.clone(), format!("VM {owner} has it"))
                    .help("give every card a port of its own")
                    .keep();
            }
            let mac = card.mac.to_string();
            if let Some((_, first, owner)) = self.macs.iter().find(|(known, _, _)| *known == mac) {
                findings
                    .note(Kind::Duplicate, format!("two network cards have the address {mac}"))
                    .at(mac_place.span(), "again")
                    .at(first.clone(), format!("VM {owner} has it"))
                    .help("give every card an address of its own in `macs`")
                    .keep();
            }
            self.ports.push((&port.name, port_place.span(), &vm.name));
            self.macs.push((mac, mac_place.span(), &vm.name));
        }
    }
}

fn cores(findings: &Findings, host: &Host, vm: &VmConfig, written: &RawVm) {
    if host.engine.idle != Idle::Poll {
        return;
    }
    for (core, place) in vm.cores.iter().zip(&written.core_spans) {
        if host.engine.cores.contains(core) {
            findings
                .note(
                    Kind::SharedCore,
                    format!("VM {} shares core {core} with a worker that never sleeps", vm.name),
                )
                .at(place.clone(), "a worker spins here")
                .help("give it another core, or set `idle = \"adaptive\"` in [engine]")
                .keep();
        }
    }
}
