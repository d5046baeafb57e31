// SPDX-License-Identifier: Apache-2.0
//! NAT rules as workers ask them, once a connection. In: the rules of the configuration, and the addresses of routers'
//! interfaces. Out: where the first packet of a connection leads, and what stands for its source.

mod health;
mod nat64;
mod reserved;
mod rules;
mod targets;

use std::collections::BTreeMap;
use std::sync::Arc;

use netvm_conntrack::{Connection, Pool, Reserved, Target, Tuple};
use netvm_model::{AddressRange, Host, NatRule, RouterConfig, RouterId};
use netvm_wire::{Address, EtherType, FlowKey, PortRange, VlanId};

pub(crate) use health::TargetHealth;
pub(crate) use nat64::Nat64Path;

use crate::ids::{PortId, put};
use crate::port_bits::PortBits;
use crate::router::RouterPath;
use rules::{DestinationRule, Interface, Own, SourceRule, interfaces_on, own_addresses};
use targets::Targets;

/// The ports that stand for sources behind the port that they send to.
const HAIRPIN_PORTS: PortRange = match PortRange::new(1024, u16::MAX) {
    Some(ports) => ports,
    None => PortRange::single(1024),
};

/// The NAT rules of all ports.
#[derive(Debug, Default)]
pub(crate) struct Nat {
    /// By the port that receives packets, in their order.
    destinations: Vec<Option<Vec<DestinationRule>>>,
    /// By the port that sends packets, in their order.
    sources: Vec<Option<Vec<SourceRule>>>,
    /// Ports to kernels of routers.
    punts: PortBits,
    /// NAT64 of the routers that have interfaces on a port, by port.
    nat64: Vec<Option<Arc<Nat64Path>>>,
    /// Ends that no pool gives away.
    reserved: Arc<Reserved>,
    /// IPv6 addresses for which routers answer neighbour discovery.
    advertised: BTreeMap<RouterId, Box<[AddressRange]>>,
}

/// What stands for the source of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceChoice<'a> {
    /// The source itself.
    Itself,
    /// An end of these pools; if there are none, the rule has no address of the packet's family.
    Of(&'a [Pool]),
    /// An end of this pool.
    OfOne(Pool),
}

impl SourceChoice<'_> {
    /// The pools; none: the source stays.
    pub(crate) const fn pools(&self) -> &[Pool] {
        match self {
            Self::Itself => &[],
            Self::Of(pools) => pools,
            Self::OfOne(pool) => std::slice::from_ref(pool),
        }
    }

    /// Whether an address may stand for the source.
    fn has(&self, address: Address) -> bool {
        self.pools().iter().any(|pool| (pool.first..=pool.last).contains(&address))
    }
}

impl Nat {
    /// The rules of a host; `None` if it has none. `routers` have the addresses of interfaces, by number; `health` has
    /// the targets that are down.
    pub(crate) fn of(
        host: &Host,
        routers: &[Option<Arc<RouterPath>>],
        health: &TargetHealth,
    ) -> Option<Self> {
        if !host.translates() {
            return None;
        }
        let rules = || (0_u16..).zip(&host.nat);
        let reserved = Arc::new(reserved::of(host, routers));
        let advertised = host.routers.iter().map(|router| (router.id, advertised(host, router))).collect();
        let mut nat = Self { nat64: nat64::by_port(host), reserved, advertised, ..Self::default() };
        for port in &host.ports {
            if host.punted_by(port.id).is_some() {
                nat.punts.add(port.id);
            }
            let interfaces = interfaces_on(routers, port.id);
            let on = |rule: &NatRule| each_interface(rule, &interfaces);
            let takes = |ports: &[PortId]| ports.is_empty() || ports.contains(&port.id);
            let received = rules().filter(|(_, rule)| !rule.matches.is_egress() && takes(&rule.matches.from));
            let received = received.flat_map(|(number, rule)| {
                let interfaces_of = on(rule);
                let local = rule.local_to.map(|router| own_addresses(routers, router));
                let targets = Targets::of(host, rule, health);
                let rule = move |interface| {
                    DestinationRule::new(
                        number,
                        rule,
                        Own { interface, local: local.clone() },
                        targets.clone(),
                    )
                };
                interfaces_of.into_iter().filter_map(rule)
            });
            let sent = rules().filter(|(_, rule)| rule.matches.to.contains(&port.id));
            let sent = sent.flat_map(|(number, rule)| {
                on(rule).into_iter().filter_map(move |interface| SourceRule::new(number, rule, interface))
            });
            let (received, sent): (Vec<_>, Vec<_>) = (received.collect(), sent.collect());
            put(&mut nat.destinations, port.id.index(), received);
            put(&mut nat.sources, port.id.index(), sent);
        }
        Some(nat)
    }

    /// Whether a port leads to the kernel of a router, which may send packets on: then their source is decided.
    pub(crate) fn is_to_kernel(&self, port: PortId) -> bool {
        self.punts.has(port)
    }

    /// The ends that no pool gives away.
    pub(crate) const fn reserved(&self) -> &Arc<Reserved> {
        &self.reserved
    }

    /// The IPv6 addresses for which a router answers neighbour discovery, beside those of its kernel.
    pub(crate) fn advertised(&self, router: RouterId) -> &[AddressRange] {
        self.advertised.get(&router).map_or(&[], |addresses| addresses)
    }

    /// NAT64 of the router that a port leads to.
    pub(crate) fn nat64(&self, port: PortId) -> Option<&Nat64Path> {
        self.nat64.get(port.index())?.as_deref()
    }

    /// Whether hosts outside are behind a port: sources of connections that leave by it are translated.
    pub(crate) fn is_outside(&self, port: PortId) -> bool {
        self.sources.get(port.index()).and_then(Option::as_ref).is_some_and(|rules| !rules.is_empty())
    }

    /// Where the first packet of a connection leads that `from` has received; `None`: where it says itself. `hash`: the
    /// same for all connections of its source.
    pub(crate) fn destination(&self, from: PortId, key: &FlowKey, hash: u64) -> Option<Target> {
        let rules = self.destinations.get(from.index())?.as_ref()?;
        rules.iter().find(|rule| rule.fits(key))?.target(key, hash)
    }

    /// The number of the rule by which a connection leads to another destination, if that is still what it says.
    pub(crate) fn destination_rule(&self, of: &Connection, vlan: Option<VlanId>) -> Option<u16> {
        let rules = self.destinations.get(usize::from(of.from))?.as_ref()?;
        let key = FlowKey { vlan, ..key_of(of.original()) };
        let rule = rules.iter().find(|rule| rule.fits(&key))?;
        rule.leads_to(&key, of.reply().source).then(|| rule.number())
    }

    /// The number of the rule by which a connection that leaves by `out` has its source, if that is still what it says.
    pub(crate) fn source_rule(&self, out: PortId, of: &Connection, vlan: Option<VlanId>) -> Option<u16> {
        let rules = self.sources.get(out.index())?.as_ref()?;
        let (original, reply) = (of.original(), of.reply());
        let (destination, destination_port) = (reply.source, reply.source_port);
        let key = FlowKey { vlan, destination, destination_port, ..key_of(original) };
        let rule = rules.iter().find(|rule| rule.fits(PortId(of.from), &key))?;
        rule.choice(&key).has(reply.destination).then(|| rule.number())
    }

    /// What stands for the source of a connection whose first packet leaves by `out`.
    ///
    /// Without a rule, a connection to a published end that goes back to where it came from gets that end as its
    /// source, so that its answers come back by netvm (hairpinning, RFC 4787 REQ-9).
    pub(crate) fn source(&self, out: PortId, of: &Connection, key: &FlowKey) -> SourceChoice<'_> {
        let from = PortId(of.from);
        let rules = self.sources.get(out.index()).and_then(Option::as_ref);
        let rule = rules.and_then(|rules| rules.iter().find(|rule| rule.fits(from, key)));
        match rule {
            Some(rule) => rule.choice(key),
            None if from == out && of.has_other_destination() => {
                let address = of.original().destination;
                SourceChoice::OfOne(Pool::new(address, address, HAIRPIN_PORTS))
            }
            None => SourceChoice::Itself,
        }
    }
}

/// Header fields of the packets of a connection, as far as it has them.
fn key_of(tuple: &Tuple) -> FlowKey {
    let Tuple { source, destination, source_port, destination_port, protocol, .. } = *tuple;
    let ether_type = if source.is_v4() { EtherType::IPV4 } else { EtherType::IPV6 };
    FlowKey { source, destination, source_port, destination_port, protocol, ether_type, ..FlowKey::EMPTY }
}

/// The IPv6 addresses of NAT that a router takes for its own.
fn advertised(host: &Host, router: &RouterConfig) -> Box<[AddressRange]> {
    let local = host.local_prefixes(router);
    local.into_iter().filter(|net| !net.is_v4()).map(AddressRange::from).collect()
}

/// The interfaces for which a rule differs at a port: those whose addresses it names, else none.
fn each_interface<'a>(rule: &NatRule, interfaces: &'a [Interface]) -> Vec<Option<&'a Interface>> {
    if rules::names_interface(&rule.action) { interfaces.iter().map(Some).collect() } else { vec![None] }
}
