// SPDX-License-Identifier: Apache-2.0
//! Answers to packets that are not delivered: TCP resets and ICMP errors. In: the headers of a frame. Out: the frame to
//! send back by the port that received it.
//!
//! Resets, ICMP errors, fragments other than the first, and packets from or to a group address get no answer (RFC 1122
//! section 3.2.2, RFC 4443 section 2.4). The caller limits the rate of answers (RFC 1812 section 4.3.2.8).

use std::net::IpAddr;

use crate::{FlowKey, Fragment, FrameBuilder, Headers, IpProto, MacAddr, TcpFlags, checksum, parse_prefix};

/// Most bytes of a packet that an answer quotes.
const QUOTED: usize = 128;
/// Longest answer: ICMPv6 with the quoted part of the packet, and a tag.
pub const MAX_ANSWER: usize = 58 + 8 + QUOTED;

/// Why a packet is not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// By policy: communication administratively prohibited (RFC 1812 section 5.2.7.1, RFC 4443 section 3.1).
    Prohibited,
    /// Its time to live or hop limit is used up (RFC 792, RFC 4443 section 3.3).
    Expired,
    /// It is longer than this MTU of the next link, and must not be cut (RFC 1191 section 4, RFC 4443 section 3.2).
    TooLong(u16),
    /// The rest of a fragmented packet did not come in time (RFC 792, RFC 4443 section 3.3).
    NotReassembled,
}

impl Reason {
    /// Type and code of ICMP, or ICMPv6.
    const fn kind(self, v4: bool) -> [u8; 2] {
        match (self, v4) {
            (Self::Prohibited, true) => [3, 13],
            (Self::Prohibited, false) => [1, 1],
            (Self::Expired, true) => [11, 0],
            (Self::Expired, false) => [3, 0],
            (Self::TooLong(_), true) => [3, 4],
            (Self::TooLong(_), false) => [2, 0],
            (Self::NotReassembled, true) => [11, 1],
            (Self::NotReassembled, false) => [3, 1],
        }
    }
}

/// A packet that gets an answer.
#[derive(Clone, Copy, Debug)]
pub struct Undelivered<'a> {
    headers: &'a [u8],
    parsed: Headers,
    source: IpAddr,
    destination: IpAddr,
}

impl<'a> Undelivered<'a> {
    /// The frame of `frame_len` bytes that begins with `headers`; `None` if it gets no answer.
    #[must_use]
    pub fn of(headers: &'a [u8], frame_len: usize) -> Option<Self> {
        let parsed = parse_prefix(headers, frame_len).ok()?;
        let key = parsed.key();
        let (source, destination) = (key.source.to_ip(), key.destination.to_ip());
        let group = |mac: MacAddr| mac.is_multicast();
        let answerable = key.is_ip()
            && key.fragment != Fragment::Later
            && !group(key.source_mac)
            && !group(key.destination_mac)
            && !is_group(source)
            && !is_group(destination)
            && !source.is_unspecified()
            && key.inner_vlan.is_none();
        answerable.then_some(Self { headers, parsed, source, destination })
    }

    /// Writes a TCP reset, or else the ICMP error "prohibited", from the packet's destination. Returns the length of
    /// the frame, at most [`MAX_ANSWER`]; `None` if there is no answer.
    #[must_use]
    pub fn reject(&self, answer: &mut [u8]) -> Option<usize> {
        if self.parsed.key().protocol == IpProto::TCP {
            return self.reset(answer);
        }
        self.error(self.destination, Reason::Prohibited, answer)
    }

    /// Writes the ICMP error that the packet is longer than this MTU, from its destination; `None` also if routers may
    /// cut the packet. Otherwise as [`Undelivered::error`].
    #[must_use]
    pub fn too_long(&self, mtu: u16, answer: &mut [u8]) -> Option<usize> {
        const DF: u8 = 0x40;
        let may_be_cut = self.source.is_ipv4() && self.headers.get(self.parsed.l3_offset() + 6)? & DF == 0;
        if may_be_cut { None } else { self.error(self.destination, Reason::TooLong(mtu), answer) }
    }

    fn builder(&self, from: IpAddr) -> FrameBuilder<'static> {
        let key = self.parsed.key();
        let builder = FrameBuilder::new(key.destination_mac, key.source_mac).ip(from, self.source);
        match key.vlan {
            Some(vlan) => builder.vlan(vlan),
            None => builder,
        }
    }

    /// RFC 9293 section 3.10.7.1: a reset that the sender accepts.
    fn reset(&self, answer: &mut [u8]) -> Option<usize> {
        let Self { headers, parsed, .. } = self;
        let key: &FlowKey = parsed.key();
        if key.tcp_flags.contains(TcpFlags::RST) {
            return None;
        }
        let builder = self.builder(self.destination);
        let tcp = headers.get(parsed.l4_offset()?..)?.first_chunk::<20>()?;
        let number = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
        let builder = if key.tcp_flags.contains(TcpFlags::ACK) {
            builder.tcp(key.destination_port, key.source_port, TcpFlags::RST).numbers(number(8), 0)
        } else {
            let payload = parsed.payload_end().saturating_sub(parsed.payload_offset());
            let flags =
                [TcpFlags::SYN, TcpFlags::FIN].into_iter().filter(|flag| key.tcp_flags.contains(*flag));
            let length = payload as u32 + flags.count() as u32;
            let flags = TcpFlags::RST | TcpFlags::ACK;
            let builder = builder.tcp(key.destination_port, key.source_port, flags);
            builder.numbers(0, number(4).wrapping_add(length))
        };
        builder.write(answer).ok()
    }

    /// Writes an ICMP error from this address, which must be of the packet's family, into `answer`. Returns the length
    /// of the frame, at most [`MAX_ANSWER`]; `None` if there is no answer.
    #[must_use]
    pub fn error(&self, from: IpAddr, reason: Reason, answer: &mut [u8]) -> Option<usize> {
        let Self { headers, parsed, .. } = self;
        let key: &FlowKey = parsed.key();
        let v4 = key.source.is_v4();
        // An error gets no error as an answer: types below 128 of ICMPv6, and all ICMP types but queries.
        let is_error = match key.protocol {
            IpProto::ICMP => !matches!(key.icmp_type, 8 | 10 | 13 | 15 | 17),
            IpProto::ICMPV6 => key.icmp_type < 128,
            _ => false,
        };
        if is_error || from.is_ipv4() != v4 {
            return None;
        }
        // The quoted part: the header and at least 8 bytes after it.
        let packet = headers.get(parsed.l3_offset()..headers.len().min(parsed.payload_end()))?;
        let quoted = &packet[..packet.len().min(QUOTED)];
        let mut message = [0u8; 8 + QUOTED];
        let message = &mut message[..8 + quoted.len()];
        message[..2].copy_from_slice(&reason.kind(v4));
        if let Reason::TooLong(mtu) = reason {
            // The last two of four bytes in ICMPv6, and the only two in ICMP.
            message[6..8].copy_from_slice(&mtu.to_be_bytes());
        }
        message[8..].copy_from_slice(quoted);
        let sum = if v4 {
            checksum::internet_checksum(message)
        } else {
            checksum::transport_checksum(from.into(), key.source, IpProto::ICMPV6, message)
        };
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let protocol = if v4 { IpProto::ICMP } else { IpProto::ICMPV6 };
        self.builder(from).protocol(protocol).payload(message).write(answer).ok()
    }
}

fn is_group(address: IpAddr) -> bool {
    address.is_multicast() || matches!(address, IpAddr::V4(v4) if v4.is_broadcast())
}

#[cfg(test)]
mod tests {
    use crate::parse;

    use super::*;

    const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn frame(v6: bool) -> FrameBuilder<'static> {
        let (a, b) = if v6 { ("2001:db8::1", "2001:db8::2") } else { ("10.0.0.1", "10.0.0.2") };
        FrameBuilder::new(A, B).ip(a.parse().unwrap(), b.parse().unwrap())
    }

    fn answered(frame: &[u8]) -> Option<Vec<u8>> {
        let mut answer = [0; MAX_ANSWER];
        let length = Undelivered::of(&frame[..frame.len().min(256)], frame.len())?.reject(&mut answer)?;
        Some(answer[..length].to_vec())
    }

    #[test]
    fn a_syn_is_reset_with_its_number_acknowledged() {
        for v6 in [false, true] {
            let syn = frame(v6).tcp(1000, 80, TcpFlags::SYN).numbers(7, 0).to_vec().unwrap();
            let answer = answered(&syn).unwrap();
            let headers = parse(&answer).unwrap();
            assert_eq!(headers.key().tcp_flags, TcpFlags::RST | TcpFlags::ACK);
            assert_eq!((headers.key().source_port, headers.key().destination_port), (80, 1000));
            assert_eq!(headers.key().destination_mac, A);
            let tcp = &answer[headers.l4_offset().unwrap()..];
            assert_eq!((&tcp[4..8], &tcp[8..12]), (&[0; 4][..], &[0, 0, 0, 8][..]));
            assert_eq!(checksum::verify(&answer, &headers), Ok(()));
            assert_eq!(answered(&answer), None, "a reset is not answered");
        }
    }

    #[test]
    fn datagrams_are_answered_by_icmp_once() {
        for v6 in [false, true] {
            let datagram = frame(v6).udp(5, 53).payload(b"who?").to_vec().unwrap();
            let answer = answered(&datagram).unwrap();
            let headers = parse(&answer).unwrap();
            let expected = if v6 { (IpProto::ICMPV6, 1, 1) } else { (IpProto::ICMP, 3, 13) };
            let key = headers.key();
            assert_eq!((key.protocol, key.icmp_type, key.icmp_code), expected);
            assert_eq!(checksum::verify(&answer, &headers), Ok(()));
            let quoted = &datagram[14..];
            assert!(answer.windows(quoted.len()).any(|window| window == quoted));
            assert_eq!(answered(&answer), None, "an error is not answered");
        }
    }

    #[test]
    fn groups_and_what_is_not_ip_get_no_answer() {
        let group = FrameBuilder::new(A, B).ip("10.0.0.1".parse().unwrap(), "224.0.0.5".parse().unwrap());
        assert_eq!(answered(&group.udp(1, 2).to_vec().unwrap()), None);
        let arp =
            FrameBuilder::new(A, B).arp_request("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        assert_eq!(answered(&arp.to_vec().unwrap()), None);
    }

    #[test]
    fn errors_name_their_reason_and_sender() {
        for v6 in [false, true] {
            let long = [7; 1400];
            let datagram = frame(v6).udp(5, 53).payload(&long).to_vec().unwrap();
            let (from, other): (IpAddr, IpAddr) = if v6 {
                ("2001:db8::9".parse().unwrap(), "10.0.0.9".parse().unwrap())
            } else {
                ("10.0.0.9".parse().unwrap(), "2001:db8::9".parse().unwrap())
            };
            let kinds = if v6 { [(3, 0), (2, 0), (3, 1)] } else { [(11, 0), (3, 4), (11, 1)] };
            let reasons = [Reason::Expired, Reason::TooLong(1280), Reason::NotReassembled];
            for (reason, kind) in reasons.into_iter().zip(kinds) {
                let undelivered = Undelivered::of(&datagram[..200], datagram.len()).unwrap();
                let mut answer = [0; MAX_ANSWER];
                assert_eq!(undelivered.error(other, reason, &mut answer), None, "another family");
                let length = undelivered.error(from, reason, &mut answer).unwrap();
                let answer = &answer[..length];
                let headers = parse(answer).unwrap();
                let key = headers.key();
                assert_eq!((key.icmp_type, key.icmp_code), kind);
                assert_eq!((key.source.to_ip(), key.destination_mac, key.source_mac), (from, A, B));
                assert_eq!(checksum::verify(answer, &headers), Ok(()));
                let at = headers.l4_offset().unwrap();
                let mtu = if let Reason::TooLong(mtu) = reason { u32::from(mtu) } else { 0 };
                assert_eq!(answer[at + 4..at + 8], mtu.to_be_bytes());
                assert_eq!(answer[at + 8..], datagram[14..][..QUOTED]);
            }
        }
    }
}
