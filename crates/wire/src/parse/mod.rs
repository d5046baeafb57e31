// SPDX-License-Identifier: Apache-2.0
//! Parses the bytes of a frame into [`Headers`].
//!
//! The parser checks every length field against the enclosing frame or packet before it uses it, and every read against
//! the slice. So no path reads a byte outside. It does not verify checksums: see [`crate::checksum::verify`].

mod fast;
mod headers;
mod ipv4;
mod ipv6;
mod malformed;
mod transport;

use crate::flow::FlowKey;
use crate::values::{Address, EtherType, MacAddr, VlanId};

pub use headers::{Headers, Network, Transport};
pub use ipv6::MAX_IPV6_EXTENSIONS;
pub use malformed::Malformed;

/// VLAN tags that the parser reads. It refuses frames with more ([`Malformed::TooManyTags`]), because receivers remove
/// any number of tags of VLAN 0; for switches, [`FlowKey::of_ethernet`] reads them, with the third tag as EtherType.
pub const MAX_VLAN_TAGS: u8 = 2;

/// Parses the headers of a whole frame without FCS.
///
/// # Errors
/// The outermost error in the frame.
#[inline]
pub fn parse(frame: &[u8]) -> Result<Headers, Malformed> {
    parse_prefix(frame, frame.len())
}

/// Parses the headers of a frame of `frame_len` bytes of which only the first are at hand, as a private copy of the
/// headers or a truncated capture. Length fields are checked against `frame_len`.
///
/// # Errors
/// Like [`parse`], and [`Malformed::BeyondPrefix`] if `bytes` ends before the headers do.
#[inline]
pub fn parse_prefix(bytes: &[u8], frame_len: usize) -> Result<Headers, Malformed> {
    let frame = Frame { bytes: bytes.get(..frame_len).unwrap_or(bytes), len: frame_len };
    let mut headers = Headers::EMPTY;
    let at = ethernet(&frame, &mut headers)?;
    match headers.key.ether_type {
        EtherType(length) if length < EtherType::MIN => llc(&frame, at, length, &mut headers)?,
        _ => network(&frame, at, &mut headers)?,
    }
    Ok(headers)
}

/// Parses the layer at `at`, by the EtherType in the key.
#[inline(always)]
fn network(frame: &Frame<'_>, at: usize, headers: &mut Headers) -> Result<(), Malformed> {
    match headers.key.ether_type {
        EtherType::IPV4 => ipv4::read(frame, at, headers),
        EtherType::IPV6 => ipv6::read(frame, at, headers),
        EtherType::ARP => arp(frame, at, headers),
        tag if tag.may_be_tag() => Err(Malformed::TooManyTags),
        _ => {
            headers.payload = at as u16;
            headers.payload_end = frame.len as u32;
            Ok(())
        }
    }
}

/// Parses what a switch needs (IEEE 802.1Q): MAC addresses, VLAN tags and EtherType, [`EtherType::LLC`] for a length
/// field. Ignores the rest.
///
/// # Errors
/// Like [`parse_prefix`], for these fields only.
pub(crate) fn ethernet_key(bytes: &[u8], frame_len: usize) -> Result<FlowKey, Malformed> {
    let frame = Frame { bytes: bytes.get(..frame_len).unwrap_or(bytes), len: frame_len };
    let mut headers = Headers::EMPTY;
    ethernet(&frame, &mut headers)?;
    if headers.key.ether_type.0 < EtherType::MIN {
        headers.key.ether_type = EtherType::LLC;
    }
    Ok(headers.key)
}

/// Reads addresses, VLAN tags and EtherType; returns the offset of the next layer.
#[inline(always)]
fn ethernet(frame: &Frame<'_>, headers: &mut Headers) -> Result<usize, Malformed> {
    let header: &[u8; 14] = frame.array(0, frame.len, Malformed::EthernetTruncated)?;
    let [a, b, c, d, e, f, g, h, i, j, k, l, high, low] = *header;
    headers.key.destination_mac = MacAddr([a, b, c, d, e, f]);
    headers.key.source_mac = MacAddr([g, h, i, j, k, l]);
    let mut ether_type = EtherType(u16::from_be_bytes([high, low]));
    let mut at = header.len();
    if ether_type.is_vlan() {
        (ether_type, at) = vlan_tags(frame, ether_type, at, headers)?;
    }
    headers.key.ether_type = ether_type;
    headers.l3 = at as u16;
    Ok(at)
}

/// The bytes at hand of a frame of `len` bytes; never more than `len`.
struct Frame<'a> {
    bytes: &'a [u8],
    len: usize,
}

impl<'a> Frame<'a> {
    /// The `N` bytes at `at` of a layer that ends at `end`; error `truncated` if it ends sooner.
    #[inline(always)]
    fn array<const N: usize>(
        &self,
        at: usize,
        end: usize,
        truncated: Malformed,
    ) -> Result<&'a [u8; N], Malformed> {
        if at + N > end {
            return Err(truncated);
        }
        self.bytes.get(at..).and_then(<[u8]>::first_chunk).ok_or(Malformed::BeyondPrefix)
    }
}

/// Reads up to two VLAN tags; returns the EtherType after them and the offset of that layer.
fn vlan_tags(
    frame: &Frame<'_>,
    mut ether_type: EtherType,
    mut at: usize,
    headers: &mut Headers,
) -> Result<(EtherType, usize), Malformed> {
    while ether_type.is_vlan() && headers.vlan_tags < MAX_VLAN_TAGS {
        let [tag_high, tag_low, high, low] = *frame.array(at, frame.len, Malformed::VlanTruncated)?;
        let vlan = match u16::from_be_bytes([tag_high, tag_low]) & 0x0fff {
            0 => None,
            id => Some(VlanId::new(id).map_err(|_| Malformed::VlanReserved)?),
        };
        if headers.vlan_tags == 0 {
            headers.key.vlan = vlan;
        } else {
            headers.key.inner_vlan = vlan;
        }
        headers.vlan_tags += 1;
        ether_type = EtherType(u16::from_be_bytes([high, low]));
        at += 4;
    }
    Ok((ether_type, at))
}

/// ARP (RFC 826). Reads the addresses of Ethernet and IPv4 only. Hardware type 6 (IEEE 802) is Ethernet, too: Linux
/// accepts both (`arp_process` of its `net/ipv4/arp.c`).
fn arp(frame: &Frame<'_>, at: usize, headers: &mut Headers) -> Result<(), Malformed> {
    let fixed: &[u8; 8] = frame.array(at, frame.len, Malformed::ArpTruncated)?;
    let [hardware, protocol] = [0, 2].map(|n| u16::from_be_bytes([fixed[n], fixed[n + 1]]));
    let (hardware_len, protocol_len) = (fixed[4], fixed[5]);
    let (ethernet, ipv4) = (matches!(hardware, 1 | 6), protocol == EtherType::IPV4.0);
    if (ethernet && hardware_len != 6) || (ipv4 && protocol_len != 4) {
        return Err(Malformed::ArpLengths);
    }
    let end = at + fixed.len() + 2 * (usize::from(hardware_len) + usize::from(protocol_len));
    if end > frame.len {
        return Err(Malformed::ArpTruncated);
    }
    if ethernet && ipv4 {
        let packet: &[u8; 28] = frame.array(at, frame.len, Malformed::ArpTruncated)?;
        let address = |n: usize| [packet[n], packet[n + 1], packet[n + 2], packet[n + 3]];
        headers.key.source = Address::from_v4_octets(address(14));
        headers.key.destination = Address::from_v4_octets(address(24));
    }
    headers.key.arp_operation = u16::from_be_bytes([fixed[6], fixed[7]]);
    headers.network = Network::Arp;
    headers.payload = end as u16;
    headers.payload_end = end as u32;
    Ok(())
}

/// IEEE 802.3 with an LLC header (802.2) of at least DSAP, SSAP and control. A SNAP header that contains an EtherType
/// (RFC 1042) is read through, as Open vSwitch does (`parse_ethertype` of its `lib/flow.c`).
fn llc(frame: &Frame<'_>, at: usize, length: u16, headers: &mut Headers) -> Result<(), Malformed> {
    const LLC_HEADER: usize = 3;
    const MAX_LENGTH: usize = 1500;
    let length = usize::from(length);
    if !(LLC_HEADER..=MAX_LENGTH).contains(&length) || at + length > frame.len {
        return Err(Malformed::LlcLength);
    }
    headers.key.ether_type = EtherType::LLC;
    if length >= SNAP_HEADER {
        let snap = frame.array(at, at + length, Malformed::LlcLength)?;
        if let Some(ether_type) = snap_ether_type(*snap) {
            headers.key.ether_type = ether_type;
            headers.l3 = (at + SNAP_HEADER) as u16;
            let inner = Frame { bytes: frame.bytes, len: at + length };
            return network(&inner, at + SNAP_HEADER, headers);
        }
    }
    headers.network = Network::Llc;
    headers.payload = at as u16;
    headers.payload_end = (at + length) as u32;
    Ok(())
}

/// Bytes of an LLC header with a SNAP header.
const SNAP_HEADER: usize = 8;

/// The EtherType in LLC and SNAP headers with organisation code 0.
fn snap_ether_type(header: [u8; SNAP_HEADER]) -> Option<EtherType> {
    let [0xaa, 0xaa, 3, 0, 0, 0, high, low] = header else { return None };
    let ether_type = EtherType(u16::from_be_bytes([high, low]));
    (ether_type.0 >= EtherType::MIN).then_some(ether_type)
}
