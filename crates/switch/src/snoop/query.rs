// SPDX-License-Identifier: Apache-2.0
//! Writes the queries of this switch: of IGMPv3 (RFC 3376) and of MLDv2 (RFC 3810), which hosts of earlier versions
//! understand, too.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use netvm_wire::checksum::{internet_checksum, transport_checksum};
use netvm_wire::{Address, EtherType, IpProto, MacAddr, VlanId};

/// Longest query: Ethernet, a tag, IPv6, the hop-by-hop option, MLDv2.
pub const MAX_QUERY: usize = 14 + 4 + 40 + 8 + 28;
/// Bytes of the shortest Ethernet frame, without its check sequence.
const MIN_FRAME: usize = 60;
/// 224.0.0.1 and ff02::1.
const ALL_SYSTEMS: Address = Address::from_v4_bits(0xe000_0001);
const ALL_NODES: Address = Address::from_v6_bits(0xff02 << 112 | 1);
/// Internetwork control, as Linux sends it.
const TOS: u8 = 0xc0;
const HOP_BY_HOP: u8 = 0;
/// The robustness variable of both protocols.
pub(super) const ROBUSTNESS: u32 = 2;

/// From whom queries come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuerierAddresses {
    /// The MAC address.
    pub mac: MacAddr,
    /// The IPv4 address; 0.0.0.0: none, such a querier yields to every other.
    pub v4: Ipv4Addr,
    /// The link-local IPv6 address.
    pub v6: Ipv6Addr,
}

impl QuerierAddresses {
    /// With the link-local address of the MAC address (RFC 4291 appendix A).
    #[must_use]
    pub const fn of(mac: MacAddr, v4: Ipv4Addr) -> Self {
        let [a, b, c, d, e, f] = mac.0;
        let v6 = Ipv6Addr::from_octets([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
        Self { mac, v4, v6 }
    }

    /// The address of a family; `None`: 0.0.0.0.
    pub(super) fn address(&self, is_v4: bool) -> Option<Address> {
        match is_v4 {
            true => Some(Address::from_v4_octets(self.v4.octets())).filter(|_| !self.v4.is_unspecified()),
            false => Some(Address::from_v6_octets(self.v6.octets())),
        }
    }
}

/// A query to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueryToSend {
    pub from: QuerierAddresses,
    pub is_v4: bool,
    /// `None`: for all groups.
    pub group: Option<Address>,
    pub response: Duration,
    pub interval: Duration,
}

impl QueryToSend {
    /// The frame, with this tag.
    pub fn frame(&self, tag: Option<VlanId>) -> Vec<u8> {
        let to = self.group.unwrap_or(if self.is_v4 { ALL_SYSTEMS } else { ALL_NODES });
        let mut frame = Vec::with_capacity(MAX_QUERY);
        frame.extend(mac_of(to).0);
        frame.extend(self.from.mac.0);
        if let Some(tag) = tag {
            frame.extend(EtherType::VLAN.0.to_be_bytes());
            frame.extend(tag.get().to_be_bytes());
        }
        match to.v4_bits() {
            Some(to) => self.add_igmp(to, &mut frame),
            None => self.add_mld(to, &mut frame),
        }
        frame.resize(frame.len().max(MIN_FRAME), 0);
        frame
    }

    fn add_igmp(&self, to: u32, frame: &mut Vec<u8>) {
        let group = if self.group.is_some() { to } else { 0 };
        let mut message = [0; 12];
        (message[0], message[1]) = (0x11, fold(self.response.as_millis() / 100, 4) as u8);
        message[4..8].copy_from_slice(&group.to_be_bytes());
        (message[8], message[9]) = (ROBUSTNESS as u8, fold(self.interval.as_secs().into(), 4) as u8);
        let sum = internet_checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        // With the router alert option (RFC 2113).
        let mut header = [0x46, TOS, 0, 36, 0, 0, 0x40, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x94, 4, 0, 0];
        header[12..16].copy_from_slice(&self.from.v4.octets());
        header[16..20].copy_from_slice(&to.to_be_bytes());
        let sum = internet_checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        frame.extend(EtherType::IPV4.0.to_be_bytes());
        frame.extend(header);
        frame.extend(message);
    }

    fn add_mld(&self, to: Address, frame: &mut Vec<u8>) {
        let group = self.group.map_or(0, Address::v6_bits);
        let mut message = [0; 28];
        message[0] = 130;
        message[4..6].copy_from_slice(&(fold(self.response.as_millis(), 12) as u16).to_be_bytes());
        message[8..24].copy_from_slice(&group.to_be_bytes());
        (message[24], message[25]) = (ROBUSTNESS as u8, fold(self.interval.as_secs().into(), 4) as u8);
        let source = Address::from_v6_octets(self.from.v6.octets());
        let sum = transport_checksum(source, to, IpProto::ICMPV6, &message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        frame.extend(EtherType::IPV6.0.to_be_bytes());
        frame.extend([0x6c, 0, 0, 0, 0, 36, HOP_BY_HOP, 1]);
        frame.extend(source.v6_bits().to_be_bytes());
        frame.extend(to.v6_bits().to_be_bytes());
        // The router alert option (RFC 2711), padded.
        frame.extend([IpProto::ICMPV6.0, 0, 5, 2, 0, 0, 1, 0]);
        frame.extend(message);
    }
}

/// The MAC address of a group (RFC 1112 section 6.4, RFC 2464 section 7).
fn mac_of(group: Address) -> MacAddr {
    let [a, b, c, d] = (group.v6_bits() as u32).to_be_bytes();
    MacAddr(if group.is_v4() { [1, 0, 0x5e, b & 0x7f, c, d] } else { [0x33, 0x33, a, b, c, d] })
}

/// As a number of 3 bits of exponent above a mantissa of `bits`, if it is too large for a plain one; rounded down.
fn fold(value: u128, bits: u32) -> u32 {
    let leading = 1u128 << bits;
    if value < leading << 3 {
        return value as u32;
    }
    let exponent = (0..7).find(|exponent| value >> (exponent + 3) < leading << 1).unwrap_or(7);
    let mantissa = (value >> (exponent + 3)).min((leading << 1) - 1) & (leading - 1);
    1 << (bits + 3) | exponent << bits | mantissa as u32
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use netvm_wire::parse;

    use super::super::message::{GroupPacket, Message, Query};
    use super::*;

    #[test]
    fn queries_are_read_as_they_were_meant() {
        let from = QuerierAddresses::of(MacAddr([2, 0, 0, 0, 0, 7]), Ipv4Addr::new(10, 0, 0, 1));
        let address = |text: &str| Address::from(text.parse::<std::net::IpAddr>().unwrap());
        let families = [(true, "239.1.2.3", "10.0.0.1"), (false, "ff15::1", "fe80::ff:fe00:7")];
        let times = [(false, 125, 10_000), (true, 60, 1000), (true, 3968, 12_800), (false, 1, 100)];
        for (is_v4, group, source) in families {
            for (has_group, seconds, milliseconds) in times {
                let group = has_group.then(|| address(group));
                let (response, interval) =
                    (Duration::from_millis(milliseconds), Duration::from_secs(seconds));
                let query = QueryToSend { from, is_v4, group, response, interval };
                for tag in [None, VlanId::new(12).ok()] {
                    let frame = query.frame(tag);
                    let headers = parse(&frame).unwrap();
                    assert_eq!((headers.key().vlan, headers.key().source_mac), (tag, from.mac));
                    assert_eq!(GroupPacket::of(headers.key()), GroupPacket::Control);
                    let interval = Some(interval);
                    let expected =
                        Query { source: address(source), group, response, interval, may_end: true };
                    assert_eq!(Message::read(&frame, &headers), Ok(Message::Query(expected)));
                    assert!((MIN_FRAME..=MAX_QUERY).contains(&frame.len()));
                }
            }
        }
    }

    #[test]
    fn macs_are_those_of_the_groups() {
        let mac = |text: &str| mac_of(text.parse::<std::net::IpAddr>().unwrap().into()).to_string();
        assert_eq!(mac("239.129.2.3"), "01:00:5e:01:02:03");
        assert_eq!(mac("ff15::1:2"), "33:33:00:01:00:02");
    }
}
