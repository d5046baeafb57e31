// SPDX-License-Identifier: Apache-2.0
//! DSCP and ECN of inner packets, and what becomes of them where a tunnel ends (RFC 6040).

use super::{V4, V6};
use crate::checksum;

/// Where the DSCP and ECN of an IP packet are, in a frame that begins with `front`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TosPlace {
    /// Bytes before the IP header.
    l3: usize,
    is_v4: bool,
}

impl TosPlace {
    /// The place, behind at most two VLAN tags; `None` if the frame carries no IP packet.
    #[must_use]
    pub fn of(front: &[u8]) -> Option<Self> {
        let mut l3 = 14;
        loop {
            match front.get(l3 - 2..l3)? {
                [0x08, 0x00] => return front.get(l3..l3 + V4).map(|_| Self { l3, is_v4: true }),
                [0x86, 0xdd] => return front.get(l3..l3 + V6).map(|_| Self { l3, is_v4: false }),
                [0x81, 0x00] | [0x88, 0xa8] if l3 < 22 => l3 += 4,
                _ => return None,
            }
        }
    }

    /// DSCP and ECN.
    #[must_use]
    pub fn get(self, front: &[u8]) -> u8 {
        let at = |n: usize| front.get(self.l3 + n).copied().unwrap_or_default();
        if self.is_v4 { at(1) } else { at(0) << 4 | at(1) >> 4 }
    }

    /// Changes them, and the checksum of IPv4.
    pub fn set(self, front: &mut [u8], tos: u8) {
        let Some(ip) = front.get_mut(self.l3..self.l3 + V4) else { return };
        if !self.is_v4 {
            (ip[0], ip[1]) = (ip[0] & 0xf0 | tos >> 4, ip[1] & 0x0f | tos << 4);
            return;
        }
        let word = |tos| u16::from_be_bytes([ip[0], tos]);
        let sum = u16::from_be_bytes([ip[10], ip[11]]);
        let sum = checksum::updated(sum, word(ip[1]), word(tos));
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        ip[1] = tos;
    }
}

/// ECN of an IP header (RFC 3168).
const ECN: u8 = 3;
const NOT_ECT: u8 = 0;
const ECT_1: u8 = 1;
const CE: u8 = 3;

/// What DSCP and ECN of a packet become when its tunnel ends, by those of the outer header (RFC 6040 figure 4). `None`
/// if the packet is dropped: its sender does not know congestion marks, and a router on the way has set one.
#[must_use]
pub const fn decapsulated_tos(outer: u8, inner: u8) -> Option<u8> {
    let ecn = match (inner & ECN, outer & ECN) {
        (NOT_ECT, CE) => return None,
        (NOT_ECT, _) => NOT_ECT,
        (_, CE) => CE,
        (CE, _) => CE,
        (_, ECT_1) => ECT_1,
        (inner, _) => inner,
    };
    Some(inner & !ECN | ecn)
}
