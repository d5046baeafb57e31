// SPDX-License-Identifier: Apache-2.0
//! The Internet checksum (RFC 1071) of IPv4 headers and transport segments.

use thiserror::Error;

use crate::flow::Fragment;
use crate::parse::{Headers, Network, Transport};
use crate::values::{Address, IpProto};

/// Why checksums cannot be verified or filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Error)]
pub enum BadChecksum {
    /// The checksum of the IPv4 header is wrong.
    #[error("wrong IPv4 header checksum")]
    Ipv4Header,
    /// The checksum of TCP, UDP, ICMP or ICMPv6 is wrong.
    #[error("wrong transport checksum")]
    Transport,
    /// UDP over IPv6 without a checksum, which RFC 8200 section 8.1 forbids.
    #[error("UDP over IPv6 without a checksum")]
    Missing,
    /// The frame is shorter than the one that was parsed.
    #[error("the frame is shorter than its headers say")]
    FrameTooShort,
}

/// A one's complement sum in progress. Addition is associative; every piece but the last has an even length.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct Sum(u64);

impl Sum {
    /// Adds bytes, padded with a zero byte to an even length.
    #[inline]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        // The sum does not depend on the byte order as long as all words share one (RFC 1071 section 2 B). So add
        // 32-bit words in machine order into 64 bits and swap once. Overflow would take 2^32 words.
        let (words, tail) = bytes.as_chunks::<4>();
        let sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
        let mut last = [0; 4];
        for (place, byte) in last.iter_mut().zip(tail) {
            *place = *byte;
        }
        let folded = fold(sum + u64::from(u32::from_ne_bytes(last)));
        Self(self.0 + u64::from(u16::from_be_bytes(folded.to_ne_bytes())))
    }

    fn word(self, word: u16) -> Self {
        Self(self.0 + u64::from(word))
    }

    fn address(self, address: Address) -> Self {
        match address.v4_bits() {
            Some(bits) => self.bytes(&bits.to_be_bytes()),
            None => self.bytes(&address.v6_bits().to_be_bytes()),
        }
    }

    /// Adds the pseudo header (RFC 9293 section 3.1, RFC 8200 section 8.1). No packet has a length above 65,535.
    pub fn pseudo_header(
        self,
        source: Address,
        destination: Address,
        protocol: IpProto,
        length: usize,
    ) -> Self {
        let length = length as u32;
        let sum = self.address(source).address(destination).word(u16::from(protocol.0));
        sum.word((length >> 16) as u16).word(length as u16)
    }

    /// The sum in 16 bits: a checksum is its complement.
    #[inline]
    #[must_use]
    pub const fn folded(self) -> u16 {
        fold(self.0)
    }

    #[inline]
    const fn finish(self) -> u16 {
        !self.folded()
    }
}

/// The sum of a pseudo header, with carries still to be folded.
pub(crate) fn pseudo_header_sum(
    source: Address,
    destination: Address,
    protocol: IpProto,
    length: usize,
) -> u64 {
    Sum::default().pseudo_header(source, destination, protocol, length).0
}

/// Folds carries into 16 bits. These steps suffice for any sum and take no data-dependent branch.
#[inline]
pub(crate) const fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// The Internet checksum of some bytes (RFC 1071), as stored in a header. 0 over bytes that include a correct checksum.
#[inline]
#[must_use]
pub fn internet_checksum(bytes: &[u8]) -> u16 {
    Sum::default().bytes(bytes).finish()
}

/// The checksum of a TCP or UDP segment or an ICMPv6 message, with the pseudo header of its addresses. Zero the
/// checksum field in `segment` to compute the checksum; with a correct checksum in it, the result is 0.
///
/// Compute the checksum of UDP with [`udp_checksum`].
#[must_use]
pub fn transport_checksum(source: Address, destination: Address, protocol: IpProto, segment: &[u8]) -> u16 {
    Sum::default().pseudo_header(source, destination, protocol, segment.len()).bytes(segment).finish()
}

/// The checksum of a UDP datagram, like [`transport_checksum`]. 0 would mean "no checksum", so it becomes 0xffff (RFC
/// 768).
#[must_use]
pub fn udp_checksum(source: Address, destination: Address, datagram: &[u8]) -> u16 {
    match transport_checksum(source, destination, IpProto::UDP, datagram) {
        0 => 0xffff,
        checksum => checksum,
    }
}

/// The checksum after one covered 16-bit word changed from `old` to `new` (RFC 1624 equation 3).
#[inline]
#[must_use]
pub const fn updated(checksum: u16, old: u16, new: u16) -> u16 {
    let sum = !checksum as u32 + !old as u32 + new as u32;
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}

/// The checksum after two covered words, such as an IPv4 address, changed.
#[inline]
#[must_use]
pub const fn updated_u32(checksum: u16, old: u32, new: u32) -> u16 {
    let half = updated(checksum, (old >> 16) as u16, (new >> 16) as u16);
    updated(half, old as u16, new as u16)
}

/// Verifies the checksums of a frame: of the IPv4 header, and of TCP, UDP, ICMP and ICMPv6 in unfragmented packets. UDP
/// over IPv4 may have none. The CRC of SCTP is not checked. An IPv6 packet in transit with a routing header fails here,
/// as its transport checksum covers the final destination.
///
/// `headers` must be those of the same frame.
///
/// # Errors
/// The first wrong checksum.
pub fn verify(frame: &[u8], headers: &Headers) -> Result<(), BadChecksum> {
    if headers.network() == Network::Ipv4 {
        let header = ipv4_header(frame, headers).ok_or(BadChecksum::FrameTooShort)?;
        if internet_checksum(header) != 0 {
            return Err(BadChecksum::Ipv4Header);
        }
    }
    let Some(place) = field_offset(headers) else { return Ok(()) };
    let segment = segment(frame, headers).ok_or(BadChecksum::FrameTooShort)?;
    let field = segment.get(place..place + 2).ok_or(BadChecksum::FrameTooShort)?;
    if headers.transport() == Transport::Udp && field == [0, 0] {
        return if headers.network() == Network::Ipv6 { Err(BadChecksum::Missing) } else { Ok(()) };
    }
    if segment_checksum(headers, segment) == 0 { Ok(()) } else { Err(BadChecksum::Transport) }
}

/// Computes and writes the checksums that [`verify`] checks, after the frame was changed.
///
/// `headers` must describe the frame as it is now: the pseudo header takes its addresses from them, so parse again
/// after changing an address.
///
/// # Errors
/// [`BadChecksum::FrameTooShort`]; the frame is unchanged then.
pub fn fill(frame: &mut [u8], headers: &Headers) -> Result<(), BadChecksum> {
    let l3 = headers.l3_offset();
    let is_v4 = headers.network() == Network::Ipv4;
    if is_v4 && ipv4_header(frame, headers).is_none() {
        return Err(BadChecksum::FrameTooShort);
    }
    let field = match field_offset(headers).zip(headers.l4_offset()) {
        None => None,
        Some((place, l4)) if segment(frame, headers).is_some_and(|it| it.len() >= place + 2) => {
            Some(l4 + place)
        }
        Some(_) => return Err(BadChecksum::FrameTooShort),
    };
    if is_v4 {
        store(frame, l3 + 10, 0);
        let checksum = ipv4_header(frame, headers).map_or(0, internet_checksum);
        store(frame, l3 + 10, checksum);
    }
    if let Some(at) = field {
        store(frame, at, 0);
        let checksum = segment(frame, headers).map_or(0, |segment| segment_checksum(headers, segment));
        let none = headers.transport() == Transport::Udp && checksum == 0;
        store(frame, at, if none { 0xffff } else { checksum });
    }
    Ok(())
}

/// Offset of the checksum in the transport header; `None` if it cannot be computed.
fn field_offset(headers: &Headers) -> Option<usize> {
    if headers.key().fragment != Fragment::Whole {
        return None;
    }
    match headers.transport() {
        Transport::Tcp => Some(16),
        Transport::Udp => Some(6),
        Transport::Icmp | Transport::Icmpv6 => Some(2),
        Transport::Sctp | Transport::Other | Transport::None => None,
    }
}

fn segment_checksum(headers: &Headers, segment: &[u8]) -> u16 {
    let key = headers.key();
    match headers.transport() {
        Transport::Icmp => internet_checksum(segment),
        _ => transport_checksum(key.source, key.destination, key.protocol, segment),
    }
}

fn segment<'a>(frame: &'a [u8], headers: &Headers) -> Option<&'a [u8]> {
    frame.get(headers.l4_offset()?..headers.payload_end())
}

/// The IPv4 header with options. The length comes from the frame, which may have changed since parsing.
fn ipv4_header<'a>(frame: &'a [u8], headers: &Headers) -> Option<&'a [u8]> {
    let packet = frame.get(headers.l3_offset()..)?;
    let length = usize::from(packet.first()? & 0x0f) * 4;
    packet.get(..length).filter(|header| header.len() >= 20)
}

pub(crate) fn store(frame: &mut [u8], at: usize, word: u16) {
    if let Some(place) = frame.get_mut(at..at + 2) {
        place.copy_from_slice(&word.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition of RFC 1071 section 4.1, word by word.
    fn slow(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |byte| u32::from(*byte));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn fold_leaves_no_carry() {
        for sum in [0, 0xffff, 0x1_0000, 0xffff_ffff, 0x1_ffff_ffff, 0xffff_ffff_0000_0001, u64::MAX] {
            let mut expected = sum;
            while expected > 0xffff {
                expected = (expected & 0xffff) + (expected >> 16);
            }
            assert_eq!(u64::from(fold(sum)), expected, "{sum:x}");
        }
    }

    #[test]
    fn the_example_of_rfc_1071() {
        assert_eq!(internet_checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
        assert_eq!(internet_checksum(&[]), 0xffff);
    }

    #[test]
    fn the_example_of_rfc_1624() {
        // Section 4: the old checksum is 0xDD2F, 0x5555 becomes 0x3285.
        assert_eq!(updated(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(internet_checksum(&bytes), slow(&bytes));
        }

        #[test]
        fn an_update_equals_a_new_sum(mut bytes in proptest::collection::vec(any::<u8>(), 24), at in 1usize..6, new: u32) {
            // Not all zero, as no header is: an update cannot tell a sum of 0 from 0xffff.
            bytes[0] = 0x45;
            let before = slow(&bytes);
            let place = at * 4;
            let old = u32::from_be_bytes(bytes[place..place + 4].try_into().unwrap());
            bytes[place..place + 4].copy_from_slice(&new.to_be_bytes());
            prop_assert_eq!(updated_u32(before, old, new), slow(&bytes));
        }

        #[test]
        fn long_input_does_not_overflow(byte: u8, length in 60_000usize..70_000) {
            let bytes = vec![byte; length];
            prop_assert_eq!(internet_checksum(&bytes), slow(&bytes));
        }
    }
}
