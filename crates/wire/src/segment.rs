// SPDX-License-Identifier: Apache-2.0
//! Segmentation of TCP segments and UDP datagrams that exceed the MTU (Linux's GSO, a NIC's TSO and USO).
//!
//! Each packet copies the headers of the segment and changes: in IPv4 the total length, the identification, which
//! counts up, and the header checksum; in IPv6 the payload length; in TCP the sequence number, the flags and the
//! checksum. Only the last packet has FIN and PSH, only the first has CWR (RFC 3168 section 6.1.2). In UDP (Linux's
//! `UDP_SEGMENT`) each packet is a datagram of its own: length and checksum change.

use thiserror::Error;

use crate::checksum::{fold, internet_checksum, pseudo_header_sum};
use crate::{Address, IpProto, TcpFlags};

/// Most bytes of headers.
pub const MAX_HEADERS: usize = 256;
/// Smallest payload of a TCP packet: Linux's `TCP_MIN_GSO_SIZE`. It bounds the number of packets per segment.
pub const MIN_SIZE: u16 = 48;
/// Most UDP packets of one datagram: Linux's `UDP_MAX_SEGMENTS`.
pub const MAX_DATAGRAMS: usize = 128;

/// Why a segment cannot be split: its headers contradict the sender's offload request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SegmentError {
    /// Header lengths differ from the request, or are too long.
    #[error("the header lengths differ from the offload request")]
    Headers,
    /// Another protocol.
    #[error("not the requested protocol over the requested IP version")]
    Protocol,
    /// Fragments cannot be split.
    #[error("an IPv4 fragment")]
    Fragment,
    /// The payload per packet is too small.
    #[error(
        "{0} bytes per packet: TCP takes at least {MIN_SIZE}, UDP as many as make {MAX_DATAGRAMS} packets"
    )]
    Size(u16),
}

/// Header lengths of a segment, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderLengths {
    /// Link layer: Ethernet and VLAN tags.
    pub l2: usize,
    /// IP with options. Segments with IPv6 extension headers cannot be split.
    pub l3: usize,
    /// TCP with options, or UDP.
    pub l4: usize,
}

/// The protocols of a segment: the GSO type of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GsoType {
    /// IPv6, else IPv4.
    pub v6: bool,
    /// UDP, else TCP.
    pub udp: bool,
}

/// The headers of a segment.
#[derive(Clone, Copy, Debug)]
pub struct SegmentHeaders<'a> {
    /// All of them, in private memory.
    pub bytes: &'a [u8],
    /// Their lengths.
    pub lengths: HeaderLengths,
    /// What follows them.
    pub gso_type: GsoType,
}

/// Splits one segment into packets.
#[derive(Clone, Debug)]
pub struct Segmenter {
    headers: [u8; MAX_HEADERS],
    lengths: HeaderLengths,
    gso_type: GsoType,
    size: usize,
    payload: usize,
}

impl Segmenter {
    /// Takes the headers of the segment, the bytes of payload, and the payload `size` per packet.
    ///
    /// # Errors
    /// [`SegmentError`].
    pub fn new(headers: SegmentHeaders<'_>, payload: usize, size: u16) -> Result<Self, SegmentError> {
        let SegmentHeaders { bytes: headers, lengths, gso_type } = headers;
        let HeaderLengths { l2, l3, l4 } = lengths;
        let is_few = if gso_type.udp {
            size > 0 && payload.div_ceil(size.into()) <= MAX_DATAGRAMS
        } else {
            size >= MIN_SIZE
        };
        if !is_few {
            return Err(SegmentError::Size(size));
        }
        let least = if gso_type.udp { 8 } else { 20 };
        if headers.len() != l2 + l3 + l4 || headers.len() > MAX_HEADERS || l2 < 14 || l4 < least {
            return Err(SegmentError::Headers);
        }
        let (ip, transport) = headers[l2..].split_at(l3);
        let own = if gso_type.udp { least } else { usize::from(transport[12] >> 4) * 4 };
        if own != l4 {
            return Err(SegmentError::Headers);
        }
        let protocol = gso_type.protocol();
        if gso_type.v6 {
            if l3 != 40 || ip[0] >> 4 != 6 || ip[6] != protocol.0 {
                return Err(SegmentError::Protocol);
            }
        } else {
            if l3 < 20 || ip[0] >> 4 != 4 || usize::from(ip[0] & 0xf) * 4 != l3 || ip[9] != protocol.0 {
                return Err(SegmentError::Protocol);
            }
            // More fragments, or a fragment offset.
            if u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0 {
                return Err(SegmentError::Fragment);
            }
        }
        let mut own = [0; MAX_HEADERS];
        own[..headers.len()].copy_from_slice(headers);
        Ok(Self { headers: own, lengths, gso_type, size: size.into(), payload })
    }

    /// Number of packets, at least 1.
    #[must_use]
    pub const fn count(&self) -> usize {
        let count = self.payload.div_ceil(self.size);
        if count == 0 { 1 } else { count }
    }

    /// The part of the payload in packet `n`: offset and length.
    #[must_use]
    pub fn span(&self, n: usize) -> (usize, usize) {
        let start = (n * self.size).min(self.payload);
        (start, self.size.min(self.payload - start))
    }

    /// The headers of packet `n`. `sum` is the sum of its payload (RFC 1071) over words in network order.
    #[must_use]
    pub fn headers(&self, n: usize, sum: u16) -> ([u8; MAX_HEADERS], usize) {
        let HeaderLengths { l2, l3, l4 } = self.lengths;
        let (start, length) = self.span(n);
        let mut headers = self.headers;
        let (ip, transport) = headers[l2..l2 + l3 + l4].split_at_mut(l3);
        let (source, destination) =
            if self.gso_type.v6 { set_v6(ip, l4 + length) } else { set_v4(ip, l4 + length, n) };

        let sum_at = if self.gso_type.udp {
            transport[4..6].copy_from_slice(&((l4 + length) as u16).to_be_bytes());
            6
        } else {
            self.set_tcp(transport, n, start as u32);
            16
        };
        transport[sum_at..sum_at + 2].copy_from_slice(&[0; 2]);
        let own = !internet_checksum(transport);
        let pseudo = pseudo_header_sum(source, destination, self.gso_type.protocol(), l4 + length);
        let all = !fold(pseudo + u64::from(own) + u64::from(sum));
        // 0 means no checksum in UDP (RFC 768); 0xffff stands for the same sum.
        let all = if all == 0 && self.gso_type.udp { 0xffff } else { all };
        transport[sum_at..sum_at + 2].copy_from_slice(&all.to_be_bytes());
        (headers, l2 + l3 + l4)
    }

    /// Sets sequence number and flags of packet `n`, whose payload begins at `start`.
    fn set_tcp(&self, tcp: &mut [u8], n: usize, start: u32) {
        let number = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]).wrapping_add(start);
        tcp[4..8].copy_from_slice(&number.to_be_bytes());
        if n > 0 {
            tcp[13] &= !TcpFlags::CWR.bits();
        }
        if n + 1 < self.count() {
            tcp[13] &= !(TcpFlags::FIN | TcpFlags::PSH).bits();
        }
    }
}

impl GsoType {
    const fn protocol(self) -> IpProto {
        if self.udp { IpProto::UDP } else { IpProto::TCP }
    }
}

fn set_v4(ip: &mut [u8], length: usize, n: usize) -> (Address, Address) {
    let total = (ip.len() + length) as u16;
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(n as u16);
    ip[4..6].copy_from_slice(&id.to_be_bytes());
    ip[10..12].copy_from_slice(&[0; 2]);
    let sum = internet_checksum(ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let address = |at: usize| Address::from_v4_octets([ip[at], ip[at + 1], ip[at + 2], ip[at + 3]]);
    (address(12), address(16))
}

fn set_v6(ip: &mut [u8], length: usize) -> (Address, Address) {
    ip[4..6].copy_from_slice(&(length as u16).to_be_bytes());
    let address = |at: usize| {
        let mut bits = [0; 16];
        bits.copy_from_slice(&ip[at..at + 16]);
        Address::from_v6_octets(bits)
    };
    (address(8), address(24))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FrameBuilder, MacAddr, VlanId, parse};

    fn frame(v6: bool, tagged: bool) -> FrameBuilder<'static> {
        let (a, b) = if v6 { ("2001:db8::1", "2001:db8::2") } else { ("10.0.0.1", "10.0.0.2") };
        let builder = FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let builder = if tagged { builder.vlan(VlanId::new(5).unwrap()) } else { builder };
        builder.ip(a.parse().unwrap(), b.parse().unwrap())
    }

    fn lengths(frame: &[u8]) -> (HeaderLengths, usize) {
        let headers = parse(frame).unwrap();
        let (l2, l4) = (headers.l3_offset(), headers.l4_offset().unwrap());
        let payload = headers.payload_offset();
        (HeaderLengths { l2, l3: l4 - l2, l4: payload - l4 }, payload)
    }

    #[test]
    fn invalid_segments_are_refused() {
        let whole = frame(false, false).tcp(1, 2, TcpFlags::ACK).payload(&[0; 100]).to_vec().unwrap();
        let (lengths, payload) = lengths(&whole);
        let cut = |headers: &[u8], lengths, v6, size| {
            Segmenter::new(
                SegmentHeaders { bytes: headers, lengths, gso_type: GsoType { v6, udp: false } },
                100,
                size,
            )
            .map(|segmenter| segmenter.count())
        };
        let headers = &whole[..payload];
        assert_eq!(cut(headers, lengths, false, 48), Ok(3));
        assert_eq!(cut(headers, lengths, false, 47), Err(SegmentError::Size(47)));
        let gso_type = GsoType { v6: false, udp: true };
        let udp = SegmentHeaders { bytes: headers, lengths, gso_type };
        let datagrams = |size| Segmenter::new(udp, 129, size);
        assert_eq!(datagrams(0).err(), Some(SegmentError::Size(0)));
        assert_eq!(datagrams(1).err(), Some(SegmentError::Size(1)));
        assert_eq!(datagrams(2).err(), Some(SegmentError::Headers), "TCP");
        assert_eq!(cut(headers, lengths, true, 48), Err(SegmentError::Protocol));
        assert_eq!(cut(&whole[..payload - 1], lengths, false, 48), Err(SegmentError::Headers));
        let more = HeaderLengths { l4: 24, ..lengths };
        assert_eq!(cut(&whole[..payload + 4], more, false, 48), Err(SegmentError::Headers));
        let options = HeaderLengths { l3: 24, l4: 20, l2: lengths.l2 };
        assert_eq!(cut(&whole[..payload + 4], options, false, 48), Err(SegmentError::Headers));
        for (at, value, error) in [
            (14 + 9, 17, SegmentError::Protocol),
            (14, 0x46, SegmentError::Protocol),
            (14 + 6, 0x20, SegmentError::Fragment),
            (14 + 20 + 12, 0x60, SegmentError::Headers),
        ] {
            let mut wrong = headers.to_vec();
            wrong[at] = value;
            assert_eq!(cut(&wrong, lengths, false, 48), Err(error), "byte {at}");
        }
    }

    proptest::proptest! {
        /// Every packet equals the one that the builder makes for its part of the payload.
        #[test]
        fn packets_equal_separately_built_ones(
            v6 in proptest::prelude::any::<bool>(),
            (udp, tagged) in proptest::prelude::any::<(bool, bool)>(),
            flags in 0u8..=255,
            number in proptest::prelude::any::<u32>(),
            id in proptest::prelude::any::<u16>(),
            size in 80..2000u16,
            payload in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..9000),
        ) {
            let flags = TcpFlags::from_bits_retain(flags);
            let built = |number: u32, id: u16, flags: TcpFlags, payload: &[u8]| {
                let builder = frame(v6, tagged);
                let builder =
                    if udp { builder.udp(7, 8) } else { builder.tcp(7, 8, flags).numbers(number, 9) };
                let builder = builder.payload(payload);
                let mut frame = if v6 { builder } else { builder.fragment(id, 0, false) }.to_vec().unwrap();
                // A short frame ends in padding, and the builder writes no checksum into a packet with an
                // identification.
                let headers = parse(&frame).unwrap();
                crate::checksum::fill(&mut frame, &headers).unwrap();
                frame.truncate(headers.payload_end());
                frame
            };
            let whole = built(number, id, flags, &payload);
            let (lengths, at) = lengths(&whole);
            let headers = SegmentHeaders { bytes: &whole[..at], lengths, gso_type: GsoType { v6, udp } };
            let segmenter = Segmenter::new(headers, payload.len(), size).unwrap();
            let count = payload.chunks(size.into()).count().max(1);
            proptest::prop_assert_eq!(segmenter.count(), count);
            for n in 0..count {
                let (start, length) = segmenter.span(n);
                let part = &payload[start..start + length];
                let (headers, bytes) = segmenter.headers(n, !internet_checksum(part));
                let mut expected = flags;
                if n > 0 {
                    expected.remove(TcpFlags::CWR);
                }
                if n + 1 < count {
                    expected.remove(TcpFlags::FIN | TcpFlags::PSH);
                }
                let expected = built(number.wrapping_add(start as u32), id.wrapping_add(n as u16), expected, part);
                proptest::prop_assert_eq!([&headers[..bytes], part].concat(), expected, "packet {}", n);
            }
        }
    }
}
