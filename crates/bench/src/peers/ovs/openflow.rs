// SPDX-License-Identifier: Apache-2.0
//! Translates rules to OpenFlow flows for `ovs-ofctl add-flows`.
//!
//! OpenFlow has masks where rules have port ranges: a range becomes the fewest masks that cover it, so a rule may
//! become several flows. Supports only the IPv4 five-tuple, as in ClassBench filter sets.

use std::collections::HashSet;
use std::fmt::Write;

use netvm_model::Match;
use netvm_wire::{EtherType, IpNet, IpProto, PortRange};

use crate::error::NoFlow;

/// The protocols with ports in OpenFlow.
const WITH_PORTS: [IpProto; 3] = [IpProto::TCP, IpProto::UDP, IpProto::SCTP];

/// Flows that drop the packets of `rules`, the first with the highest priority, all above `lowest`. Omits duplicate
/// flows.
///
/// # Errors
/// The first rule that cannot be translated.
pub fn drops(rules: &[Match], lowest: usize) -> Result<Vec<String>, NoFlow> {
    let mut seen = HashSet::new();
    let mut flows = Vec::new();
    for (place, rule) in rules.iter().enumerate() {
        let priority = lowest + rules.len() - place;
        for matches in expand(rule).ok_or(NoFlow { rule: place })? {
            if seen.insert(matches.clone()) {
                flows.push(format!("priority={priority},{matches},actions=drop"));
            }
        }
    }
    Ok(flows)
}

/// All combinations of the rule's sets; `None` if the rule has another field.
fn expand(rule: &Match) -> Option<Vec<String>> {
    let Match { source, destination, protocol, source_ports, destination_ports, ether_type, .. } = rule;
    let five = Match {
        source: source.clone(),
        destination: destination.clone(),
        protocol: protocol.clone(),
        source_ports: source_ports.clone(),
        destination_ports: destination_ports.clone(),
        ether_type: ether_type.clone(),
        ..Match::default()
    };
    if five != *rule || *ether_type != [EtherType::IPV4] {
        return None;
    }
    let ports = |ranges: &[PortRange], field: &str| -> Vec<String> {
        let whole = [PortRange::ANY];
        let ranges = if ranges.is_empty() { &whole } else { ranges };
        ranges
            .iter()
            .flat_map(|range| masks(*range))
            .map(|(value, mask)| masked(field, value, mask))
            .collect()
    };
    let (from_ports, to_ports) = (ports(source_ports, "tp_src"), ports(destination_ports, "tp_dst"));
    let by_ports = from_ports != [""] || to_ports != [""];
    let protocols: Vec<Option<IpProto>> = match protocol.as_slice() {
        [] if by_ports => WITH_PORTS.map(Some).into(),
        [] => vec![None],
        some => some.iter().copied().map(Some).collect(),
    };
    let mut list = Vec::new();
    for from in nets(source, "nw_src")? {
        for to in nets(destination, "nw_dst")? {
            for protocol in &protocols {
                let mut text = format!("eth_type=0x0800{from}{to}");
                // Writing to a String cannot fail.
                let _ = protocol.map(|protocol| write!(text, ",nw_proto={}", protocol.0));
                if protocol.is_some_and(|protocol| WITH_PORTS.contains(&protocol)) {
                    let pairs = from_ports.iter().flat_map(|a| to_ports.iter().map(move |b| (a, b)));
                    list.extend(pairs.map(|(a, b)| format!("{text}{a}{b}")));
                } else {
                    list.push(text);
                }
            }
        }
    }
    Some(list)
}

fn nets(nets: &[IpNet], field: &str) -> Option<Vec<String>> {
    let each = |net: &IpNet| match net {
        IpNet::V4(net) => Some(format!(",{field}={net}")),
        IpNet::V6(_) => None,
    };
    if nets.is_empty() { Some(vec![String::new()]) } else { nets.iter().map(each).collect() }
}

fn masked(field: &str, value: u16, mask: u16) -> String {
    if mask == 0 { String::new() } else { format!(",{field}={value:#x}/{mask:#x}") }
}

/// The fewest (value, mask) pairs that cover a range exactly.
fn masks(range: PortRange) -> Vec<(u16, u16)> {
    let (mut at, last) = (u32::from(range.first()), u32::from(range.last()));
    let mut list = Vec::new();
    while at <= last {
        // The largest aligned block that starts here and fits.
        let size = (0..=16).rev().map(|bits| 1 << bits).find(|size| at % size == 0 && at + size - 1 <= last);
        let size = size.unwrap_or(1);
        list.push((at as u16, !(size - 1) as u16));
        at += size;
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u16, last: u16) -> PortRange {
        PortRange::new(first, last).unwrap()
    }

    fn ipv4() -> Match {
        Match { ether_type: vec![EtherType::IPV4], ..Match::default() }
    }

    #[test]
    fn masks_cover_the_range_exactly() {
        for (first, last) in [(0, 65535), (1300, 1349), (1, 65534), (7, 7), (0, 1023), (65535, 65535)] {
            let masks = masks(range(first, last));
            for port in 0..=u16::MAX {
                let hits = masks.iter().filter(|(value, mask)| port & mask == *value).count();
                assert_eq!(hits, usize::from((first..=last).contains(&port)), "{port} of {first}-{last}");
            }
        }
        assert_eq!(masks(range(0, 65535)), [(0, 0)]);
        assert_eq!(masks(range(1300, 1349)).len(), 5);
    }

    #[test]
    fn the_first_rule_has_the_highest_priority() {
        let web = Match {
            source: vec!["10.0.0.0/8".parse().unwrap()],
            protocol: vec![IpProto::TCP],
            destination_ports: vec![range(80, 81)],
            ..ipv4()
        };
        let flows = drops(&[web.clone(), ipv4(), web], 5).unwrap();
        assert_eq!(
            flows,
            [
                "priority=8,eth_type=0x0800,nw_src=10.0.0.0/8,nw_proto=6,tp_dst=0x50/0xfffe,actions=drop",
                "priority=7,eth_type=0x0800,actions=drop",
            ]
        );
    }

    #[test]
    fn only_protocols_with_ports_have_port_matches() {
        let of = |protocol: Vec<IpProto>| Match { protocol, source_ports: vec![range(9, 9)], ..ipv4() };
        assert_eq!(drops(&[of(vec![])], 0).unwrap().len(), 3);
        assert_eq!(
            drops(&[of(vec![IpProto::ICMP])], 0).unwrap(),
            ["priority=1,eth_type=0x0800,nw_proto=1,actions=drop"]
        );
    }

    #[test]
    fn an_unsupported_rule_is_named() {
        let dscp = Match { dscp: vec![netvm_model::Span::single(7)], ..ipv4() };
        assert_eq!(drops(&[ipv4(), dscp], 0), Err(NoFlow { rule: 1 }));
        assert_eq!(drops(&[Match::default()], 0), Err(NoFlow { rule: 0 }));
    }
}
