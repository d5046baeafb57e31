// SPDX-License-Identifier: Apache-2.0
//! Generates millions of random keys from a seed: faster than strategies, without shrinking.

use netvm_wire::{Address, ConnState, EtherType, FlowKey, Fragment, IpProto, MacAddr, TcpFlags, VlanId};

use crate::cubes::{Cube, Family};
use crate::span::{Masked, Span};

/// A reproducible random number generator (SplitMix64).
#[derive(Clone, Debug)]
pub struct Generator(u64);

impl Generator {
    /// A generator with this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ bits >> 31
    }

    /// 0 to `below - 1`; 0 for 0.
    pub const fn below(&mut self, below: u64) -> u64 {
        ((self.bits() as u128 * below as u128) >> 64) as u64
    }

    /// True with probability 1/`times`.
    pub const fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// A random element; `None` of an empty slice.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.below(from.len() as u64) as usize)
    }

    /// With equal probability a key in one of the cubes (often at an edge) or a [uniform](Self::uniform_key) one, as
    /// [`parsed`].
    pub fn key(&mut self, cubes: &[Cube]) -> FlowKey {
        let near = self.once_in(2);
        let key = match self.pick(cubes) {
            Some(cube) if near => self.key_in(cube),
            _ => self.uniform_key(),
        };
        parsed(key)
    }

    /// A key in the cube with other fields uniform; possible for a packet, except for fields that its protocol lacks.
    pub fn key_in(&mut self, cube: &Cube) -> FlowKey {
        let fields = &cube.fields;
        let mut key = self.uniform_key();
        key.ether_type = match cube.family {
            Family::V4 => EtherType::IPV4,
            Family::V6 => EtherType::IPV6,
            Family::Other => self.other_type(fields.ether_type),
        };
        key.source = self.address(cube.family, fields.source);
        key.destination = self.address(cube.family, fields.destination);
        key.source_mac = mac(self.masked(fields.source_mac));
        key.destination_mac = mac(self.masked(fields.destination_mac));
        key.vlan = VlanId::new(self.span(fields.vlan, VlanId::MAX)).ok();
        key.inner_vlan = VlanId::new(self.span(fields.inner_vlan, VlanId::MAX)).ok();
        key.protocol = if fields.protocol.mask == 0 {
            key.protocol
        } else {
            IpProto((self.bits() as u8 & !fields.protocol.mask) | fields.protocol.value)
        };
        key.source_port = self.span(fields.source_ports, u16::MAX);
        key.destination_port = self.span(fields.destination_ports, u16::MAX);
        let flags = fields.tcp_flags;
        key.tcp_flags = TcpFlags::from_bits_retain((self.bits() as u8 & !flags.mask) | flags.value);
        key.dscp = self.span(fields.dscp, 63);
        key.icmp_type = self.span(fields.icmp_type, u8::MAX);
        key.icmp_code = self.span(fields.icmp_code, u8::MAX);
        key.fragment = [Fragment::Whole, Fragment::First, Fragment::Later]
            [usize::from(self.span(fields.fragment, 2)).min(2)];
        key.state = ConnState::ALL[usize::from(self.span(fields.state, 4)).min(4)];
        key.arp_operation = self.span(fields.arp_operation, u16::MAX);
        key
    }

    /// A key independent of rules: three of four IPv4, half of the rest IPv6, as [`parsed`].
    pub fn uniform_key(&mut self) -> FlowKey {
        let family = match self.below(8) {
            0..=5 => Family::V4,
            6 => Family::V6,
            _ => Family::Other,
        };
        let protocols =
            [IpProto::TCP, IpProto::UDP, IpProto::ICMP, IpProto::ICMPV6, IpProto(self.bits() as u8)];
        parsed(FlowKey {
            source: self.address(family, Masked::<u128>::ANY),
            destination: self.address(family, Masked::<u128>::ANY),
            source_mac: mac(self.bits()),
            destination_mac: mac(self.bits()),
            source_port: self.bits() as u16,
            destination_port: self.bits() as u16,
            ether_type: match family {
                Family::V4 => EtherType::IPV4,
                Family::V6 => EtherType::IPV6,
                Family::Other => self.other_type(Span { first: 0, last: u16::MAX }),
            },
            vlan: self.vlan(),
            inner_vlan: self.vlan(),
            arp_operation: self.below(4) as u16,
            protocol: protocols[self.below(5) as usize],
            tcp_flags: TcpFlags::from_bits_retain(self.bits() as u8),
            dscp: self.below(64) as u8,
            icmp_type: self.bits() as u8,
            icmp_code: self.below(16) as u8,
            fragment: match self.below(16) {
                0 => Fragment::First,
                1 => Fragment::Later,
                _ => Fragment::Whole,
            },
            state: ConnState::ALL[self.below(5) as usize],
        })
    }

    /// An IPv4 key independent of rules, with ports for every protocol, as headers of ClassBench have them.
    pub fn uniform_v4_key(&mut self) -> FlowKey {
        FlowKey {
            source: Address::from_v4_bits(self.bits() as u32),
            destination: Address::from_v4_bits(self.bits() as u32),
            source_port: self.bits() as u16,
            destination_port: self.bits() as u16,
            protocol: IpProto(self.bits() as u8),
            ether_type: EtherType::IPV4,
            ..self.uniform_key()
        }
    }

    fn vlan(&mut self) -> Option<VlanId> {
        if self.once_in(2) { None } else { VlanId::new(self.bits() as u16 & 0xfff).ok() }
    }

    /// ARP half of the time, if permitted.
    fn other_type(&mut self, within: Span<u16>) -> EtherType {
        if within.contains(EtherType::ARP.0) && self.once_in(2) {
            return EtherType::ARP;
        }
        let kind = EtherType(self.span(within, u16::MAX));
        if matches!(kind, EtherType::IPV4 | EtherType::IPV6) { EtherType::LLC } else { kind }
    }

    fn address(&mut self, family: Family, set: Masked<u128>) -> Address {
        let bits = (self.edge() & !set.mask) | set.value;
        match family {
            Family::V4 => Address::from_v4_bits(bits as u32),
            Family::V6 => match Address::from_v6_bits(bits) {
                // No packet has an IPv4-mapped address.
                mapped if mapped.is_v4() => Address::UNSPECIFIED,
                address => address,
            },
            Family::Other if set.value == 0 && (set.mask != 0 || self.once_in(2)) => Address::UNSPECIFIED,
            Family::Other => Address::from_v4_bits(bits as u32),
        }
    }

    fn masked(&mut self, set: Masked<u64>) -> u64 {
        (self.edge() as u64 & !set.mask) | set.value
    }

    /// A value up to `greatest`, half of the time an end of the span.
    fn span<T: Copy + Into<u64> + TryFrom<u64>>(&mut self, set: Span<T>, greatest: T) -> T {
        let first = set.first.into();
        let last = set.last.into().min(greatest.into()).max(first);
        let value = match self.below(4) {
            0 => first,
            1 => last,
            _ => first + self.below(last - first + 1),
        };
        T::try_from(value).unwrap_or(set.first)
    }

    /// Random bits, sometimes all zeros or all ones.
    fn edge(&mut self) -> u128 {
        match self.below(8) {
            0 => 0,
            1 => u128::MAX,
            _ => u128::from(self.bits()) << 64 | u128::from(self.bits()),
        }
    }
}

fn mac(bits: u64) -> MacAddr {
    let [_, _, a, b, c, d, e, f] = bits.to_be_bytes();
    MacAddr([a, b, c, d, e, f])
}

/// The key without fields that its EtherType and protocol lack.
#[must_use]
pub fn parsed(mut key: FlowKey) -> FlowKey {
    let ip = key.is_ip();
    if !ip {
        key.protocol = IpProto(0);
        key.dscp = 0;
        key.fragment = Fragment::Whole;
        key.state = ConnState::Untracked;
    }
    if key.ether_type != EtherType::ARP {
        key.arp_operation = 0;
        if !ip {
            (key.source, key.destination) = (Address::UNSPECIFIED, Address::UNSPECIFIED);
        }
    }
    let there = ip && key.fragment != Fragment::Later;
    if !(there && key.protocol.has_ports()) {
        (key.source_port, key.destination_port) = (0, 0);
    }
    if !(there && key.protocol == IpProto::TCP) {
        key.tcp_flags = TcpFlags::empty();
    }
    let icmp = match key.ether_type {
        EtherType::IPV4 => key.protocol == IpProto::ICMP,
        EtherType::IPV6 => key.protocol == IpProto::ICMPV6,
        _ => false,
    };
    if !(there && icmp) {
        (key.icmp_type, key.icmp_code) = (0, 0);
    }
    key
}
