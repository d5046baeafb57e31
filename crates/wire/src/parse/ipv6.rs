// SPDX-License-Identifier: Apache-2.0
//! Parses IPv6 and its extension headers (RFC 8200).

use super::{Frame, Headers, Malformed, Network, transport};
use crate::flow::Fragment;
use crate::values::{Address, IpProto};

/// Maximum number of extension headers; the parser refuses packets with more.
pub const MAX_IPV6_EXTENSIONS: usize = 8;

/// Bytes of the fixed header.
const HEADER: usize = 40;
/// Longest payload.
const MAX_PAYLOAD: usize = 65_535;

#[inline]
pub(super) fn read(frame: &Frame<'_>, at: usize, headers: &mut Headers) -> Result<(), Malformed> {
    let header: &[u8; HEADER] = frame.array(at, frame.len, Malformed::Ipv6Truncated)?;
    if header[0] >> 4 != 6 {
        return Err(Malformed::Ipv6Version);
    }
    let body = at + HEADER;
    let end = body + usize::from(u16::from_be_bytes([header[4], header[5]]));
    if end > frame.len {
        return Err(Malformed::Ipv6BeyondFrame);
    }
    let source: &[u8; 16] = frame.array(at + 8, frame.len, Malformed::Ipv6Truncated)?;
    let destination: &[u8; 16] = frame.array(at + 24, frame.len, Malformed::Ipv6Truncated)?;
    let key = &mut headers.key;
    key.source = Address::from_v6_octets(*source);
    key.destination = Address::from_v6_octets(*destination);
    if key.source.is_v4() || key.destination.is_v4() {
        return Err(Malformed::Ipv6MappedAddress);
    }
    key.dscp = (header[0] & 0x0f) << 2 | header[1] >> 6;
    key.protocol = IpProto(header[6]);
    headers.network = Network::Ipv6;
    headers.payload = body as u16;
    headers.payload_end = end as u32;
    if is_extension(key.protocol) {
        return extensions(frame, body, end, headers);
    }
    transport::read(frame, body, end, headers)
}

const fn is_extension(next: IpProto) -> bool {
    matches!(
        next,
        IpProto::HOP_BY_HOP
            | IpProto::ROUTING
            | IpProto::FRAGMENT
            | IpProto::AH
            | IpProto::DESTINATION_OPTIONS
    )
}

/// Walks the extension headers. A later fragment ends the walk: its fragment header names the protocol.
fn extensions(frame: &Frame<'_>, start: usize, end: usize, headers: &mut Headers) -> Result<(), Malformed> {
    let mut at = start;
    let mut next = headers.key.protocol;
    for walked in 0.. {
        if !is_extension(next) {
            break;
        }
        if walked == MAX_IPV6_EXTENSIONS {
            return Err(Malformed::Ipv6TooManyExtensions);
        }
        if next == IpProto::HOP_BY_HOP && walked > 0 {
            return Err(Malformed::Ipv6HopByHopOrder);
        }
        // The shortest extension header has 8 bytes.
        let header: &[u8; 8] = frame.array(at, end, Malformed::Ipv6ExtensionLength)?;
        let units = usize::from(header[1]);
        let length = match next {
            IpProto::FRAGMENT => header.len(),
            // RFC 4302 section 2: the length counts 4-byte units minus 2; the fixed part has 12 bytes.
            IpProto::AH if units == 0 => return Err(Malformed::Ipv6ExtensionLength),
            IpProto::AH => (units + 2) * 4,
            _ => (units + 1) * 8,
        };
        let is_fragment = next == IpProto::FRAGMENT;
        next = IpProto(header[0]);
        at += length;
        if at > end {
            return Err(Malformed::Ipv6ExtensionLength);
        }
        headers.key.protocol = next;
        headers.payload = at as u16;
        if is_fragment {
            let field = u16::from_be_bytes([header[2], header[3]]);
            match fragment_of(field, at - start, end - at, next)? {
                Fragment::Whole => {}
                Fragment::First => headers.key.fragment = Fragment::First,
                Fragment::Later => {
                    headers.key.fragment = Fragment::Later;
                    return Ok(());
                }
            }
        }
    }
    transport::read(frame, at, end, headers)
}

/// RFC 8200 section 4.5. `before` is the length of the extension headers up to the end of the fragment header.
fn fragment_of(field: u16, before: usize, length: usize, protocol: IpProto) -> Result<Fragment, Malformed> {
    const OFFSET: u16 = 0xfff8;
    const MORE_FRAGMENTS: u16 = 1;
    const FRAGMENT_HEADER: usize = 8;
    let offset = usize::from(field & OFFSET);
    if before - FRAGMENT_HEADER + offset + length > MAX_PAYLOAD {
        return Err(Malformed::FragmentTooLong);
    }
    match offset {
        0 if field & MORE_FRAGMENTS == 0 => Ok(Fragment::Whole),
        0 => Ok(Fragment::First),
        8 if protocol == IpProto::TCP => Err(Malformed::FragmentOverTcpFlags),
        _ => Ok(Fragment::Later),
    }
}
