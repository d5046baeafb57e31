// SPDX-License-Identifier: Apache-2.0
//! Shares of workers that together exceed what a worker has.

use std::collections::HashMap;

use netvm_model::{Host, MAX_RESERVED, PortId, RouterConfig};

use crate::syntax::file_table::FileTable;
use crate::syntax::finding::{Findings, Kind};

pub(super) fn check(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    of_workers(findings, file, host);
    within_routers(findings, file, host);
    shared_ports(findings, file, host);
}

/// Reserves that leave too little for other ports. One worker may serve every port.
fn of_workers(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    let routers = host.routers.iter().zip(file.items("router"));
    let routers = routers.map(|(router, place)| (router.reserve, place));
    let ports = host.ports.iter().zip(file.items("port"));
    let ports = ports.filter(|(port, _)| host.sharing_router(port.id).is_none());
    let ports = ports.map(|(port, place)| (port.policy.reserve, place));
    let mut sum = 0;
    for (reserve, place) in ports.chain(routers) {
        sum += u32::from(reserve);
        if reserve > 0 && sum > u32::from(MAX_RESERVED) {
            findings
                .note(Kind::Conflict, format!("ports and routers reserve {sum} percent of a worker"))
                .at(place.of("reserve"), "more than there is from here on")
                .help(format!("lower some `reserve`: all together reserve {MAX_RESERVED} percent at most"))
                .keep();
            return;
        }
    }
}

/// Ports that reserve more than their router.
fn within_routers(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    let mut sums: HashMap<&str, u32> = HashMap::new();
    for (port, place) in host.ports.iter().zip(file.items("port")) {
        let Some(router) = host.sharing_router(port.id).filter(|_| port.policy.reserve > 0) else { continue };
        let sum = sums.entry(&router.name).or_default();
        let before = *sum;
        *sum += u32::from(port.policy.reserve);
        if before <= u32::from(router.reserve) && *sum > u32::from(router.reserve) {
            let RouterConfig { name, reserve, .. } = router;
            findings
                .note(Kind::Conflict, format!("ports of router {name} reserve {sum} percent of a worker"))
                .at(place.of("reserve"), format!("the router has {reserve}"))
                .help("raise the router's `reserve`, or lower those of its ports: they are a part of it")
                .keep();
        }
    }
}

/// Routers with a share that have a port in common with another: a worker decides before it reads packets.
fn shared_ports(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    let users = |port: PortId| {
        let has_it = move |router: &&RouterConfig| router.ports().any(|own| own == port);
        host.routers.iter().filter(has_it)
    };
    for (router, place) in host.routers.iter().zip(file.items("router")) {
        let other = router.ports().find_map(|port| {
            let other = users(port).find(|other| router.has_share() && other.id != router.id)?;
            Some((host.port(port)?, other))
        });
        if let Some((port, other)) = other {
            let key = if router.weight == 1 { "reserve" } else { "weight" };
            findings
                .note(
                    Kind::Conflict,
                    format!("port {} belongs to two routers, {} and {}", port.name, router.name, other.name),
                )
                .at(place.of(key), "a share of this router alone")
                .help(
                    "a worker serves ports, and cannot tell whose packets wait in one: give each of the routers its own \
                     port, or leave out their `weight` and `reserve`",
                )
                .keep();
        }
    }
}
