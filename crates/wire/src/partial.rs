// SPDX-License-Identifier: Apache-2.0
//! TCP and UDP whose checksum is not computed yet. Packets whose sender left it to a NIC reach AF_XDP sockets as they
//! are, without a word about it.
//!
//! Linux writes the sum of the pseudo header into the checksum field of such a packet (`CHECKSUM_PARTIAL`), so that
//! the device only adds the rest. A finished checksum has that value once in 65,536 packets; it is then computed
//! again, which changes nothing.

use crate::IpProto;
use crate::checksum::fold;

const ETHERNET: usize = 14;

/// Where an unfinished checksum of TCP or UDP is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partial {
    /// Where the sum begins: at the header of TCP or UDP, in bytes from the start of the frame.
    pub from: u16,
    /// Where the checksum is.
    pub at: u16,
}

/// TCP or UDP in a frame that is no fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// Bytes before the IP header.
    pub l2: u16,
    /// Bytes of the IP header; IPv6 has no extension headers here.
    pub l3: u16,
    /// IPv6, else IPv4.
    pub v6: bool,
    /// UDP, else TCP.
    pub udp: bool,
    /// Bytes from the header of TCP or UDP to the end of the packet, as the IP header says.
    pub length: u16,
    /// The sum of the pseudo header (RFC 9293, 3.1; RFC 8200, 8.1).
    pub pseudo_sum: u16,
}

impl Transport {
    /// Where the checksum is.
    #[must_use]
    pub const fn partial(&self) -> Partial {
        let from = self.l2 + self.l3;
        Partial { from, at: from + if self.udp { 6 } else { 16 } }
    }
}

/// Finds TCP or UDP in a frame that begins with `front`, behind at most two VLAN tags.
#[inline]
#[must_use]
pub fn transport(front: &[u8]) -> Option<Transport> {
    let mut l2 = ETHERNET;
    let (ip, addresses, protocol, l3, length) = loop {
        let ip = front.get(l2..)?;
        match front.get(l2 - 2..l2)? {
            [0x08, 0x00] if ip.len() >= 20 => {
                let l3 = usize::from(ip[0] & 15) * 4;
                // A fragment has no checksum of its own.
                if l3 < 20 || ip[6] & 0x3f != 0 || ip[7] != 0 {
                    return None;
                }
                let length = u16::from_be_bytes([ip[2], ip[3]]).checked_sub(l3 as u16)?;
                break (ip, 12..20, IpProto(ip[9]), l3, length);
            }
            [0x86, 0xdd] if ip.len() >= 40 => {
                break (ip, 8..40, IpProto(ip[6]), 40, u16::from_be_bytes([ip[4], ip[5]]));
            }
            [0x81, 0x00] | [0x88, 0xa8] if l2 < ETHERNET + 8 => l2 += 4,
            _ => return None,
        }
    };
    let udp = match protocol {
        IpProto::TCP => false,
        IpProto::UDP => true,
        _ => return None,
    };
    let v6 = addresses.len() == 32;
    let (words, _) = ip[addresses].as_chunks::<4>();
    let sum: u64 = words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum();
    let pseudo_sum = fold(sum + u64::from(protocol.0) + u64::from(length));
    Some(Transport { l2: l2 as u16, l3: l3 as u16, v6, udp, length, pseudo_sum })
}

/// The checksum of a frame that begins with `front`, if it is probably unfinished.
#[inline]
#[must_use]
pub fn partial_checksum(front: &[u8]) -> Option<Partial> {
    let found = transport(front)?;
    let partial = found.partial();
    let field = front.get(usize::from(partial.at)..usize::from(partial.at) + 2)?;
    (field == found.pseudo_sum.to_be_bytes()).then_some(partial)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{FrameBuilder, MacAddr, TcpFlags, VlanId, parse};

    proptest! {
        #[test]
        fn unfinished_checksums_are_found_and_finished_ones_are_not(
            (v6, udp, tagged) in any::<(bool, bool, bool)>(), port: u16, payload in prop::collection::vec(any::<u8>(), 60..300),
        ) {
            let (a, b) = if v6 { ("2001:db8::1", "2001:db8::2") } else { ("10.0.0.1", "10.0.0.2") };
            let frame = FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
            let frame = if tagged { frame.vlan(VlanId::new(5).unwrap()) } else { frame };
            let frame = frame.ip(a.parse().unwrap(), b.parse().unwrap());
            let frame = if udp { frame.udp(port, 8) } else { frame.tcp(port, 8, TcpFlags::ACK) };
            let whole = frame.payload(&payload).to_vec().unwrap();
            let headers = parse(&whole).unwrap();
            let from = headers.l4_offset().unwrap();
            let at = from + if udp { 6 } else { 16 };
            let finished = u16::from_be_bytes([whole[at], whole[at + 1]]);
            // The rest of the sum: what a device would add.
            let mut unfinished = whole.clone();
            unfinished[at..at + 2].copy_from_slice(&[0; 2]);
            let rest = !crate::checksum::internet_checksum(&unfinished[from..headers.payload_end()]);
            let pseudo = fold(u64::from(!finished) + u64::from(!rest));
            unfinished[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
            prop_assert_eq!(partial_checksum(&unfinished), Some(Partial { from: from as u16, at: at as u16 }));
            if pseudo != finished {
                prop_assert_eq!(partial_checksum(&whole), None);
            }
        }

        #[test]
        fn any_bytes_are_looked_at_within_bounds(bytes in prop::collection::vec(any::<u8>(), 0..100), kind in 0usize..4) {
            let mut bytes = bytes;
            if let Some(place) = bytes.get_mut(12..14) {
                place.copy_from_slice(&[[8, 0], [0x86, 0xdd], [0x81, 0], [0x88, 0xa8]][kind]);
            }
            if let Some(found) = partial_checksum(&bytes) {
                prop_assert!(found.from < found.at && usize::from(found.at) + 2 <= bytes.len());
            }
        }
    }
}
