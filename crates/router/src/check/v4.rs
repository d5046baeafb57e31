//! IPv4.

use netvm_wire::checksum::internet_checksum;

use super::{Checked, Punted, Refused};

const HEADER: usize = 20;

/// Looks at the first 20 bytes of an IPv4 packet; the frame has `room` bytes from there on. A caller that changes the packet must
/// do so in the bytes that were looked at.
///
/// # Errors
/// Why it is dropped.
#[inline(always)]
pub fn check_v4(packet: &[u8], room: usize) -> Result<Checked<u32>, Refused> {
    let header: &[u8; HEADER] = packet.first_chunk().ok_or(Refused::Truncated)?;
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if header[0] != 0x45 || length < HEADER || length > room {
        return uncommon(header, length, room);
    }
    if internet_checksum(header) != 0 {
        return Err(Refused::Checksum);
    }
    let [a, b, c, d, e, f, g, h] = *header.last_chunk().ok_or(Refused::Truncated)?;
    let (source, destination) = ([a, b, c, d], [e, f, g, h]);
    if e >= 224 && is_group(destination) {
        return Ok(Checked::Punt(Punted::Group));
    }
    if matches!(a, 0 | 127) || is_group(source) {
        return Err(Refused::Source);
    }
    if matches!(e, 0 | 127) {
        return Err(Refused::Destination);
    }
    if [a, b] == [169, 254] || [e, f] == [169, 254] {
        return Ok(Checked::Punt(Punted::LinkLocal));
    }
    if header[8] <= 1 {
        return Ok(Checked::Punt(Punted::Expired));
    }
    Ok(Checked::Route { destination: u32::from_be_bytes(destination), length: length as u32 })
}

/// Multicast (224.0.0.0/4), or everybody (255.255.255.255).
#[inline]
fn is_group(address: [u8; 4]) -> bool {
    address[0] >> 4 == 0xe || address == [255; 4]
}

/// What is wrong; or options, which the kernel looks at.
#[cold]
fn uncommon(header: &[u8; HEADER], length: usize, room: usize) -> Result<Checked<u32>, Refused> {
    let header_length = usize::from(header[0] & 0x0f) * 4;
    if header[0] >> 4 != 4 {
        Err(Refused::Version)
    } else if header_length < HEADER || length < header_length || length > room {
        Err(Refused::Length)
    } else {
        Ok(Checked::Punt(Punted::Options))
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
    const ROUTE: Result<Checked<u32>, Refused> = Ok(Checked::Route { destination: 0xc633_6407, length: 20 });

    #[test]
    fn addresses_decide_who_gets_a_packet() {
        let punt = |why| Ok(Checked::Punt(why));
        for (source, destination, expected) in [
            (HOST, PEER, ROUTE),
            ([0, 0, 0, 0], [255; 4], punt(Punted::Group)),
            (HOST, [224, 0, 0, 5], punt(Punted::Group)),
            (HOST, [239, 255, 255, 255], punt(Punted::Group)),
            (HOST, [240, 0, 0, 1], Ok(Checked::Route { destination: 0xf000_0001, length: 20 })),
            ([0, 0, 0, 0], PEER, Err(Refused::Source)),
            ([127, 0, 0, 1], PEER, Err(Refused::Source)),
            ([224, 0, 0, 1], PEER, Err(Refused::Source)),
            ([255; 4], PEER, Err(Refused::Source)),
            (HOST, [127, 0, 0, 1], Err(Refused::Destination)),
            (HOST, [0, 1, 2, 3], Err(Refused::Destination)),
            ([169, 254, 0, 1], PEER, punt(Punted::LinkLocal)),
            (HOST, [169, 254, 0, 1], punt(Punted::LinkLocal)),
        ] {
            let packet = header(source, destination, 64, 20);
            assert_eq!(check_v4(&packet, 46), expected, "{source:?} > {destination:?}");
        }
    }

    #[test]
    fn what_is_malformed_is_refused() {
        let good = header(HOST, PEER, 64, 20);
        let with = |at: usize, byte: u8| {
            let mut header = good;
            header[at] = byte;
            seal(header)
        };
        assert_eq!(check_v4(&good[..19], 46), Err(Refused::Truncated));
        assert_eq!(check_v4(&good, 19), Err(Refused::Length));
        assert_eq!(check_v4(&header(HOST, PEER, 64, 19), 46), Err(Refused::Length));
        assert_eq!(check_v4(&header(HOST, PEER, 64, 47), 46), Err(Refused::Length));
        assert_eq!(check_v4(&with(0, 0x65), 46), Err(Refused::Version));
        assert_eq!(check_v4(&with(0, 0x44), 46), Err(Refused::Length));
        // 24 bytes of header in a packet of 20.
        assert_eq!(check_v4(&with(0, 0x46), 46), Err(Refused::Length));
        let mut options = header(HOST, PEER, 64, 24);
        options[0] = 0x46;
        assert_eq!(check_v4(&options, 46), Ok(Checked::Punt(Punted::Options)));
        for ttl in [0, 1] {
            assert_eq!(check_v4(&with(8, ttl), 46), Ok(Checked::Punt(Punted::Expired)));
        }
        assert_eq!(check_v4(&with(8, 2), 46), ROUTE);
    }

    proptest! {
        /// Any bit that is not what it was is seen.
        #[test]
        fn one_wrong_bit_is_never_looked_up(bit in 0usize..160) {
            let mut packet = header(HOST, PEER, 64, 20);
            packet[bit / 8] ^= 1 << (bit % 8);
            let looked_up = matches!(check_v4(&packet, 46), Ok(Checked::Route { .. }));
            prop_assert!(!looked_up);
        }

        /// What is forwarded passes the check of the next router, until its time to live ends.
        #[test]
        fn the_checksum_stays_right_from_router_to_router(mut packet: [u8; 20], ttl in 2u8..) {
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
            prop_assert_eq!(check_v4(&packet, 20), Ok(Checked::Punt(Punted::Expired)));
            let before = packet;
            prop_assert!(decrement_ttl_v4(&mut packet).is_err());
            prop_assert_eq!(packet, before);
        }
    }
}
