//! Rules that can never match, and ports that steer nothing.

use netvm_wire::{IpNet, PortRange, VlanId};

use crate::finding::{Findings, Kind};
use crate::model::{Host, Match, PortConfig, PortKind, Steer};
use crate::raw::{RawHost, RawSteer};

pub(super) fn check(findings: &Findings, raw: &RawHost, host: &Host) {
    let rules: Vec<(&Steer, &RawSteer)> = host.steering.iter().zip(&raw.steering).collect();
    for (n, (rule, written)) in rules.iter().enumerate() {
        let earlier = rules.iter().take(n).filter(|(before, _)| before.port == rule.port);
        if let Some((before, first)) = earlier.clone().find(|(before, _)| before.matches == rule.matches) {
            same(findings, host, (before, first), (rule, written));
        } else if let Some((_, first)) =
            earlier.clone().find(|(before, _)| covers(&before.matches, &rule.matches))
        {
            findings
                .note(Kind::Shadowed, "this [[steer]] never matches")
                .at(written.match_span(), "all of these packets are taken before")
                .at(first.match_span(), "by this rule")
                .help("the first rule that matches decides: put the narrower rule first, or remove it")
                .keep();
        }
    }
    for (port, written) in host.ports.iter().zip(&raw.ports) {
        let steered: Vec<_> = rules.iter().filter(|(rule, _)| rule.port == port.id).collect();
        match steered.first() {
            None if receives(port) => findings
                .note(Kind::Unused, format!("no [[steer]] is about port {}", port.name))
                .at(written.span.clone(), "all that it receives is dropped")
                .help(format!(
                    "add a [[steer]] with `port = \"{}\"`; `drop = true` says that it is meant so",
                    port.name
                ))
                .keep(),
            Some((_, rule)) if never_receives(port) => findings
                .note(Kind::Unused, format!("nothing ever comes in by port {}", port.name))
                .at(rule.span.clone(), "never matches")
                .help("remove this [[steer]], or name another port")
                .keep(),
            _ => {}
        }
    }
}

fn same(
    findings: &Findings,
    host: &Host,
    (before, first): (&Steer, &RawSteer),
    (rule, second): (&Steer, &RawSteer),
) {
    let port = host.port(rule.port).map_or("", |port| port.name.as_str());
    let (from, to) = (findings.line(first.span.start), findings.line(second.span.start));
    let message = if before.action == rule.action {
        format!("the [[steer]] of port {port} in lines {from} and {to} are the same")
    } else {
        format!(
            "two ways for one match: the [[steer]] of port {port} in line {from} leaves nothing to the one in line {to}"
        )
    };
    findings
        .note(Kind::SameMatch, message)
        .at(second.match_span(), "the same again")
        .at(first.match_span(), "first here")
        .help("remove one of them, or give them different matches")
        .keep();
}

/// Ports by which packets are expected to come in.
const fn receives(port: &PortConfig) -> bool {
    match &port.kind {
        PortKind::Pci { .. }
        | PortKind::AfXdp { .. }
        | PortKind::AfPacket { .. }
        | PortKind::Tap { .. }
        | PortKind::Source(_) => true,
        PortKind::Pcap { input, .. } => input.is_some(),
        PortKind::Null { .. } | PortKind::Sink => false,
    }
}

const fn never_receives(port: &PortConfig) -> bool {
    matches!(port.kind, PortKind::Sink | PortKind::Pcap { input: None, .. })
}

/// Whether `wide` matches every packet that `narrow` does.
fn covers(wide: &Match, narrow: &Match) -> bool {
    fn field<T: Copy>(wide: Option<T>, narrow: Option<T>, covers: impl Fn(T, T) -> bool) -> bool {
        match (wide, narrow) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(wide), Some(narrow)) => covers(wide, narrow),
        }
    }
    let net = |wide: IpNet, narrow: IpNet| wide.contains_net(narrow);
    let ports =
        |wide: PortRange, narrow: PortRange| wide.first() <= narrow.first() && narrow.last() <= wide.last();
    field(wide.vlan, narrow.vlan, |wide: VlanId, narrow| wide == narrow)
        && field(wide.source, narrow.source, net)
        && field(wide.destination, narrow.destination, net)
        && field(wide.protocol, narrow.protocol, |wide, narrow| wide == narrow)
        && field(wide.source_ports, narrow.source_ports, ports)
        && field(wide.destination_ports, narrow.destination_ports, ports)
}
