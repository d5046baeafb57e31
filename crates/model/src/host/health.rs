// SPDX-License-Identifier: Apache-2.0
//! Which targets of NAT rules netvmd checks, and from where. In: the rules with `health`. Out: each check once, however
//! many rules lead to its target.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use netvm_ids::RouterId;

use super::Host;
use crate::router::RouterConfig;
use crate::router::nat::{HealthCheck, NatAction, NatRule, NatTarget};

/// A target that netvmd checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckedTarget {
    /// The router from whose namespace netvmd connects; `None`: from netvmd's own.
    pub router: Option<RouterId>,
    /// The target.
    pub address: SocketAddr,
    /// How often it connects, and when the target is unhealthy.
    pub check: HealthCheck,
}

impl Host {
    /// The targets that netvmd checks, each with the rules that lead to it: their names, or their places in the file
    /// from 1.
    #[must_use]
    pub fn checked_targets(&self) -> BTreeMap<CheckedTarget, Vec<String>> {
        let mut checked: BTreeMap<CheckedTarget, Vec<String>> = BTreeMap::new();
        for (n, rule) in self.nat.iter().enumerate() {
            let NatAction::Destination(destination) = &rule.action else { continue };
            let name = if rule.name.is_empty() { (n + 1).to_string() } else { rule.name.clone() };
            for target in destination.targets.iter().filter_map(|target| self.checked_target(rule, target)) {
                checked.entry(target).or_default().push(name.clone());
            }
        }
        checked
    }

    /// How a target of a rule is checked; `None`: it always counts as healthy.
    #[must_use]
    pub fn checked_target(&self, rule: &NatRule, target: &NatTarget) -> Option<CheckedTarget> {
        let NatAction::Destination(destination) = &rule.action else { return None };
        let (check, address) = (destination.health?, target.address?.to_ip());
        let router = self.router_to(rule, address).map(|router| router.id);
        Some(CheckedTarget { router, address: SocketAddr::new(address, target.port?), check })
    }

    /// The router by which packets of a rule reach an address: one in its network, else one that receives them, of
    /// these the first.
    fn router_to(&self, rule: &NatRule, address: std::net::IpAddr) -> Option<&RouterConfig> {
        let from = &rule.matches.from;
        let receives = |router: &RouterConfig| router.ports().any(|port| from.contains(&port));
        let is_there = |router: &RouterConfig| {
            let mut own = router.interfaces.iter().flat_map(|interface| &interface.addresses);
            own.any(|own| own.has_in_network(address))
        };
        let rank = |router: &&RouterConfig| (!is_there(router), !(from.is_empty() || receives(router)));
        let fit = |router: &&RouterConfig| is_there(router) || from.is_empty() || receives(router);
        self.routers.iter().filter(fit).min_by_key(rank)
    }
}

#[cfg(test)]
mod tests {
    use netvm_ids::PortId;
    use netvm_policy::Match;
    use netvm_wire::MacAddr;

    use super::*;
    use crate::router::nat::DestinationNat;
    use crate::router::{InterfaceAddress, RouterInterface};

    /// A router with an interface of its number on the port of its number.
    fn router(id: u16, address: &str) -> RouterConfig {
        let address: InterfaceAddress = address.parse().unwrap();
        let interface = RouterInterface {
            name: "eth0".to_owned(),
            port: PortId(id),
            vlan: None,
            mac: MacAddr([2; 6]),
            addresses: vec![address],
            punt_rate: 1,
            urpf: None,
            snat: None,
            punt: PortId(100 + id),
            host_end: String::new(),
        };
        RouterConfig {
            id: RouterId(id),
            name: format!("r{id}"),
            interfaces: vec![interface],
            routes: Vec::new(),
            track: true,
            nat64: None,
            weight: 1,
            reserve: 0,
        }
    }

    fn rule(name: &str, from: &[u16], targets: &[&str]) -> NatRule {
        let target = |text: &&str| {
            let end: SocketAddr = text.parse().unwrap();
            NatTarget { address: Some(end.ip().into()), port: Some(end.port()), weight: 1 }
        };
        let targets = targets.iter().map(target).collect();
        let matches = Match { from: from.iter().copied().map(PortId).collect(), ..Match::default() };
        let health = Some(HealthCheck::default());
        let action = NatAction::Destination(DestinationNat { targets, health });
        NatRule { name: name.to_owned(), matches, local_to: None, action }
    }

    #[test]
    fn a_target_is_checked_once_from_the_router_that_reaches_it() {
        let mut host =
            Host { routers: vec![router(1, "10.1.0.1/24"), router(2, "10.2.0.1/24")], ..Host::default() };
        host.nat = vec![
            rule("web", &[1], &["10.1.0.2:80", "10.2.0.2:80"]),
            rule("", &[], &["10.1.0.2:80"]),
            rule("far", &[2], &["198.51.100.1:80"]),
            rule("bridge", &[7], &["198.51.100.2:80"]),
        ];
        let found: Vec<String> = host
            .checked_targets()
            .iter()
            .map(|(target, rules)| {
                let router = target.router.map_or_else(|| "-".to_owned(), |id| id.0.to_string());
                format!("{router} {} {}", target.address, rules.join(","))
            })
            .collect();
        let expected =
            ["- 198.51.100.2:80 bridge", "1 10.1.0.2:80 web,2", "2 10.2.0.2:80 web", "2 198.51.100.1:80 far"];
        assert_eq!(found, expected, "by the network first, then by the port, else from the host");
        host.nat[0].action = NatAction::Destination(DestinationNat::default());
        assert_eq!(host.checked_targets().len(), 3);
    }
}
