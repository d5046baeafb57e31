// SPDX-License-Identifier: Apache-2.0
//! Chains without the standby replicas that they need, chains that copy packets, and chains that receive no
//! packets.

use std::collections::BTreeSet;

use netvm_model::{Action, Chain, ChainId, Forward, Host, NfConfig, NfStart, OnFailure, SteerTo};

use crate::syntax::file_table::FileTable;
use crate::syntax::finding::{Findings, Kind};

mod pairs;

pub(super) fn check(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    pairs::check(findings, file, host);
    let led_to = led_to(host);
    for (chain, place) in host.chains.iter().zip(file.items("chain")) {
        let hops: Vec<&NfConfig> = chain.hops.iter().filter_map(|role| host.nf(*role)).collect();
        standby(findings, chain, &place, &hops);
        crossing(findings, host, Placed { chain, place: &place }, &hops);
        if !led_to.contains(&chain.id) {
            findings
                .note(Kind::Unused, format!("no rule sends packets into chain {}", chain.name))
                .at(place.item(), "gets no packets")
                .help(format!("add a [[rule]] with `chain = \"{}\"`", chain.name))
                .keep();
        }
    }
    for (nf, place) in host.nfs.iter().zip(file.items("nf")) {
        steered(findings, host, nf, &place);
    }
}

/// Roles to which an NF steers flows, but whose NFs may not see its packets.
fn steered(findings: &Findings, host: &Host, nf: &NfConfig, place: &FileTable<'_>) {
    let follows = |role| {
        let mut chains = host.chains.iter().map(|chain| &chain.hops);
        chains.any(|hops| hops.iter().skip_while(|hop| **hop != nf.id).skip(1).any(|hop| *hop == role))
    };
    for (n, to) in nf.steer.iter().enumerate() {
        let SteerTo::Role(role) = to else { continue };
        let other = host.nf(*role).filter(|other| other.group != nf.group && !follows(*role));
        if let Some(other) = other {
            findings
                .note(
                    Kind::Conflict,
                    format!("{} steers to {}, which is in another trust group", nf.role, other.role),
                )
                .at(place.element("steer", n), "never gets its packets")
                .help(format!(
                    "put both into one group, or steer to a chain that begins with {}: its packets are copied",
                    other.role
                ))
                .keep();
        }
    }
}

/// The chains that packets may enter.
fn led_to(host: &Host) -> BTreeSet<ChainId> {
    let rules = host.rules.iter().filter_map(|rule| match rule.actions.terminal {
        Some(Action::Chain(id)) => Some(id),
        _ => None,
    });
    let forward = host.ports.iter().filter_map(|port| match port.policy.forward {
        Forward::Chain(id) => Some(id),
        _ => None,
    });
    let steered = host.nfs.iter().flat_map(|nf| &nf.steer).filter_map(|to| match to {
        SteerTo::Chain(id) => Some(*id),
        _ => None,
    });
    rules.chain(forward).chain(steered).collect()
}

fn standby(findings: &Findings, chain: &Chain, place: &FileTable<'_>, hops: &[&NfConfig]) {
    let waits = |nf: &&&NfConfig| match &nf.start {
        NfStart::Managed { standby, .. } => *standby > 0,
        NfStart::Ports(pair) => pair.standby > 0,
        NfStart::External { .. } => false,
    };
    if chain.on_failure != OnFailure::Standby || hops.iter().any(|nf| waits(&nf)) {
        return;
    }
    let managed = hops.iter().filter(|nf| !matches!(nf.start, NfStart::External { .. }));
    let mut roles: Vec<&str> = managed.map(|nf| nf.role.as_str()).collect();
    roles.sort_unstable();
    roles.dedup();
    let other = "set `on_failure = \"drop\"` or \"bypass\"";
    let help = match roles[..] {
        [] => format!("netvmd starts none of them: {other}"),
        [role] => format!("add `standby = 1` to {role}, or {other}"),
        _ => format!("add `standby = 1` to one of {}, or {other}", roles.join(", ")),
    };
    findings
        .note(
            Kind::NoStandby,
            format!("chain {} relies on standby replicas, but none of its NFs has one", chain.name),
        )
        .at(place.of("on_failure"), "no NF has a standby replica")
        .help(help)
        .keep();
}

/// A chain, and its place in the file.
#[derive(Clone, Copy)]
struct Placed<'a> {
    chain: &'a Chain,
    place: &'a FileTable<'a>,
}

fn crossing(findings: &Findings, host: &Host, placed: Placed<'_>, hops: &[&NfConfig]) {
    let Placed { chain, place } = placed;
    let name = |nf: &NfConfig| host.group(nf.group).map_or("", |group| group.name.as_str());
    let pairs = hops.iter().zip(hops.iter().skip(1)).zip(1..);
    let crossings: Vec<_> = pairs.filter(|((from, to), _)| from.group != to.group).collect();
    let Some(((from, to), hop)) = crossings.first() else { return };
    findings
        .note(
            Kind::CrossGroup,
            format!("chain {} copies its packets {}", chain.name, times(crossings.len())),
        )
        .at(place.element("hops", *hop), format!("from group {} to group {}", name(from), name(to)))
        .help("NFs of one trust group pass packets on without a copy: put them in one group if they may see each other's packets")
        .keep();
}

fn times(n: usize) -> String {
    match n {
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        n => format!("{n} times"),
    }
}
