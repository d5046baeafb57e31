// SPDX-License-Identifier: Apache-2.0
//! Checks of the IPv6 header.

use super::{Checked, HeaderError, HeaderReason};

const HEADER: usize = 40;
/// Protocol number of a hop-by-hop header.
const HOP_BY_HOP: u8 = 0;

/// Checks the first 40 bytes of an IPv6 packet, of which the frame has `room` bytes. The caller must modify the same
/// bytes that it had checked.
///
/// # Errors
/// Why the packet is dropped.
#[inline(always)]
pub fn check_v6(packet: &[u8], room: usize) -> Result<Checked<[u8; 16]>, HeaderError> {
    let (fixed, rest) = packet.split_first_chunk::<8>().ok_or(HeaderError::Truncated)?;
    let (source, rest) = rest.split_first_chunk::<16>().ok_or(HeaderError::Truncated)?;
    let destination = rest.first_chunk::<16>().ok_or(HeaderError::Truncated)?;
    let length = HEADER + usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
    if fixed[0] >> 4 != 6 {
        return Err(HeaderError::Version);
    }
    if length > room {
        return Err(HeaderError::Length);
    }
    // Most Internet addresses are in 2000::/3, which has no special addresses.
    if (source[0] >> 5, destination[0] >> 5) != (1, 1)
        && let Some(special) = special(u128::from_be_bytes(*source), u128::from_be_bytes(*destination))?
    {
        return Ok(Checked::Punt(special));
    }
    if fixed[7] <= 1 {
        return Ok(Checked::Punt(HeaderReason::Expired));
    }
    if fixed[6] == HOP_BY_HOP {
        return Ok(Checked::Punt(HeaderReason::Options));
    }
    Ok(Checked::Route { destination: *destination, length: length as u32 })
}

/// Handles addresses outside 2000::/3 (RFC 4291 section 2.4).
fn special(source: u128, destination: u128) -> Result<Option<HeaderReason>, HeaderError> {
    const LOOPBACK: u128 = 1;
    let is_multicast = |address: u128| address >> 120 == 0xff;
    let is_link_local = |address: u128| address >> 118 == 0xfe80 >> 6;
    let is_mapped = |address: u128| address >> 32 == 0xffff;
    if is_multicast(source) || source == LOOPBACK || is_mapped(source) {
        return Err(HeaderError::Source);
    }
    if is_multicast(destination) {
        // The source may still be unspecified (RFC 4862 section 5.4.2).
        return Ok(Some(HeaderReason::Group));
    }
    if source == 0 {
        return Err(HeaderError::Source);
    }
    if destination <= LOOPBACK || is_mapped(destination) {
        return Err(HeaderError::Destination);
    }
    Ok((is_link_local(source) || is_link_local(destination)).then_some(HeaderReason::LinkLocal))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use netvm_wire::rewrite::decrement_ttl_v6;

    use super::*;

    fn header(source: &str, destination: &str, hop_limit: u8, payload: u16) -> [u8; 40] {
        let mut header = [0; 40];
        header[0] = 0x60;
        header[4..6].copy_from_slice(&payload.to_be_bytes());
        (header[6], header[7]) = (17, hop_limit);
        header[8..24].copy_from_slice(&source.parse::<Ipv6Addr>().unwrap().octets());
        header[24..].copy_from_slice(&destination.parse::<Ipv6Addr>().unwrap().octets());
        header
    }

    const HOST: &str = "2001:db8::1";
    const PEER: &str = "fd00::7";

    fn route(destination: &str, length: u32) -> Result<Checked<[u8; 16]>, HeaderError> {
        let destination = destination.parse::<Ipv6Addr>().unwrap().octets();
        Ok(Checked::Route { destination, length })
    }

    #[test]
    fn special_addresses_are_punted_or_refused() {
        let punt = |why| Ok(Checked::Punt(why));
        for (source, destination, expected) in [
            (HOST, PEER, route(PEER, 48)),
            (PEER, HOST, route(HOST, 48)),
            (HOST, HOST, route(HOST, 48)),
            (HOST, "ff02::1", punt(HeaderReason::Group)),
            ("::", "ff02::1:ff00:1", punt(HeaderReason::Group)),
            ("::", PEER, Err(HeaderError::Source)),
            ("::1", PEER, Err(HeaderError::Source)),
            ("ff02::1", PEER, Err(HeaderError::Source)),
            ("ff02::1", "ff02::2", Err(HeaderError::Source)),
            ("::ffff:192.0.2.1", PEER, Err(HeaderError::Source)),
            (HOST, "::", Err(HeaderError::Destination)),
            (HOST, "::1", Err(HeaderError::Destination)),
            (HOST, "::ffff:192.0.2.1", Err(HeaderError::Destination)),
            ("fe80::1", PEER, punt(HeaderReason::LinkLocal)),
            (HOST, "febf:ffff::1", punt(HeaderReason::LinkLocal)),
            (HOST, "fec0::1", route("fec0::1", 48)),
        ] {
            let packet = header(source, destination, 64, 8);
            assert_eq!(check_v6(&packet, 48), expected, "{source} > {destination}");
        }
    }

    #[test]
    fn malformed_headers_are_refused() {
        let good = header(HOST, PEER, 64, 8);
        assert_eq!(check_v6(&good[..39], 48), Err(HeaderError::Truncated));
        assert_eq!(check_v6(&good, 47), Err(HeaderError::Length));
        assert_eq!(check_v6(&header(HOST, PEER, 64, u16::MAX), 1500), Err(HeaderError::Length));
        let mut packet = good;
        packet[0] = 0x45;
        assert_eq!(check_v6(&packet, 48), Err(HeaderError::Version));
        packet = good;
        packet[6] = HOP_BY_HOP;
        assert_eq!(check_v6(&packet, 48), Ok(Checked::Punt(HeaderReason::Options)));
        for hop_limit in [0, 1] {
            let packet = header(HOST, PEER, hop_limit, 8);
            assert_eq!(check_v6(&packet, 48), Ok(Checked::Punt(HeaderReason::Expired)));
        }
    }

    #[test]
    fn each_router_takes_one_hop() {
        let mut packet = header(HOST, PEER, 3, 8);
        assert_eq!(decrement_ttl_v6(&mut packet), Ok(2));
        assert_eq!(packet, header(HOST, PEER, 2, 8));
        assert_eq!(decrement_ttl_v6(&mut packet), Ok(1));
        assert!(decrement_ttl_v6(&mut packet).is_err());
        assert_eq!(packet, header(HOST, PEER, 1, 8));
    }
}
