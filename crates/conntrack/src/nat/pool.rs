// SPDX-License-Identifier: Apache-2.0
//! What connections may be translated to.

use netvm_wire::{Address, IpNet, IpProto, PortRange};

use crate::mapped::Filtering;

/// Addresses that stand for others, and their ports. A worker whose ports no other worker has gets all answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The first address.
    pub first: Address,
    /// The last one, of the same family.
    pub last: Address,
    /// Ports, and identifiers of ICMP queries.
    pub ports: PortRange,
    /// Who gets which ports. Pools of one translation have the same one.
    pub allocation: Allocation,
    /// Who may send to an end of it.
    pub filtering: Filtering,
}

/// Who gets which ports of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allocation {
    /// Each end inside gets a port: its own, if that is free.
    #[default]
    Any,
    /// Each address inside gets blocks of ports, which begin at multiples of their size.
    Blocks {
        /// Ports of a block: a power of two, or else the next lower one.
        size: u16,
        /// Most blocks of an address inside.
        most: u16,
    },
    /// Address and ports are computed from the address inside (RFC 7422).
    Deterministic {
        /// The addresses inside.
        inside: IpNet,
    },
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
    /// These addresses and ports, each port for any end inside, which those may send to that it has sent to.
    #[must_use]
    pub const fn new(first: Address, last: Address, ports: PortRange) -> Self {
        Self { first, last, ports, allocation: Allocation::Any, filtering: Filtering::AddressAndPort }
    }

    /// Number of addresses.
    fn size(&self) -> u128 {
        (self.last.v6_bits().saturating_sub(self.first.v6_bits())).saturating_add(1)
    }
}

/// An address of a pool, and its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) address: Address,
    pub(crate) ports: PortRange,
}

/// Number of addresses of all pools.
pub(crate) fn count(pools: &[Pool]) -> u128 {
    pools.iter().fold(0u128, |sum, pool| sum.saturating_add(pool.size()))
}

/// The address at place `number`, modulo their count, of all pools.
pub(crate) fn offer(pools: &[Pool], number: u128) -> Option<Offer> {
    let mut place = number.checked_rem(count(pools))?;
    for pool in pools {
        if place < pool.size() {
            let address = Address::from_v6_bits(pool.first.v6_bits() + place);
            return Some(Offer { address, ports: pool.ports });
        }
        place -= pool.size();
    }
    None
}

/// The place of an address among those of all pools, and its ports.
pub(super) fn number_of(pools: &[Pool], address: Address) -> Option<(u128, PortRange)> {
    let mut before = 0u128;
    for pool in pools {
        if (pool.first..=pool.last).contains(&address) {
            return Some((before + (address.v6_bits() - pool.first.v6_bits()), pool.ports));
        }
        before = before.saturating_add(pool.size());
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
