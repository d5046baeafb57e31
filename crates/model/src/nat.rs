//! Network address translation: which connections are translated, and to what.

use netvm_policy::Match;
use netvm_wire::{Address, IpNet, PortRange};

use crate::words::words;

/// A NAT rule. It is asked once a connection, for the first packet: the first rule of its side that fits decides.
///
/// A rule with `matches.to` is for packets that leave by these ports, and translates sources. A rule without is for
/// packets that `matches.from` receive, and translates destinations, before the other rules of the port see them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatRule {
    /// Its name; of a rule that a router or a port implies, what implies it.
    pub name: String,
    /// The first packets that it takes.
    pub matches: Match,
    /// What it does.
    pub action: NatAction,
}

/// What a NAT rule does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NatAction {
    /// Nothing, and later rules are not asked.
    Keep,
    /// Another source.
    Source(SourceNat),
    /// Another destination.
    Destination(DestinationNat),
    /// 1:1: the address at the same place of this network, with the same ports.
    Network(IpNet),
}

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

/// The addresses that stand for sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NatAddresses {
    /// Masquerading: the address of the router's interface at the port that packets leave by, whatever it is.
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
    /// All.
    EndpointIndependent,
}
words!(Filtering: "address-and-port" => AddressAndPort, "endpoint-independent" => EndpointIndependent);

/// What connections lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestinationNat {
    /// At least one. All connections of a source lead to the same one, while it is healthy.
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

/// A TCP connection to each target, from the router's namespace, tells whether it is healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// Seconds between two.
    pub interval: u16,
    /// Failures in a row after which a target gets no more connections.
    pub failures: u16,
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
}
