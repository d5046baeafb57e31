// SPDX-License-Identifier: Apache-2.0
//! Tests one packet after the other: for processors without AVX2, and as the reference for the vector code.

use netvm_classifier::{Prefilter, Tuple};
use netvm_wire::IpProto;

use super::{ETHERNET_BITS, FRONT, Fronts, GroupResult, header};

/// Tests eight packets.
pub(super) fn test_group(prefilter: &Prefilter, fronts: &Fronts, first: u128) -> GroupResult {
    let mut result = GroupResult { proven: 0, same_header: true };
    for (lane, (front, room)) in fronts.bytes.iter().zip(fronts.rooms).enumerate() {
        let excluded = tuple(front, room).is_some_and(|tuple| prefilter.excludes(&tuple));
        result.proven |= u8::from(excluded) << lane;
        result.same_header &= (header(front) ^ first) & ETHERNET_BITS == 0;
    }
    result
}

/// The tuple of a packet that prefilters can test; `None` for any other or malformed packet.
fn tuple(front: &[u8; FRONT], room: u32) -> Option<Tuple> {
    let byte = |at: usize| u32::from(front[at]);
    let short = |at: usize| u16::from_be_bytes([front[at], front[at + 1]]);
    let address = |at: usize| u32::from_be_bytes([front[at], front[at + 1], front[at + 2], front[at + 3]]);
    // Any fragment offset, or more fragments to come (RFC 791, section 3.1).
    let is_whole = short(20) & 0x3fff == 0;
    if short(12) != 0x0800 || front[14] != 0x45 || !is_whole {
        return None;
    }
    let payload = u32::from(short(16)).checked_sub(20).filter(|payload| payload + 20 <= room)?;
    let (is_tcp, length, shortest) = match IpProto(front[23]) {
        IpProto::TCP => (true, byte(46) >> 4 << 2, 20),
        IpProto::UDP => (false, short(38).into(), 8),
        _ => return None,
    };
    (shortest <= length && length <= payload).then(|| Tuple {
        source: address(26),
        destination: address(30),
        source_port: short(34),
        destination_port: short(36),
        is_tcp,
    })
}
