// SPDX-License-Identifier: Apache-2.0
//! The ends that pools do not give away, since rules for destinations lead them to services: published ports, and other
//! rules that name ports.

use std::sync::Arc;

use netvm_conntrack::{Reserved, ServicePorts};
use netvm_model::{AddressRange, Host, NatAction, NatRule, POOL_PORTS};
use netvm_wire::{Address, IpProto, PortRange};

use super::rules::own_addresses;
use crate::router::RouterPath;

/// All addresses; IPv4 ones are among those of IPv6.
const EVERYTHING: AddressRange =
    AddressRange { first: Address::UNSPECIFIED, last: Address::from_v6_bits(u128::MAX) };

/// Those of a host's rules. A rule without a destination counts if it is for packets that come from where sources leave
/// translated: others, such as one that leads all queries of hosts inside to a resolver, concern no address outside.
pub(super) fn of(host: &Host, routers: &[Option<Arc<RouterPath>>]) -> Reserved {
    let rules = host.nat.iter().filter(|rule| !rule.matches.is_egress());
    rules.filter(|rule| leads_to_service(rule)).flat_map(|rule| ends_of(host, rule, routers)).collect()
}

fn leads_to_service(rule: &NatRule) -> bool {
    matches!(rule.action, NatAction::Destination(_)) && !rule.matches.destination_ports.is_empty()
}

fn ends_of(host: &Host, rule: &NatRule, routers: &[Option<Arc<RouterPath>>]) -> Vec<ServicePorts> {
    let matches = &rule.matches;
    let mut ranges: Vec<AddressRange> = matches.destination.iter().copied().map(AddressRange::from).collect();
    if let Some(router) = rule.local_to {
        let own = own_addresses(routers, router);
        ranges.extend(own.iter().map(|own| AddressRange { first: *own, last: *own }));
    } else if ranges.is_empty() && is_from_outside(host, rule) {
        ranges.push(EVERYTHING);
    }
    let protocols = match &matches.protocol[..] {
        [] => &[IpProto::TCP, IpProto::UDP][..],
        some => some,
    };
    let ports = matches.destination_ports.iter().filter(|ports| !takes_all(**ports));
    let ports: Vec<PortRange> = ports.copied().collect();
    let each = ranges.iter().flat_map(|range| protocols.iter().map(move |protocol| (*range, *protocol)));
    let ends = each.flat_map(|(AddressRange { first, last }, protocol)| {
        ports.iter().map(move |ports| ServicePorts { first, last, protocol, ports: *ports })
    });
    ends.collect()
}

/// A rule for all ports leaves those to others that a mapping has: without them, pools of its addresses have none.
fn takes_all(ports: PortRange) -> bool {
    let (first, last) = POOL_PORTS;
    ports.contains(first) && ports.contains(last)
}

/// Whether a rule may be for packets that come from hosts outside.
fn is_from_outside(host: &Host, rule: &NatRule) -> bool {
    let from = &rule.matches.from;
    let leaves_by = |sender: &NatRule| {
        let to = &sender.matches.to;
        sender.matches.is_egress() && (from.is_empty() || to.iter().any(|port| from.contains(port)))
    };
    host.nat.iter().any(leaves_by)
}
