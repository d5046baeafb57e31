//! From bytes to [`Headers`].
//!
//! Every length in a header is checked against what encloses it (frame, IP packet) before anything is read by it, and
//! every read is checked against the slice; there is no path on which a byte outside is looked at. Checksums are not
//! looked at: see [`crate::checksum::verify`].

mod ipv4;
mod ipv6;
mod transport;

use crate::address::Address;
use crate::ether::{EtherType, MacAddr, VlanId};
use crate::flow::FlowKey;
use crate::headers::{Headers, Network};
use crate::malformed::Malformed;

pub use ipv6::MAX_IPV6_EXTENSIONS;

/// VLAN tags that are read; a further one is the EtherType of the frame.
pub const MAX_VLAN_TAGS: u8 = 2;

/// Reads the headers of a whole frame, without FCS.
///
/// # Errors
/// What is wrong with the frame, the outermost thing first.
#[inline]
pub fn parse(frame: &[u8]) -> Result<Headers, Malformed> {
    parse_prefix(frame, frame.len())
}

/// Reads the headers of a frame of `frame_len` bytes, of which only the first are at hand: a private copy of the
/// headers, or a capture that was cut. Lengths in headers are checked against `frame_len`.
///
/// # Errors
/// As [`parse`]; and [`Malformed::BeyondPrefix`] when `bytes` ends before the headers do.
#[inline]
pub fn parse_prefix(bytes: &[u8], frame_len: usize) -> Result<Headers, Malformed> {
    let frame = Frame { bytes: bytes.get(..frame_len).unwrap_or(bytes), len: frame_len };
    let mut headers = Headers::EMPTY;
    let at = ethernet(&frame, &mut headers)?;
    match headers.key.ether_type {
        EtherType::IPV4 => ipv4::read(&frame, at, &mut headers)?,
        EtherType::IPV6 => ipv6::read(&frame, at, &mut headers)?,
        EtherType::ARP => arp(&frame, at, &mut headers)?,
        EtherType(length) if length < EtherType::MIN => llc(&frame, at, length, &mut headers)?,
        _ => {
            headers.payload = at as u16;
            headers.payload_end = frame.len as u32;
        }
    }
    Ok(headers)
}

/// Reads what a switch looks at (IEEE 802.1Q): the addresses, the VLAN tags and the EtherType, which is
/// [`EtherType::LLC`] where there is a length in its place. Whatever follows makes no difference.
///
/// # Errors
/// As [`parse_prefix`], but of these only.
pub(crate) fn ethernet_key(bytes: &[u8], frame_len: usize) -> Result<FlowKey, Malformed> {
    let frame = Frame { bytes: bytes.get(..frame_len).unwrap_or(bytes), len: frame_len };
    let mut headers = Headers::EMPTY;
    ethernet(&frame, &mut headers)?;
    if headers.key.ether_type.0 < EtherType::MIN {
        headers.key.ether_type = EtherType::LLC;
    }
    Ok(headers.key)
}

/// Addresses, VLAN tags and EtherType: where the next layer begins.
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

/// The bytes at hand of a frame of `len` bytes; never more than that.
struct Frame<'a> {
    bytes: &'a [u8],
    len: usize,
}

impl<'a> Frame<'a> {
    /// The `N` bytes at `at` of something that ends at `end`; `truncated` when it ends within them.
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

/// Up to two VLAN tags: the EtherType behind them, and where that layer begins.
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

/// RFC 826. The addresses are read where they are those of Ethernet and IPv4.
fn arp(frame: &Frame<'_>, at: usize, headers: &mut Headers) -> Result<(), Malformed> {
    let fixed: &[u8; 8] = frame.array(at, frame.len, Malformed::ArpTruncated)?;
    let [hardware, protocol] = [0, 2].map(|n| u16::from_be_bytes([fixed[n], fixed[n + 1]]));
    let (hardware_len, protocol_len) = (fixed[4], fixed[5]);
    let (ethernet, ipv4) = (hardware == 1, protocol == EtherType::IPV4.0);
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

/// IEEE 802.3 with an LLC header (802.2), which is at least DSAP, SSAP and control.
fn llc(frame: &Frame<'_>, at: usize, length: u16, headers: &mut Headers) -> Result<(), Malformed> {
    const LLC_HEADER: usize = 3;
    const MAX_LENGTH: usize = 1500;
    let length = usize::from(length);
    if !(LLC_HEADER..=MAX_LENGTH).contains(&length) || at + length > frame.len {
        return Err(Malformed::LlcLength);
    }
    headers.key.ether_type = EtherType::LLC;
    headers.network = Network::Llc;
    headers.payload = at as u16;
    headers.payload_end = (at + length) as u32;
    Ok(())
}
