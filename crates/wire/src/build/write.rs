// SPDX-License-Identifier: Apache-2.0
//! Writes the headers, payload and checksums of a [`FrameBuilder`] into a frame.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{FrameBuilder, Network, Transport};
use crate::checksum;
use crate::values::{Address, EtherType, IpProto};

impl FrameBuilder<'_> {
    /// Writes the frame into `frame`, which has exactly its size.
    pub(super) fn write_frame(&self, frame: &mut [u8]) {
        let end = frame.len();
        frame.fill(0);
        let mut out = Writer { frame: &mut *frame, at: 0 };
        self.write_link(&mut out);
        self.write_network(&mut out, end);
        out.put(self.payload);
        self.write_checksums(frame);
    }

    pub(super) fn link_len(&self) -> usize {
        14 + 4 * self.tags.iter().flatten().count()
    }

    fn transport_len(&self) -> usize {
        match self.transport {
            _ if self.is_later_fragment() => 0,
            Transport::None(_) => 0,
            Transport::Tcp { .. } => 20,
            Transport::Udp { .. } | Transport::Echo { .. } => 8,
        }
    }

    pub(super) fn headers_len(&self) -> usize {
        let transport = self.transport_len();
        let network = match self.network {
            Network::Raw(_) => 0,
            Network::Arp { .. } => 28,
            Network::Ip { source: IpAddr::V4(_), .. } => 20 + transport,
            Network::Ip { .. } if self.fragment.is_some() => 48 + transport,
            Network::Ip { .. } => 40 + transport,
        };
        self.link_len() + network
    }

    fn is_later_fragment(&self) -> bool {
        self.fragment.is_some_and(|(_, offset, _)| offset != 0)
    }

    fn write_link(&self, out: &mut Writer<'_>) {
        out.put(&self.destination.0);
        out.put(&self.source.0);
        for (kind, vlan) in self.tags.iter().flatten() {
            out.word(kind.0);
            out.word(vlan.get());
        }
        out.word(match self.network {
            Network::Raw(ether_type) => ether_type.0,
            Network::Arp { .. } => EtherType::ARP.0,
            Network::Ip { source: IpAddr::V4(_), .. } => EtherType::IPV4.0,
            Network::Ip { .. } => EtherType::IPV6.0,
        });
    }

    fn write_network(&self, out: &mut Writer<'_>, end: usize) {
        match self.network {
            Network::Raw(_) => {}
            Network::Arp { operation, source, target, target_mac } => {
                out.put(&[0, 1, 8, 0, 6, 4]);
                out.word(operation);
                out.put(&self.source.0);
                out.put(&source.octets());
                out.put(&target_mac.0);
                out.put(&target.octets());
            }
            Network::Ip { source: IpAddr::V4(source), destination: IpAddr::V4(destination) } => {
                self.write_ipv4(out, end, source, destination);
                self.write_transport(out, end);
            }
            Network::Ip { source, destination } => {
                let v6 = |ip: IpAddr| Ipv6Addr::from_bits(Address::from(ip).v6_bits());
                self.write_ipv6(out, end, v6(source), v6(destination));
                self.write_transport(out, end);
            }
        }
    }

    fn write_ipv4(&self, out: &mut Writer<'_>, end: usize, source: Ipv4Addr, destination: Ipv4Addr) {
        let (identification, field) = self.fragment.map_or((0, 0x4000), |(identification, offset, more)| {
            (identification, offset | if more { 0x2000 } else { 0 })
        });
        let total_len = end - out.at;
        out.put(&[0x45, self.dscp << 2]);
        out.word(total_len as u16);
        out.word(identification);
        out.word(field);
        out.put(&[self.ttl, self.protocol_number(false).0, 0, 0]);
        out.put(&source.octets());
        out.put(&destination.octets());
    }

    fn write_ipv6(&self, out: &mut Writer<'_>, end: usize, source: Ipv6Addr, destination: Ipv6Addr) {
        let protocol = self.protocol_number(true);
        let payload_len = end - out.at - 40;
        out.put(&[0x60 | self.dscp >> 2, self.dscp << 6, 0, 0]);
        out.word(payload_len as u16);
        let next = if self.fragment.is_some() { IpProto::FRAGMENT } else { protocol };
        out.put(&[next.0, self.ttl]);
        out.put(&source.octets());
        out.put(&destination.octets());
        if let Some((identification, offset, more)) = self.fragment {
            out.put(&[protocol.0, 0]);
            out.word(offset << 3 | u16::from(more));
            out.word(0);
            out.word(identification);
        }
    }

    fn protocol_number(&self, v6: bool) -> IpProto {
        match self.transport {
            Transport::None(protocol) => protocol,
            Transport::Tcp { .. } => IpProto::TCP,
            Transport::Udp { .. } => IpProto::UDP,
            Transport::Echo { .. } if v6 => IpProto::ICMPV6,
            Transport::Echo { .. } => IpProto::ICMP,
        }
    }

    fn write_transport(&self, out: &mut Writer<'_>, end: usize) {
        if self.is_later_fragment() {
            return;
        }
        match self.transport {
            Transport::None(_) => {}
            Transport::Udp { source, destination } => {
                let length = end - out.at;
                out.word(source);
                out.word(destination);
                out.word(length as u16);
                out.word(0);
            }
            Transport::Tcp { source, destination, flags, sequence, acknowledgment } => {
                out.word(source);
                out.word(destination);
                out.put(&sequence.to_be_bytes());
                out.put(&acknowledgment.to_be_bytes());
                out.put(&[0x50, flags.bits(), 0xff, 0xff, 0, 0, 0, 0]);
            }
            Transport::Echo { reply, identifier, sequence } => {
                let kind = match (self.protocol_number(self.is_v6()), reply) {
                    (IpProto::ICMPV6, false) => 128,
                    (IpProto::ICMPV6, true) => 129,
                    (_, false) => 8,
                    (_, true) => 0,
                };
                out.put(&[kind, 0, 0, 0]);
                out.word(identifier);
                out.word(sequence);
            }
        }
    }

    fn write_checksums(&self, frame: &mut [u8]) {
        let Network::Ip { source, destination } = self.network else { return };
        let (l3, l4) = (self.link_len(), self.headers_len() - self.transport_len());
        if source.is_ipv4() {
            let sum = frame.get(l3..l3 + 20).map_or(0, checksum::internet_checksum);
            checksum::store(frame, l3 + 10, sum);
        }
        let place = match self.transport {
            _ if self.fragment.is_some() => return,
            Transport::None(_) => return,
            Transport::Tcp { .. } => 16,
            Transport::Udp { .. } => 6,
            Transport::Echo { .. } => 2,
        };
        let segment = frame.get(l4..).unwrap_or_default();
        let sum = match self.protocol_number(!source.is_ipv4()) {
            IpProto::ICMP => checksum::internet_checksum(segment),
            IpProto::UDP => checksum::udp_checksum(source.into(), destination.into(), segment),
            protocol => checksum::transport_checksum(source.into(), destination.into(), protocol, segment),
        };
        checksum::store(frame, l4 + place, sum);
    }

    fn is_v6(&self) -> bool {
        matches!(self.network, Network::Ip { source: IpAddr::V6(_), .. })
    }
}

/// Appends bytes to a frame that is long enough.
struct Writer<'a> {
    frame: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        if let Some(place) = self.frame.get_mut(self.at..self.at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
        self.at += bytes.len();
    }

    fn word(&mut self, word: u16) {
        self.put(&word.to_be_bytes());
    }
}
