//! Packets whose checksum their sender left to a NIC: they reach AF_XDP sockets as they are, without a word about it.
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

/// The checksum of a frame that begins with `front`, if it is probably unfinished.
#[inline]
#[must_use]
pub fn partial_checksum(front: &[u8]) -> Option<Partial> {
    let mut at = ETHERNET;
    let (ip, addresses, protocol, l4, length) = loop {
        let ip = front.get(at..)?;
        match front.get(at - 2..at)? {
            [0x08, 0x00] if ip.len() >= 20 => {
                let l3 = usize::from(ip[0] & 15) * 4;
                // A fragment has no checksum of its own.
                if l3 < 20 || ip[6] & 0x3f != 0 || ip[7] != 0 {
                    return None;
                }
                let length = u16::from_be_bytes([ip[2], ip[3]]).checked_sub(l3 as u16)?;
                break (ip, 12..20, IpProto(ip[9]), at + l3, length);
            }
            [0x86, 0xdd] if ip.len() >= 40 => {
                break (ip, 8..40, IpProto(ip[6]), at + 40, u16::from_be_bytes([ip[4], ip[5]]));
            }
            [0x81, 0x00] | [0x88, 0xa8] if at < ETHERNET + 8 => at += 4,
            _ => return None,
        }
    };
    let sum_at = match protocol {
        IpProto::TCP => l4 + 16,
        IpProto::UDP => l4 + 6,
        _ => return None,
    };
    let field = front.get(sum_at..sum_at + 2)?;
    let (words, _) = ip[addresses].as_chunks::<4>();
    let sum: u64 = words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum();
    let sum = fold(sum + u64::from(protocol.0) + u64::from(length));
    (field == sum.to_be_bytes()).then_some(Partial { from: l4 as u16, at: sum_at as u16 })
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
