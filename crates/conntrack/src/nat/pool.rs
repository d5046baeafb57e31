//! What connections may be translated to.

use netvm_wire::{Address, IpProto, PortRange};

/// Addresses that stand for others, and their ports. A worker whose ports no other worker has gets all answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The first address.
    pub first: Address,
    /// The last one, of the same family.
    pub last: Address,
    /// Ports, and identifiers of ICMP queries.
    pub ports: PortRange,
}

/// A destination in place of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its address.
    pub address: Address,
    /// Its port, if it is another one.
    pub port: Option<u16>,
}

/// How a connection is translated: its source, its destination, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Translation<'a> {
    /// What may stand for its source; none: the source stays.
    pub sources: &'a [Pool],
    /// What it leads to.
    pub destination: Option<Target>,
}

impl Pool {
    /// Number of addresses.
    fn size(&self) -> u128 {
        (self.last.v6_bits().saturating_sub(self.first.v6_bits())).saturating_add(1)
    }
}

/// The address at place `number`, modulo their count, of all pools, and its ports.
pub(crate) fn address_of(pools: &[Pool], number: u64) -> Option<(Address, PortRange)> {
    let count = pools.iter().fold(0u128, |sum, pool| sum.saturating_add(pool.size()));
    let mut place = u128::from(number).checked_rem(count)?;
    for pool in pools {
        if place < pool.size() {
            return Some((Address::from_v6_bits(pool.first.v6_bits() + place), pool.ports));
        }
        place -= pool.size();
    }
    None
}

/// Protocols whose addresses can change without the whole packet.
pub(crate) const fn can_be_translated(protocol: IpProto) -> bool {
    // DCCP and UDP-Lite have checksums of their own over addresses, AH signs them.
    !matches!(protocol, IpProto(33 | 136) | IpProto::AH)
}

/// Protocols whose ports, or identifiers, can change. The checksum of SCTP covers the whole packet.
pub(crate) const fn has_free_ports(protocol: IpProto) -> bool {
    matches!(protocol, IpProto::TCP | IpProto::UDP | IpProto::ICMP | IpProto::ICMPV6)
}
