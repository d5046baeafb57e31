//! What tracking reads of headers beyond the flow key: TCP segments, ICMP identifiers and errors, fragment identifiers.
//! All of it from a private copy, so that lengths cannot change between a check and a use.

use netvm_wire::{Address, EtherType, FlowKey, Fragment, IpProto, TcpFlags, parse_prefix};

use crate::Packet;

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

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Where the IP header begins.
fn network_at(key: &FlowKey) -> usize {
    14 + 4 * (usize::from(key.vlan.is_some()) + usize::from(key.inner_vlan.is_some()))
}

/// Where the transport header begins.
fn transport_at(packet: &Packet<'_>) -> Option<usize> {
    parse_prefix(packet.front, packet.length).ok()?.l4_offset()
}

/// Where the payload of IP ends by its header; the padding of short frames follows it.
fn end_of(packet: &Packet<'_>, ip: usize) -> Option<usize> {
    match packet.key.ether_type {
        EtherType::IPV4 => Some(ip + usize::from(u16_at(packet.front, ip + 2)?)),
        _ => Some(ip + 40 + usize::from(u16_at(packet.front, ip + 4)?)),
    }
}

/// The segment of a TCP packet that is not a later fragment.
pub(crate) fn segment(packet: &Packet<'_>) -> Option<Segment> {
    let ip = network_at(packet.key);
    let tcp = match packet.front.get(ip)? {
        0x45 => ip + 20,
        _ => transport_at(packet)?,
    };
    let header = packet.front.get(tcp..)?;
    let data_offset = usize::from(header.get(12)? >> 4) * 4;
    let flags = packet.key.tcp_flags;
    let data = end_of(packet, ip)?.checked_sub(tcp + data_offset)?;
    let flag = |flag| u32::from(flags.contains(flag));
    let options = header.get(20..data_offset.min(header.len())).unwrap_or_default();
    Some(Segment {
        flags,
        sequence: u32_at(header, 4)?,
        acknowledgment: u32_at(header, 8)?,
        window: u16_at(header, 14)?,
        length: data as u32 + flag(TcpFlags::SYN) + flag(TcpFlags::FIN),
        scale: if flags.contains(TcpFlags::SYN) { scale_of(options) } else { None },
        is_fragment: packet.key.fragment == Fragment::First,
    })
}

/// The shift of the option of window scaling (RFC 7323 section 2.2).
fn scale_of(mut options: &[u8]) -> Option<u8> {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    const WINDOW_SCALE: u8 = 3;
    loop {
        match *options {
            [] | [END, ..] => return None,
            [NOTHING, ref rest @ ..] => options = rest,
            [WINDOW_SCALE, 3, shift, ..] => return Some(shift),
            [_, length, ..] => options = options.get(usize::from(length.max(2))..)?,
            [_] => return None,
        }
    }
}

/// Whether a packet is an ICMP or ICMPv6 error, and so about another packet.
pub(crate) const fn is_error(key: &FlowKey) -> bool {
    match key.protocol {
        // Destination unreachable, source quench, redirect, time exceeded, parameter problem (RFC 792).
        IpProto::ICMP => matches!(key.icmp_type, 3 | 4 | 5 | 11 | 12),
        // Errors are those below 128 (RFC 4443 section 2.1).
        IpProto::ICMPV6 => key.icmp_type < 128,
        _ => false,
    }
}

/// The identifiers of an ICMP query, as if they were ports, and whether it may begin a connection. `None`: another
/// message.
pub(crate) fn query(packet: &Packet<'_>) -> Option<([u16; 2], bool)> {
    let (key, request) = (packet.key, packet.key.icmp_type);
    let begins = match (key.protocol, request) {
        (IpProto::ICMP, 8 | 13 | 17) | (IpProto::ICMPV6, 128) => true,
        (IpProto::ICMP, 0 | 14 | 18) | (IpProto::ICMPV6, 129) => false,
        _ => return None,
    };
    let identifier = u16_at(packet.front, transport_at(packet)? + 4)?;
    Some(([identifier; 2], begins))
}

/// The packet that an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Embedded {
    pub(crate) key: FlowKey,
    pub(crate) ports: [u16; 2],
    /// The sequence number of a TCP segment.
    pub(crate) sequence: Option<u32>,
}

/// The packet that an ICMP error is about: its first headers.
pub(crate) fn embedded(packet: &Packet<'_>) -> Option<Embedded> {
    let ip = packet.front.get(transport_at(packet)? + 8..)?;
    let (mut key, transport) = match ip.first()? >> 4 {
        4 => {
            let address = |at: usize| Some(Address::from_v4_octets(*ip.get(at..)?.first_chunk()?));
            // A later fragment has no ports.
            if u16_at(ip, 6)? & 0x1fff != 0 {
                return None;
            }
            let key = FlowKey { source: address(12)?, destination: address(16)?, ..FlowKey::EMPTY };
            (
                FlowKey { ether_type: EtherType::IPV4, protocol: IpProto(*ip.get(9)?), ..key },
                usize::from(ip[0] & 15) * 4,
            )
        }
        6 => {
            let address = |at: usize| Some(Address::from_v6_octets(*ip.get(at..)?.first_chunk()?));
            let key = FlowKey { source: address(8)?, destination: address(24)?, ..FlowKey::EMPTY };
            (FlowKey { ether_type: EtherType::IPV6, protocol: IpProto(*ip.get(6)?), ..key }, 40)
        }
        _ => return None,
    };
    let transport = ip.get(transport..)?;
    let ports = match key.protocol {
        IpProto::ICMP | IpProto::ICMPV6 => [u16_at(transport, 4)?; 2],
        IpProto::TCP | IpProto::UDP | IpProto::SCTP => [u16_at(transport, 0)?, u16_at(transport, 2)?],
        _ => [0; 2],
    };
    (key.source_port, key.destination_port) = (ports[0], ports[1]);
    let sequence = if key.protocol == IpProto::TCP { Some(u32_at(transport, 4)?) } else { None };
    Some(Embedded { key, ports, sequence })
}

/// What fragments of one packet have in common, besides addresses and protocol.
pub(crate) fn fragment_identifier(packet: &Packet<'_>) -> Option<u32> {
    const FRAGMENT: u8 = 44;
    let ip = network_at(packet.key);
    if packet.key.ether_type == EtherType::IPV4 {
        return u16_at(packet.front, ip + 4).map(u32::from);
    }
    let (mut next, mut at) = (*packet.front.get(ip + 6)?, ip + 40);
    // Hop-by-hop, routing and destination options may come before (RFC 8200 section 4.1).
    while matches!(next, 0 | 43 | 60) {
        next = *packet.front.get(at)?;
        at += (usize::from(*packet.front.get(at + 1)?) + 1) * 8;
    }
    if next == FRAGMENT { u32_at(packet.front, at + 4) } else { None }
}
