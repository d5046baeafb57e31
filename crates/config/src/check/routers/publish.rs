// SPDX-License-Identifier: Apache-2.0
//! Published ports that no router has, and those that two containers publish.

use netvm_model::{Host, PortConfig, Publish, RouterId};

use crate::syntax::file_table::FileTable;
use crate::syntax::finding::{Findings, Kind, Span};

pub(super) fn check(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    let mut seen: Vec<(RouterId, Published<'_>)> = Vec::new();
    for (port, place) in host.ports.iter().zip(file.items("port")) {
        for (n, publish) in port.policy.publish.iter().enumerate() {
            let published = Published { publish, port, at: place.element("publish", n) };
            let Some(reach) = host.reaches_for(port, publish).next() else {
                unreachable_from_outside(findings, host, published);
                continue;
            };
            let id = reach.router.id;
            let is_it = |(router, first): &&(RouterId, Published<'_>)| {
                *router == id && first.publish.overlaps(*publish)
            };
            if let Some((_, first)) = seen.iter().find(is_it) {
                twice(findings, first, &published);
            }
            seen.push((id, published));
        }
    }
}

/// A published port, and its place.
struct Published<'a> {
    publish: &'a Publish,
    port: &'a PortConfig,
    at: Span,
}

fn twice(findings: &Findings, first: &Published<'_>, again: &Published<'_>) {
    findings
        .note(Kind::Duplicate, format!("`{}` is published twice", again.publish))
        .at(again.at.clone(), "again")
        .at(first.at.clone(), format!("port {} publishes it", first.port.name))
        .help("give one of them another port of the router, or another address")
        .keep();
}

/// No router can publish a port.
fn unreachable_from_outside(findings: &Findings, host: &Host, published: Published<'_>) {
    let Published { publish, port, at } = published;
    let name = &port.name;
    let (label, help) = if port.kind.info().addresses.is_empty() {
        let help = format!("add its address, such as `addresses = [\"10.0.0.2/24\"]`, to port {name}");
        ("the container has no address in the file".to_owned(), help)
    } else {
        match host.reaches(port).next() {
            None => (
                "no router has an address in the container's network".to_owned(),
                "add a [[router]] with an interface there, and one to the outside with `snat = \"masquerade\"`".to_owned(),
            ),
            Some(reach) if !reach.router.translates_sources() => (
                format!("router {} has no interface with `snat`", reach.router.name),
                format!("add `snat = \"masquerade\"` to the interface of router {} to the outside", reach.router.name),
            ),
            Some(reach) => (
                format!("router {} or the container has no address of this family", reach.router.name),
                "publish IPv6 by an address: `\"[2001:db8::1]:80:80\"`, and give the container one of the same family"
                    .to_owned(),
            ),
        }
    };
    findings
        .note(Kind::Conflict, format!("no router publishes `{publish}` of port {name}"))
        .at(at, label)
        .help(help)
        .keep();
}
