// SPDX-License-Identifier: Apache-2.0
//! NAT rules for ports that do not track connections, and pools that overlap.

use std::collections::BTreeSet;

use netvm_model::{
    AddressRange, Host, NatAction, NatAddresses, NatRule, PortAllocation, PortConfig, PortId, Receives,
    SourceNat,
};
use netvm_wire::PortRange;

use crate::syntax::file_table::FileTable;
use crate::syntax::finding::{Findings, Kind, Span};

pub(super) fn check(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    let own = host.nat.iter().filter(|rule| !rule.is_implied());
    for (rule, place) in own.zip(file.items("nat")) {
        tracking(findings, host, rule, &place);
    }
    overlaps(findings, &pools(file, host));
}

/// Translation needs the connections of both directions.
fn tracking(findings: &Findings, host: &Host, rule: &NatRule, place: &FileTable<'_>) {
    if rule.action == NatAction::Keep {
        return;
    }
    let named = [("to", &rule.matches.to), ("from", &rule.matches.from)];
    let named = named.iter().flat_map(|(key, ids)| ids.iter().enumerate().map(move |(n, id)| (*key, n, *id)));
    let untracked = |id: PortId| host.port(id).filter(|port| !host.tracks_port(port));
    let found = named.into_iter().find_map(|(key, n, id)| Some((untracked(id)?, place.element(key, n))));
    let any = || {
        let receives = |port: &&PortConfig| port.kind.info().receives == Receives::Packets;
        let is_for_all = rule.matches.to.is_empty() && rule.matches.from.is_empty() && !host.tracks();
        let port = host.ports.iter().find(receives)?;
        is_for_all.then(|| (port, place.item()))
    };
    let Some((port, at)) = found.or_else(any) else { return };
    findings
        .note(Kind::Conflict, format!("a [[nat]] for port {}, which does not track connections", port.name))
        .at(at, "translates no packet of this port")
        .help(format!(
            "add `track = true` to port {}, or to its [[router]]: NAT needs the connections of both directions",
            port.name
        ))
        .keep();
}

/// Addresses and ports that stand for sources, and of whose connections.
struct Pool<'a> {
    ranges: &'a [AddressRange],
    ports: PortRange,
    allocation: &'a PortAllocation,
    zones: BTreeSet<u16>,
    place: Span,
}

/// All pools of the file.
fn pools<'a>(file: &FileTable<'_>, host: &'a Host) -> Vec<Pool<'a>> {
    let zones = |ports: &[PortId]| -> BTreeSet<u16> {
        ports.iter().filter_map(|id| host.port(*id)).map(|port| port.policy.zone).collect()
    };
    let pool = |source: &'a SourceNat, ports: &[PortId], place: Span| match &source.addresses {
        NatAddresses::Interface => None,
        NatAddresses::Ranges(ranges) => {
            let (ports, zones) = (source.ports, zones(ports));
            Some(Pool { ranges, ports, allocation: &source.allocation, zones, place })
        }
    };
    let mut pools = Vec::new();
    for (router, place) in host.routers.iter().zip(file.items("router")) {
        for (interface, place) in router.interfaces.iter().zip(place.items("interface")) {
            let source = interface.snat.as_ref();
            pools.extend(source.and_then(|source| pool(source, &[interface.port], place.of("snat"))));
        }
        pools.extend(router.nat64.as_ref().map(|nat64| Pool {
            ranges: &nat64.addresses,
            ports: nat64.ports,
            allocation: &PortAllocation::Any,
            zones: zones(&router.ports().collect::<Vec<_>>()),
            place: place.of("nat64"),
        }));
    }
    let own = host.nat.iter().filter(|rule| !rule.is_implied());
    for (rule, place) in own.zip(file.items("nat")) {
        if let NatAction::Source(source) = &rule.action {
            pools.extend(pool(source, &rule.matches.to, place.of("snat")));
        }
    }
    pools
}

impl Pool<'_> {
    /// An address that both may give to a connection, though they are not the same pool.
    fn overlap(&self, other: &Self) -> Option<AddressRange> {
        let is_same =
            (self.ranges, self.ports, self.allocation) == (other.ranges, other.ports, other.allocation);
        if is_same || !self.ports.overlaps(other.ports) || self.zones.is_disjoint(&other.zones) {
            return None;
        }
        let overlaps = |range: &&AddressRange| other.ranges.iter().any(|theirs| theirs.overlaps(**range));
        self.ranges.iter().find(overlaps).copied()
    }
}

/// Pools that are not the same, but have addresses and ports in common.
fn overlaps(findings: &Findings, pools: &[Pool<'_>]) {
    for (n, pool) in pools.iter().enumerate() {
        let before = pools.iter().take(n).find_map(|before| Some((before, pool.overlap(before)?)));
        let Some((before, range)) = before else { continue };
        findings
            .note(Kind::Duplicate, format!("two pools have addresses of {range}, and the same ports"))
            .at(pool.place.clone(), "again")
            .at(before.place.clone(), "first here")
            .help(
                "give each its own addresses or `ports`, or both the same: rules with equal pools share them",
            )
            .keep();
    }
}
