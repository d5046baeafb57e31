// SPDX-License-Identifier: Apache-2.0
//! Flow identity: the 5-tuple, and the wider key that policies match.

mod hash;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};

use crate::values::{Address, EtherType, IpProto, MacAddr, TcpFlags, VlanId};

pub use hash::FlowHasher;

/// Addresses, protocol and ports.
///
/// Ports are those of TCP, UDP and SCTP; 0 for other protocols and for fragments without ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FiveTuple {
    /// Source address.
    pub source: Address,
    /// Destination address, of the same family.
    pub destination: Address,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Protocol over IP.
    pub protocol: IpProto,
}

impl FiveTuple {
    /// A 5-tuple from two endpoints (address and port) and a protocol.
    #[must_use]
    pub fn new(source: impl Into<SocketAddr>, destination: impl Into<SocketAddr>, protocol: IpProto) -> Self {
        let (source, destination): (SocketAddr, SocketAddr) = (source.into(), destination.into());
        Self {
            source: source.ip().into(),
            destination: destination.ip().into(),
            source_port: source.port(),
            destination_port: destination.port(),
            protocol,
        }
    }

    /// The same flow in the reply direction.
    #[inline]
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            protocol: self.protocol,
        }
    }

    /// The same tuple for both directions: the one whose source does not sort above its destination.
    #[inline]
    #[must_use]
    pub fn canonical(self) -> Self {
        if (self.source, self.source_port) <= (self.destination, self.destination_port) {
            self
        } else {
            self.reversed()
        }
    }

    /// Whether the flow is IPv4.
    #[inline]
    #[must_use]
    pub const fn is_v4(self) -> bool {
        self.source.is_v4()
    }

    /// The tuple in five words.
    #[inline]
    pub(crate) const fn words(&self) -> [u64; 5] {
        let [a, b] = self.source.words();
        let [c, d] = self.destination.words();
        let ports = (self.source_port as u64) << 16 | self.destination_port as u64;
        [a, b, c, d, (self.protocol.0 as u64) << 32 | ports]
    }
}

impl fmt::Display for FiveTuple {
    /// `10.0.0.1:80 > 10.0.0.2:1234 tcp`, `[::1]:53 > [::2]:53 udp`, `10.0.0.1 > 10.0.0.2 icmp`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoint = |f: &mut fmt::Formatter<'_>, address: Address, port: u16| match address.to_ip() {
            address if !self.protocol.has_ports() => write!(f, "{address}"),
            IpAddr::V4(address) => write!(f, "{address}:{port}"),
            IpAddr::V6(address) => write!(f, "[{address}]:{port}"),
        };
        endpoint(f, self.source, self.source_port)?;
        f.write_str(" > ")?;
        endpoint(f, self.destination, self.destination_port)?;
        write!(f, " {}", self.protocol)
    }
}

/// Fragment position of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum Fragment {
    /// Not a fragment, or an IPv6 atomic fragment (RFC 6946).
    #[default]
    Whole = 0,
    /// The first fragment, which has the ports.
    First = 1,
    /// A later fragment, without ports; its key has 0 for them.
    Later = 2,
}

/// What connection tracking says of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum ConnState {
    /// Nothing: its connection is not tracked.
    #[default]
    Untracked = 0,
    /// It may begin a connection, or belongs to one that has had no answer.
    New = 1,
    /// It belongs to a connection that has had an answer, or is the answer.
    Established = 2,
    /// It belongs to no connection, but is an ICMP error about a packet of one.
    Related = 3,
    /// It can belong to no connection, such as a TCP segment outside of the window.
    Invalid = 4,
}

impl ConnState {
    /// All states, by their numbers.
    pub const ALL: [Self; 5] = [Self::Untracked, Self::New, Self::Established, Self::Related, Self::Invalid];

    /// Its name, as in rules.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Untracked => "untracked",
            Self::New => "new",
            Self::Established => "established",
            Self::Related => "related",
            Self::Invalid => "invalid",
        }
    }
}

/// Every field of a packet that a policy can match on, in one cache line.
///
/// A field that the packet lacks is zero (or `None`), such as the ports of ICMP. [`FlowKey::ether_type`] tells how to
/// read the rest.
///
/// The layout makes [`FlowKey::words`] eight loads.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FlowKey {
    /// Source address; in ARP for IPv4, the sender protocol address.
    pub source: Address,
    /// Destination address; in ARP for IPv4, the target protocol address.
    pub destination: Address,
    /// Destination MAC address.
    pub destination_mac: MacAddr,
    /// Source MAC address.
    pub source_mac: MacAddr,
    /// EtherType after the VLAN tags.
    pub ether_type: EtherType,
    /// VLAN of the outer tag.
    pub vlan: Option<VlanId>,
    /// Source port of TCP, UDP and SCTP.
    pub source_port: u16,
    /// Destination port of TCP, UDP and SCTP.
    pub destination_port: u16,
    /// VLAN of the second tag.
    pub inner_vlan: Option<VlanId>,
    /// ARP operation.
    pub arp_operation: u16,
    /// IP protocol.
    pub protocol: IpProto,
    /// TCP flags.
    pub tcp_flags: TcpFlags,
    /// Differentiated services code point, 0 to 63.
    pub dscp: u8,
    /// Fragment position.
    pub fragment: Fragment,
    /// ICMP or ICMPv6 type.
    pub icmp_type: u8,
    /// ICMP or ICMPv6 code.
    pub icmp_code: u8,
    /// What connection tracking says; no header has it.
    pub state: ConnState,
}

impl FlowKey {
    /// The key without any field.
    pub const EMPTY: Self = Self {
        source: Address::UNSPECIFIED,
        destination: Address::UNSPECIFIED,
        destination_mac: MacAddr::ZERO,
        source_mac: MacAddr::ZERO,
        ether_type: EtherType(0),
        vlan: None,
        source_port: 0,
        destination_port: 0,
        inner_vlan: None,
        arp_operation: 0,
        protocol: IpProto(0),
        tcp_flags: TcpFlags::empty(),
        dscp: 0,
        fragment: Fragment::Whole,
        icmp_type: 0,
        icmp_code: 0,
        state: ConnState::Untracked,
    };

    /// Whether the packet is IPv4 or IPv6.
    #[inline]
    #[must_use]
    pub const fn is_ip(&self) -> bool {
        matches!(self.ether_type, EtherType::IPV4 | EtherType::IPV6)
    }

    /// Addresses, protocol and ports of an IP packet.
    #[inline]
    #[must_use]
    pub const fn five_tuple(&self) -> Option<FiveTuple> {
        if !self.is_ip() {
            return None;
        }
        Some(FiveTuple {
            source: self.source,
            destination: self.destination,
            source_port: self.source_port,
            destination_port: self.destination_port,
            protocol: self.protocol,
        })
    }

    /// The key in eight words; the upper 16 bits of the last are 0.
    #[inline(always)]
    #[must_use]
    pub const fn words(&self) -> [u64; 8] {
        let [high, low] = self.source.words();
        let [to_high, to_low] = self.destination.words();
        let [a, b, c, d, e, f] = self.destination_mac.0;
        let [g, h, i, j, k, l] = self.source_mac.0;
        let types = short(self.ether_type.0, 2) | short(vlan_number(self.vlan), 3);
        [
            high,
            low,
            to_high,
            to_low,
            u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            u64::from_le_bytes([i, j, k, l, 0, 0, 0, 0]) | types,
            short(self.source_port, 0)
                | short(self.destination_port, 1)
                | short(vlan_number(self.inner_vlan), 2)
                | short(self.arp_operation, 3),
            u64::from_le_bytes([
                self.protocol.0,
                self.tcp_flags.bits(),
                self.dscp,
                self.fragment as u8 | (self.state as u8) << 2,
                self.icmp_type,
                self.icmp_code,
                0,
                0,
            ]),
        ]
    }
}

impl From<[u64; 8]> for FlowKey {
    /// The key with these [words](FlowKey::words). Values that a field cannot have become `None` or 0.
    fn from([a, b, c, d, e, f, g, h]: [u64; 8]) -> Self {
        let address = |high: u64, low: u64| Address::from_v6_bits(u128::from(high) << 64 | u128::from(low));
        let place = |word: u64, place: u32| (word >> (16 * place)) as u16;
        let vlan = |number| VlanId::new(number).ok();
        let ([m, n, o, p, q, r, s, t], [u, v, w, x, ..]) = (e.to_le_bytes(), f.to_le_bytes());
        let [protocol, tcp_flags, dscp, states, icmp_type, icmp_code, ..] = h.to_le_bytes();
        Self {
            source: address(a, b),
            destination: address(c, d),
            destination_mac: MacAddr([m, n, o, p, q, r]),
            source_mac: MacAddr([s, t, u, v, w, x]),
            ether_type: EtherType(place(f, 2)),
            vlan: vlan(place(f, 3)),
            source_port: place(g, 0),
            destination_port: place(g, 1),
            inner_vlan: vlan(place(g, 2)),
            arp_operation: place(g, 3),
            protocol: IpProto(protocol),
            tcp_flags: TcpFlags::from_bits_retain(tcp_flags),
            dscp,
            fragment: match states & 3 {
                1 => Fragment::First,
                2 => Fragment::Later,
                _ => Fragment::Whole,
            },
            icmp_type,
            icmp_code,
            state: match states >> 2 {
                1 => ConnState::New,
                2 => ConnState::Established,
                3 => ConnState::Related,
                4 => ConnState::Invalid,
                _ => ConnState::Untracked,
            },
        }
    }
}

/// A 16-bit number at position `place` of a word.
#[inline(always)]
const fn short(number: u16, place: u32) -> u64 {
    (number as u64) << (16 * place)
}

#[inline(always)]
const fn vlan_number(vlan: Option<VlanId>) -> u16 {
    match vlan {
        None => 0,
        Some(vlan) => vlan.get(),
    }
}

impl PartialEq for FlowKey {
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        let pairs = self.words().into_iter().zip(other.words());
        pairs.fold(0, |differences, (ours, theirs)| differences | (ours ^ theirs)) == 0
    }
}

impl Eq for FlowKey {}

impl Ord for FlowKey {
    /// Orders by words, an order without meaning.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.words().cmp(&other.words())
    }
}

impl PartialOrd for FlowKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for FlowKey {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.words().hash(state);
    }
}

impl Default for FlowKey {
    fn default() -> Self {
        Self::EMPTY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(source: &str, destination: &str, protocol: IpProto) -> FiveTuple {
        let endpoint = |text: &str| {
            let endpoint: std::net::SocketAddr = text.parse().unwrap();
            (endpoint.ip(), endpoint.port())
        };
        FiveTuple::new(endpoint(source), endpoint(destination), protocol)
    }

    #[test]
    fn a_tuple_displays_both_endpoints() {
        let text = |source, destination, protocol| tuple(source, destination, protocol).to_string();
        assert_eq!(text("10.0.0.1:80", "10.0.0.2:1234", IpProto::TCP), "10.0.0.1:80 > 10.0.0.2:1234 tcp");
        assert_eq!(text("[::1]:53", "[::2]:9", IpProto::UDP), "[::1]:53 > [::2]:9 udp");
        assert_eq!(text("10.0.0.1:0", "10.0.0.2:0", IpProto::ICMP), "10.0.0.1 > 10.0.0.2 icmp");
        assert_eq!(text("[::1]:0", "[::2]:0", IpProto(200)), "::1 > ::2 200");
    }

    #[test]
    fn both_directions_have_one_canonical_form() {
        let there = tuple("10.0.0.2:80", "10.0.0.1:1234", IpProto::TCP);
        assert_ne!(there, there.reversed());
        assert_eq!(there, there.reversed().reversed());
        assert_eq!(there.canonical(), there.reversed().canonical());
        assert_eq!(there.canonical().source.to_string(), "10.0.0.1");
        let looped = tuple("10.0.0.1:2", "10.0.0.1:1", IpProto::TCP);
        assert_eq!(looped.canonical(), looped.reversed());
    }

    #[test]
    fn a_key_fits_a_cache_line() {
        assert_eq!(size_of::<FlowKey>(), 64);
        assert_eq!(size_of::<FiveTuple>(), 40);
    }
}
