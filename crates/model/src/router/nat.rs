// SPDX-License-Identifier: Apache-2.0
//! Network address translation: which connections are translated, and to what.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use netvm_ids::RouterId;
use netvm_policy::Match;
use netvm_wire::{Address, IpNet, Ipv6Net, NetError, PortRange};

use crate::words::words;

/// A NAT rule. It is asked once a connection, for the first packet: the first rule of its side that fits decides.
///
/// A rule with `matches.to` is for packets that leave by these ports, and translates sources. A rule without is for
/// packets that `matches.from` receive, and translates destinations, before the other rules of the port see them. A
/// rule whose addresses are of one family takes packets of that family only ([`NatAction::is_v4`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatRule {
    /// Its name, or empty; of a rule that a router or a port implies, what implies it, in several words.
    pub name: String,
    /// The first packets that it takes.
    pub matches: Match,
    /// Only packets to an address that this router itself has, whatever it is (as with nft's `fib daddr type local`).
    pub local_to: Option<RouterId>,
    /// What it does.
    pub action: NatAction,
}

impl NatRule {
    /// Whether a port or a router implies it. Names in files have no blanks.
    #[must_use]
    pub fn is_implied(&self) -> bool {
        self.name.contains(' ')
    }
}

/// What a NAT rule does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NatAction {
    /// Nothing, and later rules are not asked.
    #[default]
    Keep,
    /// Another source.
    Source(SourceNat),
    /// Another destination.
    Destination(DestinationNat),
    /// 1:1: the address at the same place of this network, with the same ports.
    Network(IpNet),
}

impl NatAction {
    /// Whether it takes IPv4 or IPv6 packets only; `None`: both.
    #[must_use]
    pub fn is_v4(&self) -> Option<bool> {
        match self {
            Self::Keep => None,
            Self::Source(source) => source.is_v4(),
            Self::Destination(destination) => {
                destination.targets.iter().find_map(|target| target.address).map(Address::is_v4)
            }
            Self::Network(network) => Some(network.is_v4()),
        }
    }
}

/// Ports of pools by default: those below 1024 are of services.
pub const POOL_PORTS: (u16, u16) = (1024, u16::MAX);

/// What stands for the sources of connections. An end inside has the same end outside for all destinations (RFC 4787
/// REQ-1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceNat {
    /// The addresses.
    pub addresses: NatAddresses,
    /// Their ports, and the identifiers of ICMP queries.
    pub ports: PortRange,
    /// Who gets which ports.
    pub allocation: PortAllocation,
    /// Who may send to an end outside.
    pub filtering: Filtering,
}

impl Default for SourceNat {
    /// Masquerading.
    fn default() -> Self {
        Self {
            addresses: NatAddresses::default(),
            ports: pool_ports(),
            allocation: PortAllocation::default(),
            filtering: Filtering::default(),
        }
    }
}

/// [`POOL_PORTS`].
#[must_use]
pub fn pool_ports() -> PortRange {
    PortRange::new(POOL_PORTS.0, POOL_PORTS.1).unwrap_or(PortRange::ANY)
}

impl SourceNat {
    /// Whether it takes IPv4 or IPv6 packets only; `None`: both.
    #[must_use]
    pub fn is_v4(&self) -> Option<bool> {
        match &self.addresses {
            NatAddresses::Interface => None,
            NatAddresses::Ranges(ranges) => ranges.first().map(|range| range.first.is_v4()),
        }
    }
}

/// The addresses that stand for sources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NatAddresses {
    /// Masquerading: the address of the router's interface at the port that packets leave by, whatever it is.
    #[default]
    Interface,
    /// All of these, of one family.
    Ranges(Vec<AddressRange>),
}

/// Addresses from one to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    /// The first.
    pub first: Address,
    /// The last, of the same family.
    pub last: Address,
}

/// Why a text is not a range of addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseAddressRangeError {
    /// Not an address, two, or a network.
    #[error(
        "write an address, a range such as \"203.0.113.8-203.0.113.15\", or a network such as \"203.0.113.0/28\""
    )]
    Syntax,
    /// A network that is none.
    #[error("{0}")]
    Network(#[from] NetError),
    /// Ends of two families.
    #[error("write two addresses of the same family")]
    Families,
    /// No address.
    #[error("the range is empty: write {1}-{0}")]
    Backwards(IpAddr, IpAddr),
}

impl AddressRange {
    /// One address.
    #[must_use]
    pub fn single(address: impl Into<Address>) -> Self {
        let address = address.into();
        Self { first: address, last: address }
    }

    /// Whether the ranges have an address in common.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Whether its addresses are of IPv4.
    #[must_use]
    pub const fn is_v4(self) -> bool {
        self.first.is_v4()
    }

    /// How many addresses it has, at most 2^128 - 1.
    #[must_use]
    pub const fn count(self) -> u128 {
        (self.last.v6_bits() - self.first.v6_bits()).saturating_add(1)
    }

    /// The fewest networks that have its addresses and no others, in their order.
    #[must_use]
    pub fn networks(self) -> Vec<IpNet> {
        let (mut next, last) = (self.first.v6_bits(), self.last.v6_bits());
        let length_of_all = if self.first.is_v4() { 96 } else { 0 };
        let mut networks = Vec::new();
        loop {
            // As many low bits as are free in the first address, and as the rest of the range has room for.
            let room = (last - next).checked_add(1).map_or(128, u128::ilog2);
            let bits = next.trailing_zeros().min(room).min(128 - length_of_all);
            let length = (128 - length_of_all - bits) as u8;
            networks.extend(IpNet::new(Address::from_v6_bits(next).to_ip(), length));
            match 1u128.checked_shl(bits).and_then(|size| next.checked_add(size)) {
                Some(after) if after <= last => next = after,
                _ => return networks,
            }
        }
    }
}

impl From<IpNet> for AddressRange {
    fn from(net: IpNet) -> Self {
        match net {
            IpNet::V4(net) => Self { first: net.network().into(), last: net.last().into() },
            IpNet::V6(net) => Self { first: net.network().into(), last: net.last().into() },
        }
    }
}

impl FromStr for AddressRange {
    type Err = ParseAddressRangeError;

    /// `203.0.113.8`, `203.0.113.8-203.0.113.15`, `203.0.113.0/28`, and the same of IPv6.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        use ParseAddressRangeError::{Backwards, Families, Syntax};
        if text.contains('/') {
            return match text.parse::<IpNet>() {
                Err(NetError::Syntax(_)) => Err(Syntax),
                net => Ok(net?.into()),
            };
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let address = |text: &str| text.trim().parse::<IpAddr>().map_err(|_| Syntax);
        let (first, last) = (address(first)?, address(last)?);
        if first.is_ipv4() != last.is_ipv4() {
            return Err(Families);
        }
        if first > last {
            Err(Backwards(first, last))
        } else {
            Ok(Self { first: first.into(), last: last.into() })
        }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { self.first.fmt(f) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

/// Who gets which ports of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum PortAllocation {
    /// Each end inside gets a port: its own, if that is free.
    #[default]
    Any,
    /// Each address inside gets blocks of ports, so that a log needs a line for each block only.
    Blocks {
        /// Ports of a block.
        size: u16,
        /// Most blocks of an address inside.
        most: u16,
    },
    /// The address and the ports are computed from the address inside (RFC 7422), so that no log is needed.
    Deterministic {
        /// The addresses inside.
        inside: IpNet,
    },
}

/// Which packets from outside reach an end inside through its mapping (RFC 4787 section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Filtering {
    /// Those of the ends that it has sent to.
    #[default]
    AddressAndPort,
    /// Those of the addresses that it has sent to, from any port.
    AddressDependent,
    /// All.
    EndpointIndependent,
}
words!(Filtering: "address-and-port" => AddressAndPort, "address-dependent" => AddressDependent,
    "endpoint-independent" => EndpointIndependent);

/// What connections lead to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DestinationNat {
    /// At least one. All connections of a source lead to the same one, while it is healthy; without a healthy one, as
    /// if all were.
    pub targets: Vec<NatTarget>,
    /// How netvmd finds out whether a target is healthy; `None`: it always is.
    pub health: Option<HealthCheck>,
}

/// A destination in place of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatTarget {
    /// Its address; `None`: that of the interface that receives the packet (as with iptables' `REDIRECT`).
    pub address: Option<Address>,
    /// Its port; `None`: the packet's.
    pub port: Option<u16>,
    /// Its share of the sources, relative to those of the others.
    pub weight: u16,
}

impl Default for NatTarget {
    /// The interface's own address, the packet's port.
    fn default() -> Self {
        Self { address: None, port: None, weight: 1 }
    }
}

/// A TCP connection to each target, from the router's namespace, tells whether it is healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HealthCheck {
    /// Seconds between two.
    pub interval: u16,
    /// Failures in a row after which a target gets no more connections.
    pub failures: u16,
}

impl Default for HealthCheck {
    fn default() -> Self {
        Self { interval: 5, failures: 3 }
    }
}

/// Stateful NAT64 of a router (RFC 6146): its IPv6 hosts reach IPv4 hosts by addresses with this prefix (RFC 6052).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nat64 {
    /// The prefix, of 32, 40, 48, 56, 64 or 96 bits.
    pub prefix: IpNet,
    /// The IPv4 addresses that stand for the IPv6 hosts.
    pub addresses: Vec<AddressRange>,
    /// Their ports.
    pub ports: PortRange,
    /// Who may send to an IPv6 host by its end outside.
    pub filtering: Filtering,
}

impl Default for Nat64 {
    /// The well-known prefix, without addresses.
    fn default() -> Self {
        let prefix = Ipv6Net::containing(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96);
        Self {
            prefix: prefix.unwrap_or(Ipv6Net::ALL).into(),
            addresses: Vec::new(),
            ports: pool_ports(),
            filtering: Filtering::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_texts_and_networks() {
        for (text, networks) in [
            ("203.0.113.8", "203.0.113.8/32"),
            ("203.0.113.8-203.0.113.15", "203.0.113.8/29"),
            ("10.0.0.1-10.0.0.6", "10.0.0.1/32 10.0.0.2/31 10.0.0.4/31 10.0.0.6/32"),
            ("0.0.0.0-255.255.255.255", "0.0.0.0/0"),
            ("::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::/0"),
            ("2001:db8::1-2001:db8::2", "2001:db8::1/128 2001:db8::2/128"),
        ] {
            let range: AddressRange = text.parse().unwrap();
            assert_eq!(range.to_string(), text);
            let found: Vec<String> = range.networks().iter().map(ToString::to_string).collect();
            assert_eq!(found.join(" "), networks);
        }
        let range: AddressRange = "203.0.113.0/28".parse().unwrap();
        assert_eq!((range.to_string(), range.count()), ("203.0.113.0-203.0.113.15".to_owned(), 16));
        assert_eq!("::/0".parse::<AddressRange>().unwrap().count(), u128::MAX);
        assert!(range.overlaps(AddressRange::single("203.0.113.15".parse::<IpAddr>().unwrap())));
        for (text, remedy) in [
            ("203.0.113", "write an address, a range"),
            ("203.0.113.1/28", "write 203.0.113.0/28"),
            ("203.0.113/28", "write an address, a range"),
            ("203.0.113.1-2001:db8::1", "of the same family"),
            ("203.0.113.9-203.0.113.8", "write 203.0.113.8-203.0.113.9"),
        ] {
            let error = text.parse::<AddressRange>().unwrap_err().to_string();
            assert!(error.contains(remedy), "{text}: {error}");
        }
    }
}
