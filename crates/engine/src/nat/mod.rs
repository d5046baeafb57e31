//! NAT rules as workers ask them, once a connection. In: the rules of the configuration, and the addresses of routers'
//! interfaces. Out: where the first packet of a connection leads, and what stands for its source.

mod nat64;
mod rules;

use std::sync::Arc;

use netvm_conntrack::{Connection, Pool, Target};
use netvm_model::{Host, NatRule};
use netvm_wire::{FlowKey, PortRange};

pub(crate) use nat64::Nat64Path;

use crate::ids::{PortId, put};
use crate::port_bits::PortBits;
use crate::router::RouterPath;
use rules::{DestinationRule, Interface, SourceRule, interfaces_on, own_addresses};

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
}

impl Nat {
    /// The rules of a host; `None` if it has none. `routers` have the addresses of interfaces, by number.
    pub(crate) fn of(host: &Host, routers: &[Option<Arc<RouterPath>>]) -> Option<Self> {
        if !host.translates() {
            return None;
        }
        let mut nat = Self { nat64: nat64::by_port(host), ..Self::default() };
        for port in &host.ports {
            if host.punted_by(port.id).is_some() {
                nat.punts.add(port.id);
            }
            let interfaces = interfaces_on(routers, port.id);
            let on = |rule: &NatRule| each_interface(rule, &interfaces);
            let takes = |ports: &[PortId]| ports.is_empty() || ports.contains(&port.id);
            let received =
                host.nat.iter().filter(|rule| !rule.matches.is_egress() && takes(&rule.matches.from));
            let received = received.flat_map(|rule| {
                let interfaces_of = on(rule);
                let local = rule.local_to.map(|router| own_addresses(routers, router));
                let rule = move |interface| DestinationRule::new(rule, interface, local.clone());
                interfaces_of.into_iter().filter_map(rule)
            });
            let sent = host.nat.iter().filter(|rule| rule.matches.to.contains(&port.id));
            let sent = sent.flat_map(|rule| {
                on(rule).into_iter().filter_map(|interface| SourceRule::new(rule, interface))
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

/// The interfaces for which a rule differs at a port: those whose addresses it names, else none.
fn each_interface<'a>(rule: &NatRule, interfaces: &'a [Interface]) -> Vec<Option<&'a Interface>> {
    if rules::names_interface(&rule.action) { interfaces.iter().map(Some).collect() } else { vec![None] }
}
