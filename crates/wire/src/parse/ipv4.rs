// SPDX-License-Identifier: Apache-2.0
//! Parses IPv4 (RFC 791).

use super::{Frame, Headers, Malformed, Network, transport};
use crate::flow::Fragment;
use crate::values::{Address, IpProto};

/// Bytes of a header without options.
const HEADER: usize = 20;
/// Longest datagram.
const MAX_DATAGRAM: usize = 65_535;

const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;

#[inline]
pub(super) fn read(frame: &Frame<'_>, at: usize, headers: &mut Headers) -> Result<(), Malformed> {
    let header: &[u8; HEADER] = frame.array(at, frame.len, Malformed::Ipv4Truncated)?;
    let header_len = usize::from(header[0] & 0x0f) * 4;
    let total_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if header[0] >> 4 != 4 {
        return Err(Malformed::Ipv4Version);
    }
    if header_len < HEADER || header_len > total_len {
        return Err(Malformed::Ipv4HeaderLength);
    }
    let end = at + total_len;
    if end > frame.len {
        return Err(Malformed::Ipv4BeyondFrame);
    }
    let key = &mut headers.key;
    key.dscp = header[1] >> 2;
    key.protocol = IpProto(header[9]);
    key.source = Address::from_v4_octets([header[12], header[13], header[14], header[15]]);
    key.destination = Address::from_v4_octets([header[16], header[17], header[18], header[19]]);
    headers.network = Network::Ipv4;
    headers.payload = (at + header_len) as u16;
    headers.payload_end = end as u32;
    let fragment = u16::from_be_bytes([header[6], header[7]]);
    if fragment & (MORE_FRAGMENTS | OFFSET) != 0 {
        key.fragment = fragment_of(fragment, total_len, key.protocol)?;
        if key.fragment == Fragment::Later {
            return Ok(());
        }
    }
    transport::read(frame, at + header_len, end, headers)
}

#[cold]
fn fragment_of(field: u16, total_len: usize, protocol: IpProto) -> Result<Fragment, Malformed> {
    let offset = usize::from(field & OFFSET) * 8;
    if offset + total_len > MAX_DATAGRAM {
        return Err(Malformed::FragmentTooLong);
    }
    match offset {
        0 => Ok(Fragment::First),
        8 if protocol == IpProto::TCP => Err(Malformed::FragmentOverTcpFlags),
        _ => Ok(Fragment::Later),
    }
}
