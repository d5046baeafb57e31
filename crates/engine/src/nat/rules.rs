// SPDX-License-Identifier: Apache-2.0
//! One NAT rule at one port.

use std::sync::Arc;

use netvm_conntrack::{Allocation, Filtering, Pool, Target};
use netvm_model::{
    AddressRange, Match, NatAction, NatAddresses, NatRule, NatTarget, PortAllocation, RouterId, SourceNat,
};
use netvm_wire::{Address, FlowKey, IpNet, PortRange, VlanId};

use super::SourceChoice;
use super::targets::Targets;
use crate::ids::PortId;
use crate::router::RouterPath;

/// A router's interface at a port: its tag, and an IPv4 and an IPv6 address that it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interface {
    vlan: Option<VlanId>,
    own: [Option<Address>; 2],
}

/// The interfaces of all routers on a port, or that have it as punt port.
pub(super) fn interfaces_on(routers: &[Option<Arc<RouterPath>>], port: PortId) -> Vec<Interface> {
    let all = routers.iter().flatten().flat_map(|router| router.interfaces.iter());
    let here = all.filter(|interface| interface.port == port);
    here.map(|interface| Interface { vlan: interface.vlan, own: interface.own }).collect()
}

/// All addresses of a router: of IPv6, the first of each interface.
pub(super) fn own_addresses(routers: &[Option<Arc<RouterPath>>], router: RouterId) -> Arc<[Address]> {
    let Some(router) = routers.get(router.index()).and_then(Option::as_ref) else { return Arc::default() };
    let of_interfaces = router.interfaces.iter().flat_map(|interface| interface.own).flatten();
    of_interfaces.chain(router.own.all().iter().map(|bits| Address::from_v4_bits(*bits))).collect()
}

/// Whether an action needs the address of an interface.
pub(super) fn names_interface(action: &NatAction) -> bool {
    match action {
        NatAction::Source(nat) => nat.addresses == NatAddresses::Interface,
        NatAction::Destination(nat) => nat.targets.iter().any(|target| target.address.is_none()),
        NatAction::Keep | NatAction::Network(_) => false,
    }
}

/// Which packets a rule takes.
#[derive(Debug)]
struct Takes {
    /// Its number in the configuration.
    number: u16,
    matches: Match,
    /// The tag of the interface whose addresses it uses; `None`: any.
    vlan: Option<Option<VlanId>>,
    /// The family; `None`: both.
    is_v4: Option<bool>,
}

impl Takes {
    fn new(number: u16, rule: &NatRule, interface: Option<&Interface>) -> Self {
        let vlan = interface.map(|interface| interface.vlan);
        Self { number, matches: rule.matches.clone(), vlan, is_v4: rule.action.is_v4() }
    }

    fn fits(&self, key: &FlowKey) -> bool {
        self.vlan.is_none_or(|vlan| vlan == key.vlan)
            && self.is_v4.is_none_or(|is_v4| is_v4 == key.source.is_v4())
            && self.matches.fits_key(key)
    }
}

/// A rule for destinations.
#[derive(Debug)]
pub(super) struct DestinationRule {
    takes: Takes,
    to: To,
    /// Addresses of the interface that receives the packets.
    own: [Option<Address>; 2],
    /// Only packets to these addresses.
    local: Option<Arc<[Address]>>,
}

#[derive(Debug)]
enum To {
    Itself,
    Targets(Targets),
    Network(IpNet),
}

/// What a rule knows of a router's own addresses.
pub(super) struct Own<'a> {
    /// The interface that receives the packets.
    pub(super) interface: Option<&'a Interface>,
    /// The addresses to which the rule is restricted.
    pub(super) local: Option<Arc<[Address]>>,
}

impl DestinationRule {
    /// A rule with its targets. `number`: its number in the configuration.
    pub(super) fn new(number: u16, rule: &NatRule, own: Own<'_>, targets: Targets) -> Option<Self> {
        let Own { interface, local } = own;
        let to = match &rule.action {
            NatAction::Keep => To::Itself,
            NatAction::Network(net) => To::Network(*net),
            NatAction::Destination(_) => To::Targets(targets),
            NatAction::Source(_) => return None,
        };
        let own = interface.map_or([None; 2], |interface| interface.own);
        Some(Self { takes: Takes::new(number, rule, interface), to, own, local })
    }

    /// Its number in the configuration.
    pub(super) const fn number(&self) -> u16 {
        self.takes.number
    }

    /// Whether a packet that it takes may lead to this address.
    pub(super) fn leads_to(&self, key: &FlowKey, address: Address) -> bool {
        match &self.to {
            To::Itself => false,
            To::Network(net) => at_same_place(*net, key.destination) == Some(address),
            To::Targets(targets) => {
                let own = self.own[family(key.destination)];
                targets.iter().any(|target| target.address.or(own) == Some(address))
            }
        }
    }

    pub(super) fn fits(&self, key: &FlowKey) -> bool {
        let is_local = |local: &Arc<[Address]>| local.contains(&key.destination);
        self.local.as_ref().is_none_or(is_local) && self.takes.fits(key)
    }

    /// Where a packet leads that it takes.
    pub(super) fn target(&self, key: &FlowKey, hash: u64) -> Option<Target> {
        match &self.to {
            To::Itself => None,
            To::Network(net) => Some(Target { address: at_same_place(*net, key.destination)?, port: None }),
            To::Targets(targets) => {
                let NatTarget { address, port, .. } = targets.choose(hash)?;
                let address = address.or(self.own[family(key.destination)])?;
                Some(Target { address, port })
            }
        }
    }
}

/// A rule for sources.
#[derive(Debug)]
pub(super) struct SourceRule {
    takes: Takes,
    from: From,
}

#[derive(Debug)]
enum From {
    Itself,
    /// By family.
    Pools([Box<[Pool]>; 2]),
    Network(IpNet),
}

impl SourceRule {
    /// `number`: its number in the configuration.
    pub(super) fn new(number: u16, rule: &NatRule, interface: Option<&Interface>) -> Option<Self> {
        let from = match &rule.action {
            NatAction::Keep => From::Itself,
            NatAction::Network(net) => From::Network(*net),
            NatAction::Source(nat) => From::Pools(pools_of(nat, interface)),
            NatAction::Destination(_) => return None,
        };
        Some(Self { takes: Takes::new(number, rule, interface), from })
    }

    /// Its number in the configuration.
    pub(super) const fn number(&self) -> u16 {
        self.takes.number
    }

    pub(super) fn fits(&self, from: PortId, key: &FlowKey) -> bool {
        let ports = &self.takes.matches.from;
        (ports.is_empty() || ports.contains(&from)) && self.takes.fits(key)
    }

    /// What stands for the source of a packet that it takes.
    pub(super) fn choice(&self, key: &FlowKey) -> SourceChoice<'_> {
        match &self.from {
            From::Itself => SourceChoice::Itself,
            From::Pools(pools) => SourceChoice::Of(&pools[family(key.source)]),
            From::Network(net) => {
                let Some(address) = at_same_place(*net, key.source) else { return SourceChoice::Itself };
                let port = PortRange::single(key.source_port);
                SourceChoice::OfOne(Pool::new(address, address, port))
            }
        }
    }
}

/// The pools of a rule, by family.
fn pools_of(nat: &SourceNat, interface: Option<&Interface>) -> [Box<[Pool]>; 2] {
    let allocation = match nat.allocation {
        PortAllocation::Any => Allocation::Any,
        PortAllocation::Blocks { size, most } => Allocation::Blocks { size, most },
        PortAllocation::Deterministic { inside } => Allocation::Deterministic { inside },
    };
    let filtering = filtering(nat.filtering);
    let pool = |range: &AddressRange| Pool {
        allocation,
        filtering,
        ..Pool::new(range.first, range.last, nat.ports)
    };
    let of_family = |n: usize| match &nat.addresses {
        NatAddresses::Ranges(ranges) => {
            ranges.iter().filter(|range| family(range.first) == n).map(pool).collect()
        }
        NatAddresses::Interface => {
            let own = interface.and_then(|interface| interface.own[n]);
            own.iter().map(|own| pool(&AddressRange { first: *own, last: *own })).collect()
        }
    };
    [of_family(0), of_family(1)]
}

pub(super) const fn filtering(filtering: netvm_model::Filtering) -> Filtering {
    match filtering {
        netvm_model::Filtering::AddressAndPort => Filtering::AddressAndPort,
        netvm_model::Filtering::AddressDependent => Filtering::AddressDependent,
        netvm_model::Filtering::EndpointIndependent => Filtering::EndpointIndependent,
    }
}

/// 0 for IPv4, 1 for IPv6.
const fn family(address: Address) -> usize {
    if address.is_v4() { 0 } else { 1 }
}

/// The address of a network at the same place as another address; `None` for another family.
fn at_same_place(net: IpNet, address: Address) -> Option<Address> {
    if net.is_v4() != address.is_v4() {
        return None;
    }
    let bits = if net.is_v4() { 32 } else { 128 } - u32::from(net.length());
    let host = 1u128.checked_shl(bits).map_or(u128::MAX, |bit| bit - 1);
    let network = Address::from(net.network()).v6_bits();
    Some(Address::from_v6_bits(network & !host | address.v6_bits() & host))
}
