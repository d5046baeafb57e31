// SPDX-License-Identifier: Apache-2.0
//! Types and codes of ICMP and ICMPv6 (RFC 7915 sections 4.2 and 5.2).

use netvm_wire::IpProto;

/// Type and code of an ICMP message, and the four bytes after the checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Icmp {
    pub(super) kind: u8,
    pub(super) code: u8,
    pub(super) rest: [u8; 4],
}

/// What the translation of an MTU takes from the packet that the error is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct About {
    /// Its length, as its header says.
    pub(super) length: usize,
    /// It has a fragment header.
    pub(super) is_fragment: bool,
}

/// The type of the other family; `None` for all but echo.
pub(super) const fn query(protocol: IpProto, kind: u8) -> Option<u8> {
    match (protocol, kind) {
        (IpProto::ICMP, 8) => Some(128),
        (IpProto::ICMP, 0) => Some(129),
        (IpProto::ICMPV6, 128) => Some(8),
        (IpProto::ICMPV6, 129) => Some(0),
        _ => None,
    }
}

/// Bytes of a unit of the length of the packet in an error that extensions follow, and where it is in the four bytes
/// after the checksum (RFC 4884).
pub(super) const fn length_of_about(protocol: IpProto, kind: u8) -> Option<(usize, usize)> {
    match (protocol, kind) {
        (IpProto::ICMP, 3 | 11 | 12) => Some((4, 1)),
        (IpProto::ICMPV6, 1 | 3) => Some((8, 0)),
        _ => None,
    }
}

impl Icmp {
    /// The error in the other family. The length of RFC 4884 is zero in it.
    pub(super) fn translated(self, protocol: IpProto, about: About) -> Option<Self> {
        if protocol == IpProto::ICMP { self.to_v6(about) } else { self.to_v4(about) }
    }

    fn to_v6(self, about: About) -> Option<Self> {
        const TYPE_OF_NEXT_HEADER: u32 = 6;
        let [_, _, mtu @ ..] = self.rest;
        let (kind, code, rest) = match (self.kind, self.code) {
            (3, 2) => (4, 1, TYPE_OF_NEXT_HEADER),
            (3, 3) => (1, 4, 0),
            (3, 4) => (2, 0, mtu_of_v6(u16::from_be_bytes(mtu), about)),
            (3, 0 | 1 | 5..=8 | 11 | 12) => (1, 0, 0),
            (3, 9 | 10 | 13 | 15) => (1, 1, 0),
            (11, code) => (3, code, 0),
            (12, 0 | 2) => (4, 0, pointer_of_v6(self.rest[0])?.into()),
            _ => return None,
        };
        Some(Self { kind, code, rest: rest.to_be_bytes() })
    }

    fn to_v4(self, about: About) -> Option<Self> {
        let word = u32::from_be_bytes(self.rest);
        let (kind, code, rest) = match (self.kind, self.code) {
            (1, 0 | 2 | 3) => (3, 1, 0),
            (1, 1) => (3, 10, 0),
            (1, 4) => (3, 3, 0),
            (2, _) => (3, 4, mtu_of_v4(word, about)),
            (3, code) => (11, code, 0),
            (4, 0) => (12, 0, u32::from(pointer_of_v4(word)?) << 24),
            (4, 1) => (3, 2, 0),
            _ => return None,
        };
        Some(Self { kind, code, rest: rest.to_be_bytes() })
    }
}

/// The least MTU of IPv6, below which hosts do not go (RFC 8200 section 5).
const MIN_MTU_OF_V6: u32 = 1280;
/// The least MTU of IPv4 (RFC 791).
const MIN_MTU_OF_V4: u32 = 68;
/// By how much a header of IPv6 is longer than one of IPv4.
const LONGER: u32 = 20;
const FRAGMENT_HEADER: u32 = 8;

/// Usual MTUs (RFC 1191 section 7.1), for routers that do not name theirs.
const PLATEAUS: [u16; 11] = [65_535, 32_000, 17_914, 8166, 4352, 2002, 1492, 1006, 508, 296, 68];

fn mtu_of_v6(mtu: u16, about: About) -> u32 {
    let next_below = || PLATEAUS.into_iter().find(|plateau| usize::from(*plateau) < about.length);
    let mtu = if mtu == 0 { next_below().unwrap_or(0) } else { mtu };
    (u32::from(mtu) + LONGER).max(MIN_MTU_OF_V6)
}

fn mtu_of_v4(mtu: u32, about: About) -> u32 {
    let longer = LONGER + if about.is_fragment { FRAGMENT_HEADER } else { 0 };
    mtu.saturating_sub(longer).clamp(MIN_MTU_OF_V4, u16::MAX.into())
}

/// Figure 3 of RFC 7915.
const fn pointer_of_v6(pointer: u8) -> Option<u8> {
    Some(match pointer {
        0 | 1 => pointer,
        2 | 3 => 4,
        8 => 7,
        9 => 6,
        12..=15 => 8,
        16..=19 => 24,
        _ => return None,
    })
}

/// Figure 6 of RFC 7915.
const fn pointer_of_v4(pointer: u32) -> Option<u8> {
    Some(match pointer {
        0 => 0,
        1 => 1,
        4 | 5 => 2,
        6 => 9,
        7 => 8,
        8..=23 => 12,
        24..=39 => 16,
        _ => return None,
    })
}
