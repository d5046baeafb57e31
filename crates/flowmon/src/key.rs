// SPDX-License-Identifier: Apache-2.0
//! What identifies a flow: the same key for both directions of a conversation.

use std::fmt;
use std::net::IpAddr;

use netvm_wire::{Address, EtherType, FiveTuple, FlowKey, Headers, IpProto, MacAddr, VlanId};

/// What a flow's packets are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// Neither, or headers that are truncated or inconsistent: known by MAC addresses and EtherType.
    Ethernet,
}

/// A flow, both directions: addresses, ports, protocol and outer VLAN, or MAC addresses and EtherType.
///
/// Five words, so that comparing takes no branch:
///
/// ```text
/// 0, 1   lower endpoint's address (MAC address and EtherType)
/// 2, 3   higher endpoint's address
/// 4      bit 0 higher endpoint's port, 16 lower endpoint's port, 32 protocol, 40 VLAN, 52 kind
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key([u64; 5]);

/// The endpoints of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoints {
    /// An IP flow.
    Ip(FiveTuple),
    /// Any other.
    Ethernet {
        /// Source MAC address.
        source: MacAddr,
        /// Destination MAC address.
        destination: MacAddr,
        /// EtherType, or the length of an IEEE 802.3 frame.
        ether_type: EtherType,
    },
}

const VLAN_SHIFT: u32 = 40;
const KIND_SHIFT: u32 = 52;

impl Key {
    /// The key of a packet, and whether the packet goes from the key's higher endpoint to its lower one.
    #[inline]
    #[must_use]
    pub fn of(headers: &Headers) -> (Self, bool) {
        Self::of_fields(headers.key())
    }

    /// The same by the header fields of a packet.
    #[inline]
    #[must_use]
    pub fn of_fields(key: &FlowKey) -> (Self, bool) {
        let vlan = u64::from(key.vlan.map_or(0, VlanId::get)) << VLAN_SHIFT;
        if !key.is_ip() {
            return Self::ethernet(key.source_mac, key.destination_mac, key.ether_type, vlan);
        }
        let kind = if key.ether_type == EtherType::IPV4 { Kind::Ipv4 } else { Kind::Ipv6 };
        let ports = [u64::from(key.source_port), u64::from(key.destination_port)];
        let rest = u64::from(key.protocol.0) << 32 | vlan | (kind as u64) << KIND_SHIFT;
        Self::directed(key.source.words(), key.destination.words(), ports, rest)
    }

    /// The key of a frame whose headers are truncated or inconsistent.
    #[must_use]
    pub fn of_malformed(frame: &[u8]) -> (Self, bool) {
        let mut head = [0; 14];
        let count = frame.len().min(head.len());
        head[..count].copy_from_slice(&frame[..count]);
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = head;
        let (to, from) = (MacAddr([a, b, c, d, e, f]), MacAddr([g, h, i, j, k, l]));
        Self::ethernet(from, to, EtherType(u16::from_be_bytes([m, n])), 0)
    }

    fn ethernet(from: MacAddr, to: MacAddr, ether_type: EtherType, vlan: u64) -> (Self, bool) {
        let end = |MacAddr([a, b, c, d, e, f]): MacAddr| {
            [u64::from_be_bytes([0, 0, a, b, c, d, e, f]), u64::from(ether_type.0)]
        };
        Self::directed(end(from), end(to), [0; 2], vlan | (Kind::Ethernet as u64) << KIND_SHIFT)
    }

    #[inline(always)]
    fn directed(from: [u64; 2], to: [u64; 2], [from_port, to_port]: [u64; 2], rest: u64) -> (Self, bool) {
        if (from, from_port) <= (to, to_port) {
            (Self([from[0], from[1], to[0], to[1], rest | from_port << 16 | to_port]), false)
        } else {
            (Self([to[0], to[1], from[0], from[1], rest | to_port << 16 | from_port]), true)
        }
    }

    /// The words to hash.
    #[inline]
    #[must_use]
    pub const fn words(&self) -> [u64; 5] {
        self.0
    }

    /// What the flow's packets are.
    #[inline]
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self.0[4] >> KIND_SHIFT {
            0 => Kind::Ipv4,
            1 => Kind::Ipv6,
            _ => Kind::Ethernet,
        }
    }

    /// The outer VLAN; 0 if the packets have no tag.
    #[must_use]
    pub const fn vlan(&self) -> u16 {
        (self.0[4] >> VLAN_SHIFT) as u16 & 0x0fff
    }

    /// IP protocol.
    #[inline]
    #[must_use]
    pub const fn protocol(&self) -> IpProto {
        IpProto((self.0[4] >> 32) as u8)
    }

    /// The endpoints as the packets of one direction have them: from the lower endpoint, or `from_higher`.
    #[must_use]
    pub fn endpoints(&self, from_higher: bool) -> Endpoints {
        let [a, b, c, d, e] = self.0;
        if self.kind() == Kind::Ethernet {
            let mac = |word: u64| {
                let [_, _, a, b, c, d, e, f] = word.to_be_bytes();
                MacAddr([a, b, c, d, e, f])
            };
            let (source, destination) = if from_higher { (mac(c), mac(a)) } else { (mac(a), mac(c)) };
            return Endpoints::Ethernet { source, destination, ether_type: EtherType(b as u16) };
        }
        let address = |high: u64, low: u64| Address::from_v6_bits(u128::from(high) << 64 | u128::from(low));
        let tuple = FiveTuple {
            source: address(a, b),
            destination: address(c, d),
            source_port: (e >> 16) as u16,
            destination_port: e as u16,
            protocol: self.protocol(),
        };
        Endpoints::Ip(if from_higher { tuple.reversed() } else { tuple })
    }
}

impl Endpoints {
    /// Source and destination of an IP flow.
    #[must_use]
    pub fn addresses(&self) -> Option<[IpAddr; 2]> {
        match self {
            Self::Ip(tuple) => Some([tuple.source.to_ip(), tuple.destination.to_ip()]),
            Self::Ethernet { .. } => None,
        }
    }
}

impl fmt::Display for Endpoints {
    /// As [`FiveTuple`], or `02:00:00:00:00:01 > ff:ff:ff:ff:ff:ff arp`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(tuple) => tuple.fmt(f),
            Self::Ethernet { source, destination, ether_type } => {
                write!(f, "{source} > {destination} {ether_type}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm_wire::FrameBuilder;

    #[test]
    fn both_directions_have_one_key_and_keep_their_endpoints() {
        let (a, b) = (MacAddr([2, 0, 0, 0, 0, 9]), MacAddr([2, 0, 0, 0, 0, 1]));
        for (one, other) in [("10.0.0.9", "10.0.0.1"), ("fd00::9", "fd00::1"), ("10.0.0.1", "10.0.0.1")] {
            let frame = |macs: [MacAddr; 2], ips: [&str; 2], ports: [u16; 2]| {
                let builder = FrameBuilder::new(macs[0], macs[1]).vlan(VlanId::new(7).unwrap());
                let ips = ips.map(|ip| ip.parse::<IpAddr>().unwrap());
                builder.ip(ips[0], ips[1]).udp(ports[0], ports[1]).to_vec().unwrap()
            };
            let there = netvm_wire::parse(&frame([a, b], [one, other], [9, 53])).unwrap();
            let back = netvm_wire::parse(&frame([b, a], [other, one], [53, 9])).unwrap();
            let ((key, higher), (same, lower)) = (Key::of(&there), Key::of(&back));
            assert_eq!((key, higher), (same, !lower));
            assert_eq!(key.endpoints(higher), Endpoints::Ip(there.five_tuple().unwrap()));
            assert_eq!(key.endpoints(lower), Endpoints::Ip(back.five_tuple().unwrap()));
            assert_eq!((key.vlan(), key.protocol()), (7, IpProto::UDP));
        }
        let arp = FrameBuilder::new(a, b).arp_request([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let (key, higher) = Key::of(&netvm_wire::parse(&arp.to_vec().unwrap()).unwrap());
        assert_eq!(key.kind(), Kind::Ethernet);
        let ends = Endpoints::Ethernet { source: a, destination: b, ether_type: EtherType::ARP };
        assert_eq!(key.endpoints(higher), ends);
        assert_eq!(Key::of_malformed(&arp.to_vec().unwrap()[..14]), (key, higher));
        assert_eq!(Key::of_malformed(&[]).0.kind(), Kind::Ethernet);
    }
}
