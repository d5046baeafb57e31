// SPDX-License-Identifier: Apache-2.0
//! The prefixes of NAT that a router takes for its own beside its addresses, so that it answers ARP and neighbour
//! discovery for them, and refuses what no connection has asked for. In: the NAT rules of a host. Out: prefixes of
//! local routes.

use std::collections::BTreeSet;

use netvm_wire::{IpNet, VlanId};

use super::Host;
use crate::router::nat::{AddressRange, NatAction, NatAddresses, NatRule};
use crate::router::{RouterConfig, RouterInterface};

impl Host {
    /// The prefixes of a router: its pools, and what others reach in a network of its interfaces by rules for
    /// destinations. The destinations of other rules may be hosts elsewhere, to which only some packets are translated.
    #[must_use]
    pub fn local_prefixes(&self, router: &RouterConfig) -> BTreeSet<IpNet> {
        let of_rules = self.nat.iter().flat_map(|rule| {
            if rule.matches.is_egress() { pools_of(rule, router) } else { published_by(rule, router) }
        });
        let nat64 = router.nat64.iter().flat_map(|nat64| networks_of(&nat64.addresses));
        let own = |net: &IpNet| {
            let mut addresses = router.interfaces.iter().flat_map(|interface| &interface.addresses);
            addresses.any(|own| AddressRange::from(*net) == AddressRange::single(own.address))
        };
        of_rules.chain(nat64).filter(|net| !own(net)).collect()
    }
}

/// What stands for sources that leave by the router's interfaces.
fn pools_of(rule: &NatRule, router: &RouterConfig) -> Vec<IpNet> {
    let vlans = &rule.matches.vlan;
    let leaves_by = |interface: &RouterInterface| {
        let vlan = interface.vlan.map_or(0, VlanId::get);
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
