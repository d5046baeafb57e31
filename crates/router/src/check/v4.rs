// SPDX-License-Identifier: Apache-2.0
//! Checks of the IPv4 header.

use netvm_wire::checksum::internet_checksum;

use super::{Checked, HeaderError, HeaderReason};

const HEADER: usize = 20;

/// Checks the first 20 bytes of an IPv4 packet, of which the frame has `room` bytes. The caller must modify the same
/// bytes that it had checked.
///
/// # Errors
/// Why the packet is dropped.
#[inline(always)]
pub fn check_v4(packet: &[u8], room: usize) -> Result<Checked<u32>, HeaderError> {
    let header: &[u8; HEADER] = packet.first_chunk().ok_or(HeaderError::Truncated)?;
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if header[0] != 0x45 || length < HEADER || length > room {
        return uncommon(header, length, room);
    }
    if internet_checksum(header) != 0 {
        return Err(HeaderError::Checksum);
    }
    let [a, b, c, d, e, f, g, h] = *header.last_chunk().ok_or(HeaderError::Truncated)?;
    let (source, destination) = ([a, b, c, d], [e, f, g, h]);
    if e >= 224 && is_group(destination) {
        return Ok(Checked::Punt(HeaderReason::Group));
    }
    if matches!(a, 0 | 127) || is_group(source) {
        return Err(HeaderError::Source);
    }
    if matches!(e, 0 | 127) {
        return Err(HeaderError::Destination);
    }
    if [a, b] == [169, 254] || [e, f] == [169, 254] {
        return Ok(Checked::Punt(HeaderReason::LinkLocal));
    }
    if header[8] <= 1 {
        return Ok(Checked::Punt(HeaderReason::Expired));
    }
    Ok(Checked::Route { destination: u32::from_be_bytes(destination), length: length as u32 })
}

/// Multicast (224.0.0.0/4) or broadcast (255.255.255.255).
#[inline]
fn is_group(address: [u8; 4]) -> bool {
    address[0] >> 4 == 0xe || address == [255; 4]
}

/// The slow path: finds the error, or options for the kernel.
#[cold]
fn uncommon(header: &[u8; HEADER], length: usize, room: usize) -> Result<Checked<u32>, HeaderError> {
    let header_length = usize::from(header[0] & 0x0f) * 4;
    if header[0] >> 4 != 4 {
        Err(HeaderError::Version)
    } else if header_length < HEADER || length < header_length || length > room {
        Err(HeaderError::Length)
    } else {
        Ok(Checked::Punt(HeaderReason::Options))
    }
}

#[cfg(test)]
mod tests {
    use netvm_wire::rewrite::decrement_ttl_v4;
    use proptest::prelude::*;

    use super::*;

    fn header(source: [u8; 4], destination: [u8; 4], ttl: u8, length: u16) -> [u8; 20] {
        let mut header = [0; 20];
        header[0] = 0x45;
        header[2..4].copy_from_slice(&length.to_be_bytes());
        (header[8], header[9]) = (ttl, 17);
        header[12..16].copy_from_slice(&source);
        header[16..].copy_from_slice(&destination);
        seal(header)
    }

    fn seal(mut header: [u8; 20]) -> [u8; 20] {
        header[10..12].fill(0);
        let checksum = internet_checksum(&header);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        header
    }

    const HOST: [u8; 4] = [192, 0, 2, 1];
    const PEER: [u8; 4] = [198, 51, 100, 7];
    const ROUTE: Result<Checked<u32>, HeaderError> =
        Ok(Checked::Route { destination: 0xc633_6407, length: 20 });

    #[test]
    fn special_addresses_are_punted_or_refused() {
        let punt = |why| Ok(Checked::Punt(why));
        for (source, destination, expected) in [
            (HOST, PEER, ROUTE),
            ([0, 0, 0, 0], [255; 4], punt(HeaderReason::Group)),
            (HOST, [224, 0, 0, 5], punt(HeaderReason::Group)),
            (HOST, [239, 255, 255, 255], punt(HeaderReason::Group)),
            (HOST, [240, 0, 0, 1], Ok(Checked::Route { destination: 0xf000_0001, length: 20 })),
            ([0, 0, 0, 0], PEER, Err(HeaderError::Source)),
            ([127, 0, 0, 1], PEER, Err(HeaderError::Source)),
            ([224, 0, 0, 1], PEER, Err(HeaderError::Source)),
            ([255; 4], PEER, Err(HeaderError::Source)),
            (HOST, [127, 0, 0, 1], Err(HeaderError::Destination)),
            (HOST, [0, 1, 2, 3], Err(HeaderError::Destination)),
            ([169, 254, 0, 1], PEER, punt(HeaderReason::LinkLocal)),
            (HOST, [169, 254, 0, 1], punt(HeaderReason::LinkLocal)),
        ] {
            let packet = header(source, destination, 64, 20);
            assert_eq!(check_v4(&packet, 46), expected, "{source:?} > {destination:?}");
        }
    }

    #[test]
    fn malformed_headers_are_refused() {
        let good = header(HOST, PEER, 64, 20);
        let with = |at: usize, byte: u8| {
            let mut header = good;
            header[at] = byte;
            seal(header)
        };
        assert_eq!(check_v4(&good[..19], 46), Err(HeaderError::Truncated));
        assert_eq!(check_v4(&good, 19), Err(HeaderError::Length));
        assert_eq!(check_v4(&header(HOST, PEER, 64, 19), 46), Err(HeaderError::Length));
        assert_eq!(check_v4(&header(HOST, PEER, 64, 47), 46), Err(HeaderError::Length));
        assert_eq!(check_v4(&with(0, 0x65), 46), Err(HeaderError::Version));
        assert_eq!(check_v4(&with(0, 0x44), 46), Err(HeaderError::Length));
        // A header of 24 bytes in a packet of 20.
        assert_eq!(check_v4(&with(0, 0x46), 46), Err(HeaderError::Length));
        let mut options = header(HOST, PEER, 64, 24);
        options[0] = 0x46;
        assert_eq!(check_v4(&options, 46), Ok(Checked::Punt(HeaderReason::Options)));
        for ttl in [0, 1] {
            assert_eq!(check_v4(&with(8, ttl), 46), Ok(Checked::Punt(HeaderReason::Expired)));
        }
        assert_eq!(check_v4(&with(8, 2), 46), ROUTE);
    }

    proptest! {
        /// The checksum detects every flipped bit.
        #[test]
        fn a_flipped_bit_is_never_looked_up(bit in 0usize..160) {
            let mut packet = header(HOST, PEER, 64, 20);
            packet[bit / 8] ^= 1 << (bit % 8);
            let looked_up = matches!(check_v4(&packet, 46), Ok(Checked::Route { .. }));
            prop_assert!(!looked_up);
        }

        /// A forwarded packet passes the check of the next router until its TTL expires.
        #[test]
        fn the_checksum_stays_valid_from_hop_to_hop(mut packet: [u8; 20], ttl in 2u8..) {
            packet[0] = 0x45;
            packet[2..4].copy_from_slice(&20u16.to_be_bytes());
            packet[8] = ttl;
            packet[12] = 10;
            packet[16] = 10;
            packet = seal(packet);
            for left in (1..ttl).rev() {
                let looked_up = matches!(check_v4(&packet, 20), Ok(Checked::Route { .. }));
                prop_assert!(looked_up);
                prop_assert_eq!(decrement_ttl_v4(&mut packet), Ok(left));
                prop_assert_eq!(internet_checksum(&packet), 0);
            }
            prop_assert_eq!(check_v4(&packet, 20), Ok(Checked::Punt(HeaderReason::Expired)));
            let before = packet;
            prop_assert!(decrement_ttl_v4(&mut packet).is_err());
            prop_assert_eq!(packet, before);
        }
    }
}
