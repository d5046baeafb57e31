// SPDX-License-Identifier: Apache-2.0
//! Rules with states, or a SYN proxy, for ports that do not track connections, and zones that no connection is in.

use std::collections::BTreeSet;

use netvm_model::{Host, PortConfig, PortId, Receives, Rule};
use netvm_wire::ConnState;

use super::Written;
use crate::syntax::file_table::FileTable;
use crate::syntax::finding::{Findings, Kind};

pub(super) fn check(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    let tracking = host.ports.iter().filter(|port| host.tracks_port(port)).map(|port| port.id).collect();
    for written in host.rules.iter().zip(file.items("rule")).filter(|(rule, _)| needs_tracking(rule)) {
        states(findings, host, &written, &tracking);
    }
    for written in host.rules.iter().zip(file.items("rule")).filter(|(rule, _)| rule.actions.syn_proxy) {
        syn_proxy(findings, host, &written, &tracking);
    }
    zones(findings, file, host, &tracking);
}

/// Whether no packet matches whose connection is not tracked.
fn needs_tracking(rule: &Rule) -> bool {
    !rule.matches.state.is_empty() && !rule.matches.state.contains(&ConnState::Untracked)
}

/// A rule with states of which some or all packets have none.
fn states(findings: &Findings, host: &Host, written: &Written<'_>, tracking: &BTreeSet<PortId>) {
    let (rule, place) = written;
    let from = &rule.matches.from;
    let ports = || ports_of(host, rule);
    let Some(port) = ports().find(|port| !tracking.contains(&port.id)) else { return };
    let at = place.table("match").map_or_else(|| place.of("match"), |matches| matches.of("state"));
    let name = name_of(rule);
    let note = if !ports().any(|port| tracking.contains(&port.id)) {
        let message = format!("{name} matches on `state`, but no port of its packets tracks connections");
        findings.note(Kind::Conflict, message).at(at, "never matches")
    } else if !from.is_empty() {
        let message = format!("{name} matches on `state`, but port {} does not track connections", port.name);
        findings.note(Kind::Unused, message).at(at, format!("matches no packet of port {}", port.name))
    } else {
        return;
    };
    let remedy = format!("add `track = true` to port {}, or to its [[router]]", port.name);
    note.help(format!("{remedy}; packets of ports without it are `\"untracked\"`")).keep();
}

/// The ports whose packets a rule may match.
fn ports_of<'a>(host: &'a Host, rule: &'a Rule) -> impl Iterator<Item = &'a PortConfig> {
    let from = &rule.matches.from;
    let receives = |port: &PortConfig| port.kind.info().receives == Receives::Packets;
    host.ports.iter().filter(move |port| from.contains(&port.id) || (from.is_empty() && receives(port)))
}

fn name_of(rule: &Rule) -> String {
    if rule.name.is_empty() { "this [[rule]]".to_owned() } else { format!("rule {}", rule.name) }
}

/// A SYN proxy for packets whose connections are not tracked.
fn syn_proxy(findings: &Findings, host: &Host, written: &Written<'_>, tracking: &BTreeSet<PortId>) {
    let (rule, place) = written;
    let Some(port) = ports_of(host, rule).find(|port| !tracking.contains(&port.id)) else { return };
    let message =
        format!("`syn_proxy` of {}, but port {} does not track connections", name_of(rule), port.name);
    let or = if rule.matches.from.is_empty() { "name the ports in `from`" } else { "remove it from `from`" };
    findings
        .note(Kind::Conflict, message)
        .at(place.of("syn_proxy"), format!("lets packets of port {} pass as they are", port.name))
        .help(format!("add `track = true` to port {}, or to its [[router]], or {or}", port.name))
        .keep();
}

/// Zones of ports that do not track, and routers whose interfaces are in several zones.
fn zones(findings: &Findings, file: &FileTable<'_>, host: &Host, tracking: &BTreeSet<PortId>) {
    for (port, place) in host.ports.iter().zip(file.items("port")) {
        if port.policy.zone != 0 && !tracking.contains(&port.id) {
            findings
                .note(
                    Kind::Conflict,
                    format!("`zone` of port {}, which does not track connections", port.name),
                )
                .at(place.of("zone"), "no connection is in it")
                .help("add `track = true`, or remove `zone`")
                .keep();
        }
    }
    for (router, place) in host.routers.iter().zip(file.items("router")).filter(|(router, _)| router.tracks())
    {
        let zone = |port: PortId| host.port(port).map_or(0, |port| port.policy.zone);
        let mut interfaces = router.interfaces.iter().zip(place.items("interface"));
        let Some((first, _)) = interfaces.next() else { continue };
        let other = interfaces.find(|(other, _)| zone(other.port) != zone(first.port));
        if let Some((other, place)) = other {
            let (zone, first) = (zone(other.port), zone(first.port));
            findings
                .note(Kind::Conflict, format!("interfaces of router {} are in several zones", router.name))
                .at(place.of("port"), format!("in zone {zone}, others are in zone {first}"))
                .help(
                    "give their ports the same `zone`: a connection's packets come in by several interfaces",
                )
                .keep();
        }
    }
}
