// SPDX-License-Identifier: Apache-2.0
//! VXLAN (RFC 7348): Ethernet frames in UDP datagrams between tunnel end points (VTEPs).
//!
//! ```text
//!  Ethernet │ IPv4 (20) or IPv6 (40) │ UDP (8) │ 08 00 00 00  VNI (3) 00 │ inner frame
//! ```
//!
//! [`Outer`] writes the headers from the IP header on, [`datagram`] and [`vni`] read them. ECN follows RFC 6040.

mod ecn;
mod template;
#[cfg(test)]
mod tests;

use crate::checksum::{Sum, fold, internet_checksum, pseudo_header_sum};
use crate::{Address, IpProto};
pub use ecn::{TosPlace, decapsulated_tos};
pub use template::Template;

/// The UDP port of VXLAN (IANA).
pub const UDP_PORT: u16 = 4789;
/// Bytes of the VXLAN header.
pub const HEADER: usize = 8;
/// Bytes before the inner frame, from the IPv4 header on, and from the IPv6 header on.
pub const V4_HEADERS: usize = V4 + UDP + HEADER;
/// The same over IPv6.
pub const V6_HEADERS: usize = V6 + UDP + HEADER;
/// Source ports: those that RFC 7348 section 5 recommends.
const SOURCE_PORTS: u16 = 49_152;

const V4: usize = 20;
const V6: usize = 40;
const UDP: usize = 8;
/// Flags with only the I bit: the VNI is valid.
const FLAGS: [u8; 4] = [8, 0, 0, 0];
/// IPv4's flag: do not fragment.
const DF: u8 = 0x40;

/// A VXLAN network identifier, of 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vni(u32);

impl Vni {
    /// The highest one.
    pub const MAX: u32 = (1 << 24) - 1;

    /// The identifier with this number; `None` if it is too large.
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        if number <= Self::MAX { Some(Self(number)) } else { None }
    }

    /// Its number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// The headers before an inner frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    /// The VTEP that sends.
    pub source: Address,
    /// The VTEP that receives, of the same family.
    pub destination: Address,
    /// UDP ports.
    pub ports: [u16; 2],
    /// The network.
    pub vni: Vni,
    /// DSCP and ECN.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Routers on the way may fragment it (IPv4).
    pub may_fragment: bool,
}

impl Outer {
    /// Bytes that [`Outer::write`] writes.
    #[must_use]
    pub const fn length(&self) -> usize {
        if self.destination.is_v4() { V4_HEADERS } else { V6_HEADERS }
    }

    /// Writes the headers, from the IP header on, before an inner frame of `inner` bytes; returns how many bytes they
    /// are. The checksum of UDP is 0: there is none. `None` if the IP packet would be too long, or `out` too short.
    #[must_use]
    pub fn write(&self, inner: usize, out: &mut [u8]) -> Option<usize> {
        let length = self.length();
        let out = out.get_mut(..length)?;
        let (ip, rest) = out.split_at_mut(length - UDP - HEADER);
        let payload = u16::try_from(UDP + HEADER + inner).ok()?;
        match (self.source.v4_bits(), self.destination.v4_bits()) {
            (Some(source), Some(destination)) => {
                let total = payload.checked_add(V4 as u16)?;
                ip[..2].copy_from_slice(&[0x45, self.tos]);
                ip[2..4].copy_from_slice(&total.to_be_bytes());
                // Without fragmentation, the identification may be anything (RFC 6864).
                ip[4..6].copy_from_slice(&self.ports[0].to_be_bytes());
                ip[6..8].copy_from_slice(&[if self.may_fragment { 0 } else { DF }, 0]);
                ip[8..12].copy_from_slice(&[self.ttl, IpProto::UDP.0, 0, 0]);
                ip[12..16].copy_from_slice(&source.to_be_bytes());
                ip[16..].copy_from_slice(&destination.to_be_bytes());
                let sum = internet_checksum(ip);
                ip[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            _ => {
                ip[..4].copy_from_slice(&[0x60 | self.tos >> 4, self.tos << 4, 0, 0]);
                ip[4..6].copy_from_slice(&payload.to_be_bytes());
                ip[6..8].copy_from_slice(&[IpProto::UDP.0, self.ttl]);
                ip[8..24].copy_from_slice(&self.source.v6_bits().to_be_bytes());
                ip[24..].copy_from_slice(&self.destination.v6_bits().to_be_bytes());
            }
        }
        let [source, destination] = self.ports.map(u16::to_be_bytes);
        rest[..2].copy_from_slice(&source);
        rest[2..4].copy_from_slice(&destination);
        rest[4..6].copy_from_slice(&payload.to_be_bytes());
        rest[6..8].fill(0);
        rest[8..12].copy_from_slice(&FLAGS);
        let [_, a, b, c] = self.vni.get().to_be_bytes();
        rest[12..].copy_from_slice(&[a, b, c, 0]);
        Some(length)
    }
}

/// The UDP source port for an inner flow with this hash, so that routers on the way spread flows.
#[must_use]
pub const fn source_port(hash: u64) -> u16 {
    SOURCE_PORTS | (hash >> 40) as u16
}

/// A UDP datagram whose first bytes were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Source address.
    pub source: Address,
    /// Destination address.
    pub destination: Address,
    /// Destination port.
    pub port: u16,
    /// Bytes of the IP header.
    pub ip_header: usize,
    /// It is the first of several fragments.
    pub is_fragment: bool,
}

/// Reads the beginning of a packet from its IP header on. `None` if it is no UDP datagram, or one with options or
/// extension headers, or a later fragment: its headers then have to be parsed in full.
#[inline]
#[must_use]
pub fn datagram(packet: &[u8]) -> Option<Datagram> {
    let (source, destination, ip_header, is_fragment) = match packet.first()? >> 4 {
        4 => {
            let ip: &[u8; V4] = packet.first_chunk()?;
            let fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff;
            if ip[0] != 0x45 || ip[9] != IpProto::UDP.0 || fragment & 0x1fff != 0 {
                return None;
            }
            let address = |at: usize| Address::from_v4_octets([ip[at], ip[at + 1], ip[at + 2], ip[at + 3]]);
            (address(12), address(16), V4, fragment != 0)
        }
        6 => {
            let ip: &[u8; V6] = packet.first_chunk()?;
            if ip[6] != IpProto::UDP.0 {
                return None;
            }
            let address = |at: usize| {
                let octets = ip[at..].first_chunk().copied();
                octets.map_or(Address::UNSPECIFIED, Address::from_v6_octets)
            };
            (address(8), address(24), V6, false)
        }
        _ => return None,
    };
    let udp = packet.get(ip_header..)?.first_chunk::<UDP>()?;
    let port = u16::from_be_bytes([udp[2], udp[3]]);
    Some(Datagram { source, destination, port, ip_header, is_fragment })
}

/// The network of a datagram whose UDP header begins `udp`, and whose IP packet has `room` bytes from there on. `None`
/// if a length contradicts another one, the inner frame is shorter than an Ethernet header, or the VXLAN header is
/// none: other flags than I mean headers that only extensions know. RFC 7348 section 5 ignores them; Linux drops such
/// packets.
#[must_use]
pub fn vni(udp: &[u8], room: usize) -> Option<Vni> {
    const MIN_DATAGRAM: usize = UDP + HEADER + 14;
    let [_, _, _, _, high, low, _, _, flags @ .., a, b, c, reserved] =
        *udp.first_chunk::<{ UDP + HEADER }>()?;
    let length = usize::from(u16::from_be_bytes([high, low]));
    let is_valid = length >= MIN_DATAGRAM && length <= room && flags == FLAGS && reserved == 0;
    is_valid.then_some(Vni(u32::from_be_bytes([0, a, b, c])))
}

/// Sets the lengths, the identification and the checksums of the headers in `front`, from the IP header on, for the
/// `nth` part of an inner segment that was cut. `front` ends behind the inner headers, and `payload` bytes follow it,
/// whose sum (RFC 1071) is `sum`. Changes nothing if `front` is too short.
pub fn set_part(front: &mut [u8], part: Part) {
    let Part { n, payload, sum } = part;
    let is_v4 = front.first().is_some_and(|first| first >> 4 == 4);
    let ip = if is_v4 { V4 } else { V6 };
    if front.len() < ip + UDP + HEADER {
        return;
    }
    let total = front.len() + payload;
    let datagram = (total - ip) as u16;
    front[ip + 4..ip + 6].copy_from_slice(&datagram.to_be_bytes());
    if is_v4 {
        // A kernel may have left one, of the whole segment.
        front[ip + 6..ip + 8].fill(0);
        front[2..4].copy_from_slice(&(total as u16).to_be_bytes());
        let id = u16::from_be_bytes([front[4], front[5]]).wrapping_add(n as u16);
        front[4..6].copy_from_slice(&id.to_be_bytes());
        front[10..12].fill(0);
        let sum = internet_checksum(&front[..V4]);
        front[10..12].copy_from_slice(&sum.to_be_bytes());
        return;
    }
    front[4..6].copy_from_slice(&datagram.to_be_bytes());
    set_sum(front, u64::from(sum), datagram);
}

/// A part of an inner segment.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Its number.
    pub n: usize,
    /// Bytes of its payload.
    pub payload: usize,
    /// Their sum (RFC 1071), over words in network order.
    pub sum: u16,
}

/// Writes the checksum of UDP over IPv6, which RFC 8200 section 8.1 demands, for `front`, from the IP header on, and
/// bytes after it whose sum is `rest`. All bytes are there, or the inner checksum is unfinished and `front` ends before
/// the inner TCP or UDP header: then `rest` is the complement of its pseudo header's sum.
pub fn set_checksum(front: &mut [u8], rest: u16) {
    if front.len() >= V6_HEADERS && front[0] >> 4 == 6 {
        let datagram = u16::from_be_bytes([front[4], front[5]]);
        set_sum(front, rest.into(), datagram);
    }
}

fn set_sum(front: &mut [u8], rest: u64, length: u16) {
    let address =
        |at: usize| front[at..].first_chunk().map_or(Address::UNSPECIFIED, |o| Address::from_v6_octets(*o));
    let pseudo = pseudo_header_sum(address(8), address(24), IpProto::UDP, length.into());
    let field = V6 + 6;
    front[field..field + 2].fill(0);
    let own = Sum::default().bytes(&front[V6..]).folded();
    let sum = !fold(pseudo + u64::from(own) + rest);
    let sum = if sum == 0 { 0xffff } else { sum };
    front[field..field + 2].copy_from_slice(&sum.to_be_bytes());
}
