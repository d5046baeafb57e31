// SPDX-License-Identifier: Apache-2.0
//! Cubes, the input of classifiers: a value, prefix, mask or range for every field.

use netvm_wire::{Address, FlowKey};

use crate::matching::mac_bits;
use crate::span::{Masked, Span};

/// The packets of a cube.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4 packets.
    V4,
    /// IPv6 packets.
    V6,
    /// All others, ARP included.
    Other,
}

impl Family {
    /// The family of a packet.
    #[must_use]
    pub const fn of(key: &FlowKey) -> Self {
        match key.ether_type {
            netvm_wire::EtherType::IPV4 => Self::V4,
            netvm_wire::EtherType::IPV6 => Self::V6,
            _ => Self::Other,
        }
    }

    /// An address as a number of the family's cubes: IPv4 in 32 bits; IPv6 in 128; other families in 128 like
    /// [`Address`], with IPv4 (of ARP) as IPv4-mapped, to distinguish 0.0.0.0 from `::`, which means no address.
    #[inline]
    #[must_use]
    pub const fn address_bits(self, address: Address) -> u128 {
        match self {
            Self::V4 => address.v6_bits() as u32 as u128,
            Self::V6 | Self::Other => address.v6_bits(),
        }
    }
}

/// A product of one set for each field of the key of one family. Addresses are the numbers of [`Family::address_bits`];
/// their masks are prefixes of 32 bits in [`Family::V4`], else of 128.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cube {
    /// The family.
    pub family: Family,
    /// The sets.
    pub fields: Fields,
}

/// A set for each field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "named as the fields of the key")]
pub struct Fields {
    pub source: Masked<u128>,
    pub destination: Masked<u128>,
    pub source_mac: Masked<u64>,
    pub destination_mac: Masked<u64>,
    /// Used only in [`Family::Other`].
    pub ether_type: Span<u16>,
    pub vlan: Span<u16>,
    pub inner_vlan: Span<u16>,
    pub protocol: Masked<u8>,
    pub source_ports: Span<u16>,
    pub destination_ports: Span<u16>,
    pub tcp_flags: Masked<u8>,
    pub dscp: Span<u8>,
    pub icmp_type: Span<u8>,
    pub icmp_code: Span<u8>,
    /// By the numbers of [`netvm_wire::Fragment`].
    pub fragment: Span<u8>,
    /// By the numbers of [`netvm_wire::ConnState`].
    pub state: Span<u8>,
    pub arp_operation: Span<u16>,
}

impl Fields {
    /// All packets.
    pub const ANY: Self = Self {
        source: Masked::<u128>::ANY,
        destination: Masked::<u128>::ANY,
        source_mac: Masked::<u64>::ANY,
        destination_mac: Masked::<u64>::ANY,
        ether_type: Span { first: 0, last: u16::MAX },
        vlan: Span { first: 0, last: u16::MAX },
        inner_vlan: Span { first: 0, last: u16::MAX },
        protocol: Masked::<u8>::ANY,
        source_ports: Span { first: 0, last: u16::MAX },
        destination_ports: Span { first: 0, last: u16::MAX },
        tcp_flags: Masked::<u8>::ANY,
        dscp: Span { first: 0, last: u8::MAX },
        icmp_type: Span { first: 0, last: u8::MAX },
        icmp_code: Span { first: 0, last: u8::MAX },
        fragment: Span { first: 0, last: u8::MAX },
        state: Span { first: 0, last: u8::MAX },
        arp_operation: Span { first: 0, last: u16::MAX },
    };
}

impl Cube {
    /// Whether it contains a packet.
    #[must_use]
    pub fn contains(&self, key: &FlowKey) -> bool {
        let fields = &self.fields;
        let vlan = |vlan: Option<netvm_wire::VlanId>| vlan.map_or(0, netvm_wire::VlanId::get);
        Family::of(key) == self.family
            && fields.source.contains(self.family.address_bits(key.source))
            && fields.destination.contains(self.family.address_bits(key.destination))
            && fields.source_mac.contains(mac_bits(key.source_mac))
            && fields.destination_mac.contains(mac_bits(key.destination_mac))
            && fields.ether_type.contains(key.ether_type.0)
            && fields.vlan.contains(vlan(key.vlan))
            && fields.inner_vlan.contains(vlan(key.inner_vlan))
            && fields.protocol.contains(key.protocol.0)
            && fields.source_ports.contains(key.source_port)
            && fields.destination_ports.contains(key.destination_port)
            && fields.tcp_flags.contains(key.tcp_flags.bits())
            && fields.dscp.contains(key.dscp)
            && fields.icmp_type.contains(key.icmp_type)
            && fields.icmp_code.contains(key.icmp_code)
            && fields.fragment.contains(key.fragment as u8)
            && fields.state.contains(key.state as u8)
            && fields.arp_operation.contains(key.arp_operation)
    }

    /// Whether it contains every packet of `other`.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let (a, b) = (&self.fields, &other.fields);
        self.family == other.family
            && a.source.covers(&b.source)
            && a.destination.covers(&b.destination)
            && a.protocol.covers(&b.protocol)
            && a.source_ports.covers(&b.source_ports)
            && a.destination_ports.covers(&b.destination_ports)
            && a.source_mac.covers(&b.source_mac)
            && a.destination_mac.covers(&b.destination_mac)
            && a.ether_type.covers(&b.ether_type)
            && a.vlan.covers(&b.vlan)
            && a.inner_vlan.covers(&b.inner_vlan)
            && a.tcp_flags.covers(&b.tcp_flags)
            && a.dscp.covers(&b.dscp)
            && a.icmp_type.covers(&b.icmp_type)
            && a.icmp_code.covers(&b.icmp_code)
            && a.fragment.covers(&b.fragment)
            && a.state.covers(&b.state)
            && a.arp_operation.covers(&b.arp_operation)
    }

    /// Whether some packet is in both.
    #[must_use]
    pub fn meets(&self, other: &Self) -> bool {
        let (a, b) = (&self.fields, &other.fields);
        self.family == other.family
            && a.source.intersect(&b.source).is_some()
            && a.destination.intersect(&b.destination).is_some()
            && a.protocol.intersect(&b.protocol).is_some()
            && a.source_ports.intersect(&b.source_ports).is_some()
            && a.destination_ports.intersect(&b.destination_ports).is_some()
            && a.source_mac.intersect(&b.source_mac).is_some()
            && a.destination_mac.intersect(&b.destination_mac).is_some()
            && a.ether_type.intersect(&b.ether_type).is_some()
            && a.vlan.intersect(&b.vlan).is_some()
            && a.inner_vlan.intersect(&b.inner_vlan).is_some()
            && a.tcp_flags.intersect(&b.tcp_flags).is_some()
            && a.dscp.intersect(&b.dscp).is_some()
            && a.icmp_type.intersect(&b.icmp_type).is_some()
            && a.icmp_code.intersect(&b.icmp_code).is_some()
            && a.fragment.intersect(&b.fragment).is_some()
            && a.state.intersect(&b.state).is_some()
            && a.arp_operation.intersect(&b.arp_operation).is_some()
    }

    /// The intersection; `None` if empty.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        let (a, b) = (&self.fields, &other.fields);
        if self.family != other.family {
            return None;
        }
        Some(Self {
            family: self.family,
            fields: Fields {
                source: a.source.intersect(&b.source)?,
                destination: a.destination.intersect(&b.destination)?,
                protocol: a.protocol.intersect(&b.protocol)?,
                source_ports: a.source_ports.intersect(&b.source_ports)?,
                destination_ports: a.destination_ports.intersect(&b.destination_ports)?,
                source_mac: a.source_mac.intersect(&b.source_mac)?,
                destination_mac: a.destination_mac.intersect(&b.destination_mac)?,
                ether_type: a.ether_type.intersect(&b.ether_type)?,
                vlan: a.vlan.intersect(&b.vlan)?,
                inner_vlan: a.inner_vlan.intersect(&b.inner_vlan)?,
                tcp_flags: a.tcp_flags.intersect(&b.tcp_flags)?,
                dscp: a.dscp.intersect(&b.dscp)?,
                icmp_type: a.icmp_type.intersect(&b.icmp_type)?,
                icmp_code: a.icmp_code.intersect(&b.icmp_code)?,
                fragment: a.fragment.intersect(&b.fragment)?,
                state: a.state.intersect(&b.state)?,
                arp_operation: a.arp_operation.intersect(&b.arp_operation)?,
            },
        })
    }
}
