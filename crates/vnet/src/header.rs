// SPDX-License-Identifier: Apache-2.0
//! `struct virtio_net_hdr` (virtio 1.2 section 5.1.6, `linux/virtio_net.h`), and its meaning for a packet.
//!
//! A packet socket in a container can send any header: everything is checked against the packet.

use std::ops::Range;

/// A checksum is unfinished: its field holds the pseudo header's sum.
const NEEDS_CHECKSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCP_V4: u8 = 1;
const GSO_TCP_V6: u8 = 4;
const GSO_UDP: u8 = 5;
/// Flag: the packet met congestion (RFC 3168): a bit besides the type (RFC 3168).
const GSO_ECN: u8 = 0x80;

/// The protocol's number.
const UDP: u8 = 17;
/// Bytes of the Ethernet header without tags.
const ETHERNET: usize = 14;
/// Checksum fields of TCP and UDP, from the beginning of their headers.
const TCP_SUM: u16 = 16;
const UDP_SUM: u16 = 6;

/// The header before a packet, in the byte order of this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Header {
    flags: u8,
    gso_type: u8,
    /// Bytes of all headers: a hint.
    headers: u16,
    /// Bytes of payload per packet.
    size: u16,
    /// Where the checksum begins, and where behind that it is put.
    sum_from: u16,
    sum_at: u16,
}

const _: () =
    assert!(size_of::<Header>() == Header::BYTES, "the layout of the kernel, without the number of buffers");

impl Header {
    /// Bytes of a header, without the number of buffers.
    pub const BYTES: usize = 10;

    /// The header with this layout in memory.
    #[inline]
    #[must_use]
    pub const fn from_bytes([flags, gso_type, a, b, c, d, e, f, g, h]: [u8; Self::BYTES]) -> Self {
        let word = u16::from_ne_bytes;
        Self {
            flags,
            gso_type,
            headers: word([a, b]),
            size: word([c, d]),
            sum_from: word([e, f]),
            sum_at: word([g, h]),
        }
    }
}

/// Pending offloads of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    /// Nothing.
    Nothing,
    /// A checksum: from `from` to the end of the packet, with its field at `at`.
    Checksum {
        /// Bytes before the first that is summed.
        from: u16,
        /// Bytes before the checksum.
        at: u16,
    },
    /// The packet has to be cut, and each part gets its checksum.
    Segments(Segments),
}

/// How a packet has to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    /// Bytes of the Ethernet header with tags, of the IP header, and of that of TCP or UDP.
    pub lengths: [u16; 3],
    /// Bytes of payload per packet; not 0.
    pub size: u16,
    /// IPv6, else IPv4.
    pub v6: bool,
    /// UDP, else TCP.
    pub udp: bool,
    /// Congestion on the way, for the receiver's kernel.
    pub ecn: bool,
    /// Bytes of the Ethernet header of the datagram that the packet is in (VXLAN), whose headers then count as part of
    /// the Ethernet header; 0: it is in none.
    pub tunnel: u16,
}

/// A header that does not fit its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The checksum would lie outside the packet.
    #[error("the checksum lies outside the packet")]
    Checksum,
    /// A type that was not negotiated.
    #[error("unknown segmentation type {0}")]
    Kind(u8),
    /// The packet's headers are others than the header says.
    #[error("the packet's headers contradict its offload request")]
    Contradiction,
}

/// What is to be done with a packet of `length` bytes that begins with `front`: its headers, at least.
///
/// # Errors
/// [`HeaderError`] if the header contradicts the packet.
#[inline]
pub fn pending(header: &Header, front: &[u8], length: usize) -> Result<Pending, HeaderError> {
    if header.flags & NEEDS_CHECKSUM == 0 {
        // A segment always has an unfinished checksum.
        return if header.gso_type == GSO_NONE {
            Ok(Pending::Nothing)
        } else {
            Err(HeaderError::Contradiction)
        };
    }
    let (from, at) = (header.sum_from, header.sum_from.saturating_add(header.sum_at));
    if usize::from(at) + 2 > length.min(front.len()) || usize::from(from) < ETHERNET {
        return Err(HeaderError::Checksum);
    }
    match header.gso_type & !GSO_ECN {
        GSO_NONE => Ok(Pending::Checksum { from, at }),
        GSO_TCP_V4 => segments(header, front, length, Carries { v6: false, udp: false }),
        GSO_TCP_V6 => segments(header, front, length, Carries { v6: true, udp: false }),
        GSO_UDP => {
            // Of the packet, or of one within: the header does not say it.
            let v6 = front.get(ip_offset(front)?).ok_or(HeaderError::Contradiction)? >> 4 == 6;
            let of = |v6| segments(header, front, length, Carries { v6, udp: true });
            of(v6).or_else(|_| of(!v6))
        }
        kind => Err(HeaderError::Kind(kind)),
    }
}

/// What a segment carries.
#[derive(Clone, Copy)]
struct Carries {
    v6: bool,
    udp: bool,
}

fn segments(header: &Header, front: &[u8], length: usize, carries: Carries) -> Result<Pending, HeaderError> {
    let Carries { v6, udp } = carries;
    let wrong = HeaderError::Contradiction;
    let l4_at = usize::from(header.sum_from);
    let outer = ip_offset(front)?;
    let is_plain = is_ip(front, outer..l4_at, v6);
    let l2 = if is_plain { outer } else { inner_ip_offset(front, outer).ok_or(wrong)? };
    if !is_plain && !is_ip(front, l2..l4_at, v6) {
        return Err(wrong);
    }
    let (l3, tunnel) = (l4_at - l2, if is_plain { 0 } else { outer as u16 });
    let l4 = if udp { 8 } else { usize::from(front.get(l4_at + 12).ok_or(wrong)? >> 4) * 4 };
    let sum_at = if udp { UDP_SUM } else { TCP_SUM };
    let least = if udp { 8 } else { 20 };
    let headers = l4_at + l4;
    if l4 < least || header.sum_at != sum_at || header.size == 0 || headers > length.min(front.len()) {
        return Err(wrong);
    }
    // None exceeds a header's length field, or the front.
    let lengths = [l2 as u16, l3 as u16, l4 as u16];
    let ecn = header.gso_type & GSO_ECN != 0;
    Ok(Pending::Segments(Segments { lengths, size: header.size, v6, udp, ecn, tunnel }))
}

/// Whether these bytes are an IP header.
fn is_ip(front: &[u8], place: Range<usize>, v6: bool) -> bool {
    let Some(ip) = front.get(place).filter(|ip| ip.len() >= 20) else { return false };
    match ip[0] >> 4 {
        // With extension headers, unless those of UDP follow at once.
        6 => v6 && (ip.len() == 40 || ip.len() > 40 && ip[6] != UDP),
        4 => !v6 && usize::from(ip[0] & 15) * 4 == ip.len(),
        _ => false,
    }
}

/// Where the IP header begins in a frame in a datagram of VXLAN, whose IP header is at `outer`.
fn inner_ip_offset(front: &[u8], outer: usize) -> Option<usize> {
    const UDP_AND_VXLAN: usize = 16;
    let ip = front.get(outer..)?;
    let (length, protocol) = match ip.first()? {
        0x45 => (20, *ip.get(9)?),
        first if first >> 4 == 6 => (40, *ip.get(6)?),
        _ => return None,
    };
    let frame = outer + length + UDP_AND_VXLAN;
    (protocol == UDP).then_some(())?;
    Some(frame + ip_offset(front.get(frame..)?).ok()?)
}

/// Where the IP header begins: behind Ethernet's and up to two VLAN tags.
fn ip_offset(front: &[u8]) -> Result<usize, HeaderError> {
    let mut at = ETHERNET;
    for _ in 0..3 {
        let kind = front.get(at - 2..at).ok_or(HeaderError::Contradiction)?;
        match (kind[0], kind[1]) {
            (0x08, 0x00) | (0x86, 0xdd) => return Ok(at),
            (0x81, 0x00) | (0x88, 0xa8) => at += 4,
            _ => break,
        }
    }
    Err(HeaderError::Contradiction)
}

/// The header for pending offloads.
#[must_use]
pub fn header_of(pending: Pending) -> Header {
    match pending {
        Pending::Nothing => Header::default(),
        Pending::Checksum { from, at } => Header {
            flags: NEEDS_CHECKSUM,
            sum_from: from,
            sum_at: at.saturating_sub(from),
            ..Header::default()
        },
        Pending::Segments(Segments { lengths: [l2, l3, l4], size, v6, udp, ecn, .. }) => {
            let kind = match (udp, v6) {
                (true, _) => GSO_UDP,
                (false, true) => GSO_TCP_V6,
                (false, false) => GSO_TCP_V4,
            };
            Header {
                flags: NEEDS_CHECKSUM,
                gso_type: kind | if ecn { GSO_ECN } else { 0 },
                headers: l2 + l3 + l4,
                size,
                sum_from: l2 + l3,
                sum_at: if udp { UDP_SUM } else { TCP_SUM },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn front(v6: bool, tags: usize) -> Vec<u8> {
        let mut bytes = vec![0; 12];
        (0..tags).for_each(|_| bytes.extend([0x81, 0, 0, 5]));
        bytes.extend(if v6 { [0x86, 0xdd] } else { [8, 0] });
        bytes.extend(if v6 { [0x60; 40].to_vec() } else { [0x45; 20].to_vec() });
        bytes.extend([0x50; 20]);
        bytes.resize(256, 7);
        bytes
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(v6: bool, udp: bool, ecn: bool, tags in 0usize..3, size in 1u16..) {
            let l2 = (ETHERNET + 4 * tags) as u16;
            let lengths = [l2, if v6 { 40 } else { 20 }, if udp { 8 } else { 20 }];
            let segments = Pending::Segments(Segments { lengths, size, v6, udp, ecn, tunnel: 0 });
            let sum = Pending::Checksum { from: l2 + lengths[1], at: l2 + lengths[1] + 6 };
            for pending in [segments, sum, Pending::Nothing] {
                prop_assert_eq!(super::pending(&header_of(pending), &front(v6, tags), 60_000), Ok(pending));
            }
        }

        #[test]
        fn any_header_and_packet_is_looked_at_within_bounds(
            numbers: [u16; 4], flags: u8, gso_type: u8, bytes in prop::collection::vec(any::<u8>(), 0..256), more in 0usize..66_000,
        ) {
            let [headers, size, sum_from, sum_at] = numbers;
            let header = Header { flags, gso_type, headers, size, sum_from: sum_from % 300, sum_at: sum_at % 40 };
            let length = bytes.len() + more;
            match pending(&header, &bytes, length) {
                Ok(Pending::Checksum { at, .. }) => prop_assert!(usize::from(at) + 2 <= length),
                Ok(Pending::Segments(of)) => {
                    prop_assert!(of.lengths.map(usize::from).iter().sum::<usize>() <= bytes.len() && of.size > 0);
                }
                Ok(Pending::Nothing) | Err(_) => {}
            }
        }
    }

    #[test]
    fn segments_in_datagrams_of_a_tunnel_are_found() {
        for (outer_v6, tags, v6, udp) in [
            (false, 0, false, false),
            (true, 1, false, true),
            (false, 2, true, false),
            (true, 0, true, false),
            (true, 0, true, true),
        ] {
            // The front has an IP header and 20 bytes more: those of UDP and VXLAN, and the inner frame in place of
            // the rest.
            let outer = 14 + 4 * tags;
            let at = outer + if outer_v6 { 40 } else { 20 };
            let mut bytes = front(outer_v6, tags);
            bytes[outer + if outer_v6 { 6 } else { 9 }] = 17;
            bytes.truncate(at + 16);
            bytes.extend(front(v6, 0));
            let lengths = [(at + 30) as u16, if v6 { 40 } else { 20 }, if udp { 8 } else { 20 }];
            let found = Segments { lengths, size: 1400, v6, udp, ecn: false, tunnel: outer as u16 };
            let header = header_of(Pending::Segments(found));
            assert_eq!(pending(&header, &bytes, 60_000), Ok(Pending::Segments(found)));
            // In another protocol there is no frame; IPv6 may have extension headers there.
            bytes[outer + if outer_v6 { 6 } else { 9 }] = 47;
            let otherwise = pending(&header, &bytes, 60_000);
            assert_eq!(
                otherwise == Err(HeaderError::Contradiction),
                !(outer_v6 && (v6 || udp)),
                "{otherwise:?}"
            );
        }
    }

    #[test]
    fn headers_that_lie_are_refused() {
        let good =
            Segments { lengths: [14, 20, 20], size: 1448, v6: false, udp: false, ecn: false, tunnel: 0 };
        let good = header_of(Pending::Segments(good));
        let read = |header: Header| pending(&header, &front(false, 0), 60_000);
        assert!(matches!(read(good), Ok(Pending::Segments(_))));
        assert_eq!(read(Header { gso_type: GSO_TCP_V6, ..good }), Err(HeaderError::Contradiction));
        assert_eq!(read(Header { gso_type: 3, ..good }), Err(HeaderError::Kind(3)), "fragmentation (UFO)");
        assert_eq!(read(Header { flags: 0, ..good }), Err(HeaderError::Contradiction));
        assert_eq!(read(Header { size: 0, ..good }), Err(HeaderError::Contradiction));
        assert_eq!(read(Header { sum_from: 38, ..good }), Err(HeaderError::Contradiction));
        assert_eq!(read(Header { sum_from: 255, ..good }), Err(HeaderError::Checksum));
        assert_eq!(pending(&good, &front(false, 0), 40), Err(HeaderError::Checksum));
    }
}
