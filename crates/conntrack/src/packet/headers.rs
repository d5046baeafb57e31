// SPDX-License-Identifier: Apache-2.0
//! What tracking reads of headers beyond the flow key: TCP segments, ICMP identifiers and errors, fragment identifiers.
//! All of it from a private copy, so that lengths cannot change between a check and a use.

use netvm_wire::{Address, FlowKey, Fragment, IpProto, TcpFlags, parse_prefix};

use crate::Packet;
use crate::packet::options::{WINDOW_SCALE, option};
use crate::packet::tuple::{Ports, query_of};

/// A TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) flags: TcpFlags,
    pub(crate) sequence: u32,
    pub(crate) acknowledgment: u32,
    pub(crate) window: u16,
    /// Of data, SYN and FIN in sequence numbers.
    pub(crate) length: u32,
    /// The option of window scaling.
    pub(crate) scale: Option<u8>,
    /// The length is that of a first fragment alone.
    pub(crate) is_fragment: bool,
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Where the layers of an IP packet are, in bytes from the start of its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layers {
    /// The IP header.
    pub(crate) network: usize,
    /// The header of the protocol over IP; a later fragment has none.
    pub(crate) transport: Option<usize>,
    /// That protocol.
    pub(crate) protocol: IpProto,
    /// The end by the lengths of the headers; the padding of short frames follows it.
    pub(crate) end: usize,
}

/// The layers of an IP packet of `length` bytes that begins with `front`.
pub(crate) fn layers(front: &[u8], length: usize) -> Option<Layers> {
    if let Some(layers) = layers_of_plain(front) {
        return Some(layers);
    }
    let headers = parse_prefix(front, length).ok()?;
    let (network, transport) = (headers.l3_offset(), headers.l4_offset());
    let (protocol, end) = (headers.key().protocol, headers.payload_end());
    headers.key().is_ip().then_some(Layers { network, transport, protocol, end })
}

/// Those of a whole packet without IP options, extension headers or more than one VLAN tag.
fn layers_of_plain(front: &[u8]) -> Option<Layers> {
    let network = if *front.first_chunk::<14>()?.last_chunk()? == [0x81, 0] { 18 } else { 14 };
    let (protocol, header, length) = match (*front.get(network - 2..)?.first_chunk()?, *front.get(network)?) {
        ([0x08, 0x00], 0x45) if u16_at(front, network + 6)? & 0x3fff == 0 => {
            (IpProto(*front.get(network + 9)?), 20, usize::from(u16_at(front, network + 2)?))
        }
        ([0x86, 0xdd], _) => {
            (IpProto(*front.get(network + 6)?), 40, 40 + usize::from(u16_at(front, network + 4)?))
        }
        _ => return None,
    };
    let is_plain = header == 20 || protocol.has_ports() || protocol == IpProto::ICMPV6;
    let transport = Some(network + header);
    is_plain.then_some(Layers { network, transport, protocol, end: network + length })
}

/// What follows the IP header of a packet that is not a later fragment, as far as it is at hand.
pub(crate) fn transport<'a>(packet: &Packet<'a>) -> Option<&'a [u8]> {
    let layers = layers(packet.front, packet.length)?;
    packet.front.get(layers.transport?..layers.end.min(packet.front.len()))
}

/// The segment of a TCP packet that is not a later fragment.
pub(crate) fn segment(packet: &Packet<'_>) -> Option<Segment> {
    let layers = layers(packet.front, packet.length)?;
    let at = layers.transport?;
    let header = packet.front.get(at..)?;
    let data_offset = usize::from(header.get(12)? >> 4) * 4;
    let flags = packet.key.tcp_flags;
    let data = layers.end.checked_sub(at + data_offset)?;
    let flag = |flag| u32::from(flags.contains(flag));
    let options = header.get(20..data_offset.min(header.len())).unwrap_or_default();
    Some(Segment {
        flags,
        sequence: u32_at(header, 4)?,
        acknowledgment: u32_at(header, 8)?,
        window: u16_at(header, 14)?,
        length: data as u32 + flag(TcpFlags::SYN) + flag(TcpFlags::FIN),
        scale: if flags.contains(TcpFlags::SYN) {
            option(options, WINDOW_SCALE).map(|[shift]| shift)
        } else {
            None
        },
        is_fragment: packet.key.fragment == Fragment::First,
    })
}

/// What an ICMP or ICMPv6 message is to tracking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// A request, or a reply to one, of this kind.
    Query(u8),
    /// An error, about another packet.
    Error,
    /// Of the link: Linux does not track neighbour discovery and multicast listeners, either.
    OfLink,
    /// Any other.
    Other,
}

pub(crate) const fn message(protocol: IpProto, icmp_type: u8) -> Message {
    if let Some(query) = query_of(protocol, icmp_type) {
        return Message::Query(query);
    }
    match (protocol, icmp_type) {
        // Destination unreachable, source quench, redirect, time exceeded, parameter problem (RFC 792).
        (IpProto::ICMP, 3 | 4 | 5 | 11 | 12) => Message::Error,
        // Errors are those below 128 (RFC 4443 section 2.1).
        (IpProto::ICMPV6, 0..128) => Message::Error,
        (IpProto::ICMPV6, 130..=137 | 143) => Message::OfLink,
        _ => Message::Other,
    }
}

/// The identifier of an ICMP query.
pub(crate) fn identifier(packet: &Packet<'_>) -> Option<u16> {
    u16_at(packet.front, layers(packet.front, packet.length)?.transport? + 4)
}

/// The packet that an ICMP error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Embedded {
    pub(crate) key: FlowKey,
    pub(crate) ports: Ports,
    /// The sequence number of a TCP segment, or the verification tag of an SCTP packet.
    pub(crate) number: Option<u32>,
    /// Its layers. The end is that of the error.
    pub(crate) layers: Layers,
}

/// Reads the packet that an ICMP error with these layers is about from its first headers.
pub(crate) fn embedded(front: &[u8], outer: &Layers) -> Option<Embedded> {
    const ICMP_HEADER: usize = 8;
    let network = outer.transport? + ICMP_HEADER;
    let (key, length) = match outer.protocol {
        IpProto::ICMP => embedded_v4(front.get(network..)?)?,
        _ => embedded_v6(front.get(network..)?)?,
    };
    let (at, protocol) = (network + length, key.protocol);
    let transport = front.get(at..outer.end.min(front.len()))?;
    let ports = match protocol {
        IpProto::ICMP | IpProto::ICMPV6 => {
            let query = query_of(protocol, *transport.first()?)?;
            Ports { numbers: [u16_at(transport, 4)?; 2], query }
        }
        protocol if protocol.has_ports() => {
            Ports { numbers: [u16_at(transport, 0)?, u16_at(transport, 2)?], query: 0 }
        }
        _ => Ports::default(),
    };
    // Both in the same place.
    let has_number = matches!(protocol, IpProto::TCP | IpProto::SCTP);
    let number = if has_number { Some(u32_at(transport, 4)?) } else { None };
    let layers = Layers { network, transport: Some(at), protocol, end: outer.end };
    Some(Embedded { key, ports, number, layers })
}

/// Addresses and protocol, and the length of the header. `None` for a later fragment, which has no ports.
fn embedded_v4(ip: &[u8]) -> Option<(FlowKey, usize)> {
    const OFFSET: u16 = 0x1fff;
    let header: &[u8; 20] = ip.first_chunk()?;
    if header[0] >> 4 != 4 || header[0] & 15 < 5 || u16_at(ip, 6)? & OFFSET != 0 {
        return None;
    }
    let source = Address::from_v4_octets(*ip.get(12..)?.first_chunk()?);
    let destination = Address::from_v4_octets(*ip.get(16..)?.first_chunk()?);
    let key = FlowKey { source, destination, protocol: IpProto(header[9]), ..FlowKey::EMPTY };
    Some((key, usize::from(header[0] & 15) * 4))
}

/// Like [`embedded_v4`], past extension headers.
fn embedded_v6(ip: &[u8]) -> Option<(FlowKey, usize)> {
    let header: &[u8; 40] = ip.first_chunk()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let source = Address::from_v6_octets(*ip.get(8..)?.first_chunk()?);
    let destination = Address::from_v6_octets(*ip.get(24..)?.first_chunk()?);
    let Extensions { fragment, protocol, end, .. } = walk_extensions(ip)?;
    let has_ports = fragment.is_none_or(|(_, is_later)| !is_later);
    has_ports.then_some((FlowKey { source, destination, protocol, ..FlowKey::EMPTY }, end))
}

/// What follows an IPv6 header. Places are in bytes from that header.
pub(crate) struct Extensions {
    /// The fragment header, if there is one: where it is, and whether the packet is a later fragment.
    pub(crate) fragment: Option<(usize, bool)>,
    /// The number of segments left in a routing header, if it is not zero: where it is.
    pub(crate) segments_left: Option<usize>,
    /// The protocol after the extension headers that were read.
    pub(crate) protocol: IpProto,
    /// Where it begins.
    pub(crate) end: usize,
}

/// Walks the extension headers, up to a fragment header after which a later fragment has none.
pub(crate) fn walk_extensions(ip: &[u8]) -> Option<Extensions> {
    const OFFSET: u16 = 0xfff8;
    const SEGMENTS_LEFT: usize = 3;
    let protocol = IpProto(*ip.get(6)?);
    let mut walk = Extensions { fragment: None, segments_left: None, protocol, end: 40 };
    loop {
        let at = walk.end;
        if walk.protocol == IpProto::ROUTING && *ip.get(at + SEGMENTS_LEFT)? != 0 {
            walk.segments_left = walk.segments_left.or(Some(at + SEGMENTS_LEFT));
        }
        walk.end += match walk.protocol {
            IpProto::HOP_BY_HOP | IpProto::ROUTING | IpProto::DESTINATION_OPTIONS => {
                (usize::from(*ip.get(at + 1)?) + 1) * 8
            }
            IpProto::FRAGMENT if walk.fragment.is_none() => {
                walk.fragment = Some((at, u16_at(ip, at + 2)? & OFFSET != 0));
                8
            }
            _ => return Some(walk),
        };
        walk.protocol = IpProto(*ip.get(at)?);
        if walk.fragment.is_some_and(|(_, is_later)| is_later) {
            return Some(walk);
        }
    }
}

/// What fragments of one packet have in common, besides addresses and protocol.
pub(crate) fn fragment_identifier(packet: &Packet<'_>) -> Option<u32> {
    let ip = packet.front.get(layers(packet.front, packet.length)?.network..)?;
    if ip.first()? >> 4 == 4 {
        return u16_at(ip, 4).map(u32::from);
    }
    let (at, _) = walk_extensions(ip)?.fragment?;
    u32_at(ip, at + 4)
}
