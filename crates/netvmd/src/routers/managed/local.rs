//! The prefixes of NAT that a router takes for its own beside its addresses, so that its kernel answers ARP for them
//! and refuses what no connection has asked for. In: the NAT rules of a host. Out: prefixes of local routes.

use std::collections::BTreeSet;

use netvm_model::{AddressRange, Host, NatAction, NatAddresses, NatRule, RouterConfig, RouterInterface};
use netvm_wire::IpNet;

/// Those of a router: its pools, and what others reach in a network of its interfaces by rules for destinations. The
/// destinations of other rules may be hosts elsewhere, to which only some packets are translated.
pub(super) fn prefixes(host: &Host, router: &RouterConfig) -> BTreeSet<IpNet> {
    let of_rules = host.nat.iter().flat_map(|rule| {
        if rule.matches.is_egress() { pools_of(rule, router) } else { published_by(rule, router) }
    });
    let nat64 = router.nat64.iter().flat_map(|nat64| networks_of(&nat64.addresses));
    let own = |net: &IpNet| {
        let mut addresses = router.interfaces.iter().flat_map(|interface| &interface.addresses);
        addresses.any(|own| AddressRange::from(*net) == AddressRange::single(own.address))
    };
    of_rules.chain(nat64).filter(|net| !own(net)).collect()
}

/// What stands for sources that leave by the router's interfaces.
fn pools_of(rule: &NatRule, router: &RouterConfig) -> Vec<IpNet> {
    let vlans = &rule.matches.vlan;
    let leaves_by = |interface: &RouterInterface| {
        let vlan = interface.vlan.map_or(0, netvm_wire::VlanId::get);
        rule.matches.to.contains(&interface.port)
            && (vlans.is_empty() || vlans.iter().any(|span| span.contains(vlan)))
    };
    if !router.interfaces.iter().any(leaves_by) {
        return Vec::new();
    }
    match &rule.action {
        NatAction::Network(net) => vec![*net],
        NatAction::Source(source) => match &source.addresses {
            NatAddresses::Ranges(ranges) => networks_of(ranges).collect(),
            NatAddresses::Interface => Vec::new(),
        },
        NatAction::Keep | NatAction::Destination(_) => Vec::new(),
    }
}

fn networks_of(ranges: &[AddressRange]) -> impl Iterator<Item = IpNet> {
    ranges.iter().flat_map(|range| range.networks())
}

/// The destinations of packets that the router's interfaces receive, if hosts there ask for them by ARP.
fn published_by(rule: &NatRule, router: &RouterConfig) -> Vec<IpNet> {
    if !matches!(rule.action, NatAction::Destination(_) | NatAction::Network(_)) {
        return Vec::new();
    }
    let from = &rule.matches.from;
    let receive = router.interfaces.iter().filter(|one| from.is_empty() || from.contains(&one.port));
    let networks: Vec<IpNet> =
        receive.flat_map(|interface| interface.addresses.iter().map(|own| own.network())).collect();
    // A rule for a whole network of hosts is for some of their packets.
    let is_there = |net: &&IpNet| networks.iter().any(|on| on.contains_net(**net) && on != *net);
    rule.matches.destination.iter().filter(is_there).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_and_published_addresses_are_local() {
        let text = r#"
            [[port]]
            name = "lan"
            kind = "sink"
            forward = { router = "edge" }
            [[port]]
            name = "wan"
            kind = "sink"
            forward = { router = "edge" }
            [[port]]
            name = "dmz"
            kind = "sink"
            forward = { router = "other" }
            [[router]]
            name = "edge"
            track = true
            [[router.interface]]
            name = "lan"
            port = "lan"
            addresses = ["10.0.0.1/24"]
            [[router.interface]]
            name = "wan"
            port = "wan"
            addresses = ["203.0.113.2/24"]
            [[router]]
            name = "other"
            [[router.interface]]
            name = "dmz"
            port = "dmz"
            addresses = ["10.0.7.1/24"]
            [[nat]]
            to = "wan"
            match = { source = "10.0.0.0/25" }
            snat = "203.0.113.8-203.0.113.10"
            [[nat]]
            to = "wan"
            match = { source = "10.0.0.128/28" }
            network = "203.0.113.128/28"
            [[nat]]
            from = "wan"
            match = { destination = ["203.0.113.2", "203.0.113.7"], destination_ports = 80, protocol = "tcp" }
            dnat = "10.0.0.8"
            [[nat]]
            from = "lan"
            match = { destination = "198.51.100.53", destination_ports = 53, protocol = "udp" }
            dnat = "10.0.0.53"
        "#;
        let host =
            netvm_config::parse("nat", text).unwrap_or_else(|error| panic!("{}", error.render(false))).host;
        let found: Vec<String> = prefixes(&host, &host.routers[0]).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            ["203.0.113.7/32", "203.0.113.8/31", "203.0.113.10/32", "203.0.113.128/28"],
            "neither own addresses nor servers elsewhere"
        );
        assert!(prefixes(&host, &host.routers[1]).is_empty());
    }
}
