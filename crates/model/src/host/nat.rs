// SPDX-License-Identifier: Apache-2.0
//! The NAT rules that published ports and routers' interfaces imply.

use std::collections::BTreeSet;
use std::net::IpAddr;

use netvm_ids::PortId;
use netvm_policy::{Match, Span};
use netvm_wire::{EtherType, IpNet, Ipv4Net, Ipv6Net, VlanId};

use super::Host;
use crate::port::PortConfig;
use crate::router::nat::{DestinationNat, Filtering, NatAction, NatAddresses, NatRule, NatTarget, SourceNat};
use crate::router::publish::Publish;
use crate::router::{InterfaceAddress, RouterConfig, RouterInterface};

/// How the container of a port is reached from outside of its network.
#[derive(Clone, Copy, Debug)]
pub struct Reach<'a> {
    /// An address of the container.
    pub address: InterfaceAddress,
    /// The router in its network.
    pub router: &'a RouterConfig,
    /// The interface there.
    pub interface: &'a RouterInterface,
}

impl Host {
    /// Adds the rules that ports and routers imply after those of the file: published ports, then the sources of
    /// published ports' own networks, then `snat` of interfaces.
    pub fn add_implied_nat(&mut self) {
        let mut published = Vec::new();
        let mut hairpins = Vec::new();
        for port in &self.ports {
            for publish in &port.policy.publish {
                for reach in self.reaches_for(port, publish) {
                    published.extend(destination_rules(&reach, port, publish));
                    hairpins.push(hairpin_rule(&reach, port, publish));
                }
            }
        }
        let interfaces = self.routers.iter().flat_map(|router| {
            router.interfaces.iter().filter_map(move |interface| interface_rule(router, interface))
        });
        let implied: Vec<NatRule> = published.into_iter().chain(hairpins).chain(interfaces).collect();
        self.nat.extend(implied);
    }

    /// How the container of a port is reached, for each of its addresses that has a router in its network. If several
    /// have, it is the one whose interface has the container's port, or the first.
    pub fn reaches<'a>(&'a self, port: &'a PortConfig) -> impl Iterator<Item = Reach<'a>> {
        port.kind.info().addresses.iter().filter_map(|address| {
            let all = self.routers.iter().flat_map(|router| {
                router.interfaces.iter().map(move |interface| Reach { address: *address, router, interface })
            });
            let is_there = |reach: &Reach<'_>| {
                let has_it = |own: &InterfaceAddress| own.has_in_network(address.address);
                reach.interface.addresses.iter().any(has_it)
            };
            all.filter(is_there).min_by_key(|reach| reach.interface.port != port.id)
        })
    }

    /// Of these, those by which a published port is reached: routers that translate sources, one for each family.
    pub fn reaches_for<'a>(
        &'a self,
        port: &'a PortConfig,
        publish: &Publish,
    ) -> impl Iterator<Item = Reach<'a>> + use<'a> {
        let address = publish.address;
        let mut families = BTreeSet::new();
        let is_of_family = move |reach: &Reach<'a>| {
            let is_v4 = reach.address.address.is_ipv4();
            address.is_none_or(|address| address.is_ipv4() == is_v4)
        };
        let fits = move |reach: &Reach<'a>| {
            is_of_family(reach)
                && reach.router.translates_sources()
                && (address.is_some() || !Outside::of(reach).is_empty())
        };
        self.reaches(port).filter(fits).filter(move |reach| families.insert(reach.address.address.is_ipv4()))
    }

    /// Whether some rule, or a router's NAT64, translates addresses.
    #[must_use]
    pub fn translates(&self) -> bool {
        !self.nat.is_empty() || self.routers.iter().any(|router| router.nat64.is_some())
    }

    /// Whether a pool lets in whom an end inside has sent to, from any port.
    #[must_use]
    pub fn filters_by_address(&self) -> bool {
        let of_rule = |rule: &NatRule| match &rule.action {
            NatAction::Source(source) => Some(source.filtering),
            _ => None,
        };
        let of_routers = self.routers.iter().filter_map(|router| router.nat64.as_ref());
        let of_routers = of_routers.map(|nat64| nat64.filtering);
        let mut all = self.nat.iter().filter_map(of_rule).chain(of_routers);
        all.any(|filtering| filtering == Filtering::AddressDependent)
    }

    /// Most ends inside with a mapping, for each worker: as configured, else as many as connections; 0 if nothing
    /// translates addresses.
    #[must_use]
    pub fn mappings(&self) -> u32 {
        let config = &self.engine.connections;
        if self.translates() { config.mappings.unwrap_or(config.limit) } else { 0 }
    }
}

/// Addresses of a router that stand for it outside.
struct Outside {
    networks: Vec<IpNet>,
    /// Whichever it has.
    is_any: bool,
}

impl Outside {
    /// Those of the family of a container's address: of interfaces that masquerade their own, else their pools.
    /// Interfaces masquerade IPv4.
    fn of(reach: &Reach<'_>) -> Self {
        let is_v4 = reach.address.address.is_ipv4();
        let mut outside = Self { networks: Vec::new(), is_any: false };
        for interface in &reach.router.interfaces {
            match interface.snat.as_ref().map(|snat| &snat.addresses) {
                Some(NatAddresses::Interface) if is_v4 => {
                    let own = interface.addresses.iter().map(|own| own.address).filter(IpAddr::is_ipv4);
                    let before = outside.networks.len();
                    outside.networks.extend(own.map(host_network));
                    outside.is_any |= outside.networks.len() == before;
                }
                Some(NatAddresses::Ranges(ranges)) => {
                    let ranges = ranges.iter().filter(|range| range.first.is_v4() == is_v4);
                    outside.networks.extend(ranges.flat_map(|range| range.networks()));
                }
                _ => {}
            }
        }
        outside
    }

    const fn is_empty(&self) -> bool {
        self.networks.is_empty() && !self.is_any
    }
}

/// The network of one address.
fn host_network(address: IpAddr) -> IpNet {
    match address {
        IpAddr::V4(address) => Ipv4Net::host(address).into(),
        IpAddr::V6(address) => Ipv6Net::host(address).into(),
    }
}

/// What implies a published port.
fn name_of(port: &PortConfig, publish: &Publish) -> String {
    format!("port {} publishes {publish}", port.name)
}

/// Packets that any port of the router receives lead to the container.
fn destination_rules(reach: &Reach<'_>, port: &PortConfig, publish: &Publish) -> Vec<NatRule> {
    let outside = match publish.address {
        Some(address) => Outside { networks: vec![host_network(address)], is_any: false },
        None => Outside::of(reach),
    };
    let from: BTreeSet<PortId> = reach.router.interfaces.iter().map(|interface| interface.port).collect();
    let mut rules = Vec::new();
    for (ports, inside) in publish.pairs() {
        let target = NatTarget { address: Some(reach.address.address.into()), port: inside, weight: 1 };
        let rule = |destination: &[IpNet]| NatRule {
            name: name_of(port, publish),
            matches: Match {
                from: from.iter().copied().collect(),
                destination: destination.to_vec(),
                protocol: vec![publish.protocol],
                destination_ports: vec![ports],
                ..Match::default()
            },
            local_to: destination.is_empty().then_some(reach.router.id),
            action: NatAction::Destination(DestinationNat { targets: vec![target], health: None }),
        };
        if !outside.networks.is_empty() {
            rules.push(rule(&outside.networks));
        }
        if outside.is_any {
            rules.push(rule(&[]));
        }
    }
    rules
}

/// Clients in the container's own network get its answers from the router: directly, they would not know them.
fn hairpin_rule(reach: &Reach<'_>, port: &PortConfig, publish: &Publish) -> NatRule {
    let Reach { address, interface, .. } = reach;
    let own = interface.addresses.iter().filter(|own| own.has_in_network(address.address));
    NatRule {
        name: format!("{} to its own network", name_of(port, publish)),
        matches: Match {
            source: own.map(|own| own.network()).collect(),
            destination: vec![host_network(address.address)],
            protocol: vec![publish.protocol],
            destination_ports: vec![publish.inside],
            ..leaving(interface)
        },
        local_to: None,
        action: NatAction::Source(SourceNat::default()),
    }
}

/// `snat` of an interface. It masquerades IPv4, as IPv6 hosts have addresses of their own.
fn interface_rule(router: &RouterConfig, interface: &RouterInterface) -> Option<NatRule> {
    let source = interface.snat.as_ref()?;
    let family = if source.is_v4().unwrap_or(true) { EtherType::IPV4 } else { EtherType::IPV6 };
    Some(NatRule {
        name: format!("router {}, interface {}", router.name, interface.name),
        matches: Match { ether_type: vec![family], ..leaving(interface) },
        local_to: None,
        action: NatAction::Source(source.clone()),
    })
}

/// All packets that leave by an interface.
fn leaving(interface: &RouterInterface) -> Match {
    let vlan = interface.vlan.map_or(0, VlanId::get);
    Match { to: vec![interface.port], vlan: vec![Span::single(vlan)], ..Match::default() }
}
