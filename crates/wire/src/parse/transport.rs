// SPDX-License-Identifier: Apache-2.0
//! Parses transport headers.

use super::{Frame, Headers, Malformed, Network, Transport};
use crate::flow::Fragment;
use crate::values::{IpProto, TcpFlags};

/// Reads the transport header at `at` of a packet that ends at `end`.
#[inline]
pub(super) fn read(frame: &Frame<'_>, at: usize, end: usize, headers: &mut Headers) -> Result<(), Malformed> {
    headers.l4 = at as u16;
    let length = match headers.key.protocol {
        IpProto::TCP => tcp(frame, at, end, headers)?,
        IpProto::UDP => udp(frame, at, end, headers)?,
        IpProto::SCTP => sctp(frame, at, end, headers)?,
        IpProto::ICMP if headers.network == Network::Ipv4 => {
            icmp(frame.array(at, end, Malformed::IcmpTruncated)?, Transport::Icmp, headers)
        }
        IpProto::ICMPV6 if headers.network == Network::Ipv6 => {
            icmp(frame.array(at, end, Malformed::Icmpv6Truncated)?, Transport::Icmpv6, headers)
        }
        _ => {
            headers.transport = Transport::Other;
            0
        }
    };
    headers.payload = (at + length) as u16;
    Ok(())
}

#[inline(always)]
fn ports(headers: &mut Headers, transport: Transport, [a, b, c, d]: [u8; 4]) {
    headers.key.source_port = u16::from_be_bytes([a, b]);
    headers.key.destination_port = u16::from_be_bytes([c, d]);
    headers.transport = transport;
}

/// TCP (RFC 9293 section 3.1).
#[inline]
fn tcp(frame: &Frame<'_>, at: usize, end: usize, headers: &mut Headers) -> Result<usize, Malformed> {
    const HEADER: usize = 20;
    let header: &[u8; HEADER] = frame.array(at, end, Malformed::TcpTruncated)?;
    let length = usize::from(header[12] >> 4) * 4;
    if length < HEADER || at + length > end {
        return Err(Malformed::TcpDataOffset);
    }
    ports(headers, Transport::Tcp, [header[0], header[1], header[2], header[3]]);
    headers.key.tcp_flags = TcpFlags::from_bits_retain(header[13]);
    Ok(length)
}

/// UDP (RFC 768). A first fragment has the length of the whole datagram, so the packet does not bound it.
#[inline]
fn udp(frame: &Frame<'_>, at: usize, end: usize, headers: &mut Headers) -> Result<usize, Malformed> {
    const HEADER: usize = 8;
    let header: &[u8; HEADER] = frame.array(at, end, Malformed::UdpTruncated)?;
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let whole = headers.key.fragment == Fragment::Whole;
    if length < HEADER || (whole && at + length > end) {
        return Err(Malformed::UdpLength);
    }
    if whole {
        headers.payload_end = (at + length) as u32;
    }
    ports(headers, Transport::Udp, [header[0], header[1], header[2], header[3]]);
    Ok(HEADER)
}

/// The SCTP common header (RFC 9260 section 3.1).
fn sctp(frame: &Frame<'_>, at: usize, end: usize, headers: &mut Headers) -> Result<usize, Malformed> {
    let header: &[u8; 12] = frame.array(at, end, Malformed::SctpTruncated)?;
    ports(headers, Transport::Sctp, [header[0], header[1], header[2], header[3]]);
    Ok(header.len())
}

/// ICMP (RFC 792) and ICMPv6 (RFC 4443). Hosts drop messages shorter than 8 bytes, which neither protocol defines.
fn icmp(header: &[u8; 8], transport: Transport, headers: &mut Headers) -> usize {
    headers.key.icmp_type = header[0];
    headers.key.icmp_code = header[1];
    headers.transport = transport;
    header.len()
}
