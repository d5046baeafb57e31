// SPDX-License-Identifier: Apache-2.0
//! Compares [`netvm_wire::parse`] with etherparse, an independent parser.
//!
//! Where both accept a frame they must read the same fields. Any disagreement must have one of the causes in
//! [`Difference`].

use std::fmt::Debug;

use etherparse::{LinkExtSlice, LinkSlice, NetSlice, SlicedPacket, TransportSlice};
use netvm_wire::{Address, EtherType, Fragment, Headers, Malformed, Network, TcpFlags, Transport, parse};

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// Both read the same fields.
    Same,
    /// Both refuse the frame.
    Refused(Malformed),
    /// They differ for a known reason.
    Differs(Difference),
}

/// Accepted causes of a disagreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Difference {
    /// netvm makes a check that etherparse does not.
    Stricter(Malformed),
    /// etherparse does not read SNAP.
    Snap,
    /// etherparse parses MACsec, which netvm treats as an unknown EtherType, and more VLAN tags than netvm.
    LinkExtension,
    /// etherparse skips an authentication header over IPv4, which netvm treats as the protocol.
    Ipv4Authentication,
    /// etherparse parses extension headers in the data of a later IPv6 fragment if its fragment header names one. That
    /// data is the middle of a datagram.
    LaterFragmentBody,
    /// etherparse refuses a malformed IGMP message, which netvm does not parse.
    Igmp,
    /// etherparse refuses a timestamp message (RFC 792) that is not 20 bytes long; netvm does not read its times.
    IcmpTimestamp,
    /// etherparse parses ICMP over IPv6 and ICMPv6 over IPv4. Hosts do not, and netvm treats them as other protocols.
    CrossedIcmp,
    /// etherparse takes an IPv6 payload length of 0 as "to the end of the frame". RFC 8200 allows that only with a
    /// jumbo option, which no frame here can need.
    ZeroPayloadLength,
    /// etherparse takes a UDP length of 0 as "to the end of the packet", as RFC 2675 defines for jumbograms.
    ZeroUdpLength,
}

/// Compares both parsers on one frame.
///
/// # Errors
/// A disagreement without an accepted cause.
pub fn compare(frame: &[u8]) -> Result<Outcome, String> {
    if has_snap(frame) {
        return Ok(Outcome::Differs(Difference::Snap));
    }
    match (parse(frame), SlicedPacket::from_ethernet(frame)) {
        (Err(reason), Err(_)) => Ok(Outcome::Refused(reason)),
        (Ok(ours), Ok(theirs)) => both(frame, &ours, &theirs),
        (Err(reason), Ok(theirs)) => match stricter(reason, &theirs) {
            Some(difference) => Ok(Outcome::Differs(difference)),
            None => Err(format!("netvm refuses ({reason}), etherparse reads {theirs:?}")),
        },
        (Ok(ours), Err(error)) => match more_lenient(frame, &ours) {
            Some(difference) => Ok(Outcome::Differs(difference)),
            None => Err(format!("etherparse refuses ({error}), netvm reads {ours:?}")),
        },
    }
}

/// Whether a SNAP header follows a length field, which etherparse does not read.
fn has_snap(frame: &[u8]) -> bool {
    let kind = |at: usize| frame.get(at..at + 2).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
    let tags = (0..2).take_while(|tag| EtherType(kind(12 + 4 * tag)).is_vlan()).count();
    let at = 12 + 4 * tags;
    kind(at) < EtherType::MIN
        && frame.get(at + 2..).is_some_and(|rest| rest.starts_with(&[0xaa, 0xaa, 3, 0, 0, 0]))
}

fn stricter(reason: Malformed, theirs: &SlicedPacket<'_>) -> Option<Difference> {
    let fragmented = match &theirs.net {
        Some(NetSlice::Ipv4(ip)) => ip.is_payload_fragmented(),
        Some(NetSlice::Ipv6(ip)) => ip.is_payload_fragmented(),
        _ => false,
    };
    let zero_payload = matches!(&theirs.net, Some(NetSlice::Ipv6(ip)) if ip.header().payload_length() == 0);
    match reason {
        // etherparse does not check these.
        Malformed::VlanReserved
        | Malformed::TooManyTags
        | Malformed::LlcLength
        | Malformed::ArpLengths
        | Malformed::Ipv6MappedAddress
        | Malformed::Ipv6TooManyExtensions
        | Malformed::FragmentTooLong
        | Malformed::FragmentOverTcpFlags
        | Malformed::SctpTruncated => Some(Difference::Stricter(reason)),
        _ if zero_payload => Some(Difference::ZeroPayloadLength),
        // etherparse does not parse fragments; netvm parses first fragments.
        Malformed::TcpTruncated
        | Malformed::TcpDataOffset
        | Malformed::UdpTruncated
        | Malformed::UdpLength
        | Malformed::IcmpTruncated
        | Malformed::Icmpv6Truncated
            if fragmented =>
        {
            Some(Difference::Stricter(reason))
        }
        Malformed::UdpLength => match &theirs.transport {
            Some(TransportSlice::Udp(udp)) if udp.length() == 0 => Some(Difference::ZeroUdpLength),
            _ => None,
        },
        _ => None,
    }
}

fn more_lenient(frame: &[u8], ours: &Headers) -> Option<Difference> {
    let key = ours.key();
    if ours.network() == Network::Other && is_link_extension(key.ether_type) {
        return Some(Difference::LinkExtension);
    }
    let is_v4 = ours.network() == Network::Ipv4;
    match key.protocol.0 {
        51 if is_v4 => Some(Difference::Ipv4Authentication),
        2 => Some(Difference::Igmp),
        58 if is_v4 => Some(Difference::CrossedIcmp),
        1 if ours.network() == Network::Ipv6 => Some(Difference::CrossedIcmp),
        1 if matches!(key.icmp_type, 13 | 14) => Some(Difference::IcmpTimestamp),
        _ if !is_v4 && key.fragment == Fragment::Later => Some(Difference::LaterFragmentBody),
        _ => {
            let payload_length = frame.get(ours.l3_offset() + 4..ours.l3_offset() + 6);
            (!is_v4 && payload_length == Some(&[0, 0])).then_some(Difference::ZeroPayloadLength)
        }
    }
}

fn is_link_extension(ether_type: EtherType) -> bool {
    matches!(ether_type.0, 0x8100 | 0x88a8 | 0x9100 | 0x88e5)
}

fn both(frame: &[u8], ours: &Headers, theirs: &SlicedPacket<'_>) -> Result<Outcome, String> {
    let key = ours.key();
    let Some(LinkSlice::Ethernet2(link)) = &theirs.link else {
        return Err("etherparse sees no Ethernet header".to_owned());
    };
    same("source MAC", key.source_mac.0, link.source())?;
    same("destination MAC", key.destination_mac.0, link.destination())?;
    if theirs.link_exts.len() > 2
        || theirs.link_exts.iter().any(|extension| matches!(extension, LinkExtSlice::Macsec(_)))
        || is_link_extension(key.ether_type)
    {
        return Ok(Outcome::Differs(Difference::LinkExtension));
    }
    let ids: Vec<u16> = theirs.vlan_ids().iter().map(|id| id.value()).collect();
    same("number of tags", usize::from(ours.vlan_tags()), ids.len())?;
    let id = |vlan: Option<netvm_wire::VlanId>| vlan.map_or(0, netvm_wire::VlanId::get);
    same("outer VLAN", id(key.vlan), ids.first().copied().unwrap_or(0))?;
    same("inner VLAN", id(key.inner_vlan), ids.get(1).copied().unwrap_or(0))?;
    match &theirs.net {
        None => {
            same("network", matches!(ours.network(), Network::Other | Network::Llc), true)?;
            Ok(Outcome::Same)
        }
        Some(NetSlice::Arp(arp)) => {
            same("network", ours.network(), Network::Arp)?;
            same("operation", key.arp_operation, arp.operation().0)?;
            if arp.hw_addr_type().0 == 1 && arp.proto_addr_type().0 == 0x0800 {
                same(
                    "ARP source",
                    key.source.v4_bits().map(u32::to_be_bytes).as_ref(),
                    arp.sender_protocol_addr().first_chunk(),
                )?;
                same(
                    "ARP target",
                    key.destination.v4_bits().map(u32::to_be_bytes).as_ref(),
                    arp.target_protocol_addr().first_chunk(),
                )?;
            }
            Ok(Outcome::Same)
        }
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header();
            same("network", ours.network(), Network::Ipv4)?;
            same("source", key.source, Address::from_v4_octets(header.source()))?;
            same("destination", key.destination, Address::from_v4_octets(header.destination()))?;
            same("DSCP", key.dscp, header.dcp().value())?;
            if header.protocol().0 == 51 {
                return Ok(Outcome::Differs(Difference::Ipv4Authentication));
            }
            same("protocol", key.protocol.0, ip.payload_ip_number().0)?;
            let offset = header.fragments_offset().value();
            same("fragment", key.fragment, fragment(ip.is_payload_fragmented(), offset))?;
            transport(frame, ours, theirs, ip.payload().payload)
        }
        Some(NetSlice::Ipv6(ip)) => {
            let header = ip.header();
            same("network", ours.network(), Network::Ipv6)?;
            same("source", key.source, Address::from_v6_octets(header.source()))?;
            same("destination", key.destination, Address::from_v6_octets(header.destination()))?;
            same("DSCP", key.dscp, header.dscp().value())?;
            if key.fragment == Fragment::Later {
                same("fragmented", ip.is_payload_fragmented(), true)?;
                return Ok(if ip.payload().ip_number.0 == key.protocol.0 {
                    Outcome::Same
                } else {
                    Outcome::Differs(Difference::LaterFragmentBody)
                });
            }
            if header.payload_length() == 0 {
                return Ok(Outcome::Differs(Difference::ZeroPayloadLength));
            }
            same("protocol", key.protocol.0, ip.payload().ip_number.0)?;
            same("fragmented", key.fragment == Fragment::First, ip.is_payload_fragmented())?;
            transport(frame, ours, theirs, ip.payload().payload)
        }
    }
}

const fn fragment(fragmented: bool, offset: u16) -> Fragment {
    match (fragmented, offset) {
        (false, _) => Fragment::Whole,
        (true, 0) => Fragment::First,
        (true, _) => Fragment::Later,
    }
}

fn transport(
    frame: &[u8],
    ours: &Headers,
    theirs: &SlicedPacket<'_>,
    segment: &[u8],
) -> Result<Outcome, String> {
    let key = ours.key();
    let start = offset_in(frame, segment);
    match ours.l4_offset() {
        Some(l4) => same("start of the transport header", l4, start)?,
        None => same("start of the payload", ours.payload_offset(), start)?,
    }
    let payload = match &theirs.transport {
        Some(TransportSlice::Tcp(tcp)) => {
            same("transport", ours.transport(), Transport::Tcp)?;
            same(
                "ports",
                (key.source_port, key.destination_port),
                (tcp.source_port(), tcp.destination_port()),
            )?;
            let flags =
                [tcp.fin(), tcp.syn(), tcp.rst(), tcp.psh(), tcp.ack(), tcp.urg(), tcp.ece(), tcp.cwr()];
            let flags = (0..).zip(flags).map(|(bit, flag)| u8::from(flag) << bit).sum();
            same("flags", key.tcp_flags, TcpFlags::from_bits_retain(flags))?;
            tcp.payload()
        }
        Some(TransportSlice::Udp(udp)) => {
            same("transport", ours.transport(), Transport::Udp)?;
            same(
                "ports",
                (key.source_port, key.destination_port),
                (udp.source_port(), udp.destination_port()),
            )?;
            udp.payload()
        }
        Some(TransportSlice::Icmpv4(icmp)) => {
            if ours.network() == Network::Ipv6 {
                return Ok(Outcome::Differs(Difference::CrossedIcmp));
            }
            same("transport", ours.transport(), Transport::Icmp)?;
            same("type and code", (key.icmp_type, key.icmp_code), (icmp.type_u8(), icmp.code_u8()))?;
            return Ok(Outcome::Same);
        }
        Some(TransportSlice::Icmpv6(icmp)) => {
            if ours.network() == Network::Ipv4 {
                return Ok(Outcome::Differs(Difference::CrossedIcmp));
            }
            same("transport", ours.transport(), Transport::Icmpv6)?;
            same("type and code", (key.icmp_type, key.icmp_code), (icmp.type_u8(), icmp.code_u8()))?;
            return Ok(Outcome::Same);
        }
        Some(TransportSlice::Igmp(_)) => {
            same("transport", ours.transport(), Transport::Other)?;
            return Ok(Outcome::Same);
        }
        None if key.fragment == Fragment::First => return Ok(Outcome::Same),
        None => {
            same(
                "transport",
                matches!(ours.transport(), Transport::None | Transport::Other | Transport::Sctp),
                true,
            )?;
            return Ok(Outcome::Same);
        }
    };
    same("payload", (ours.payload_offset(), ours.payload(frame)), (offset_in(frame, payload), payload))?;
    Ok(Outcome::Same)
}

/// Offset of a subslice in the frame.
fn offset_in(frame: &[u8], part: &[u8]) -> usize {
    part.as_ptr().addr() - frame.as_ptr().addr()
}

#[allow(clippy::needless_pass_by_value, reason = "reads as assert_eq does")]
fn same<T: PartialEq + Debug>(what: &str, ours: T, theirs: T) -> Result<(), String> {
    if ours == theirs { Ok(()) } else { Err(format!("{what}: netvm reads {ours:?}, etherparse {theirs:?}")) }
}
