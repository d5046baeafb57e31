//! In: packets that a rule rejects, which are dropped. Out: an answer to each sender by the same port: a TCP reset,
//! else ICMP or ICMPv6 "administratively prohibited".
//!
//! All workers together send at most 1000 answers per second, so that a flood of rejected packets does not cause a
//! flood of answers (RFC 1812 section 4.3.2.8). Resets, ICMP errors, fragments other than the first, and packets from
//! or to a group address get no answer (RFC 1122 section 3.2.2).

use std::net::IpAddr;

use dpdk::Mbuf;
use netvm_switch::Policer;
use netvm_wire::{
    FlowKey, Fragment, FrameBuilder, Headers, IpProto, MacAddr, TcpFlags, checksum, parse_prefix,
};

use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::worker::next::{Dispatch, Next, Step};
use crate::worker::packet::keys::HEADER_BYTES;

/// Longest answer: ICMPv6 with the quoted part of the rejected packet.
const MAX_ANSWER: usize = 54 + 8 + QUOTED;
/// Most bytes of a rejected packet that an answer quotes.
const QUOTED: usize = 128;
/// Destination unreachable, communication administratively prohibited (RFC 1812 section 5.2.7.1).
const UNREACHABLE_V4: [u8; 2] = [3, 13];
/// The same for ICMPv6 (RFC 4443 section 3.1).
const UNREACHABLE_V6: [u8; 2] = [1, 1];

/// Answers the senders of packets, which are dropped.
#[cold]
pub(crate) fn answer(burst: &mut Dispatch<'_>, from: PortId) -> Step {
    let Dispatch { dp, cx, batch, split } = burst;
    let answers = &mut split.copies;
    if let Some(memory) = dp.memories.get(cx.memory) {
        for mbuf in batch.as_slice() {
            let mut answer = [0u8; MAX_ANSWER];
            let length = answer_for(mbuf, &mut answer);
            let Some(length) = length.filter(|_| admits(dp.limits.rejects.as_ref(), dp.clock.now)) else {
                continue;
            };
            if !super::answer::add(memory, answers, mbuf.port(), &answer[..length]) {
                break;
            }
        }
    }
    Step::Copies(Next::Tx(from), Next::drop_at(from, DropReason::Rejected))
}

/// Whether the sender of a rejected packet gets an answer, if the limit of answers admits it.
pub(crate) fn has_answer(packet: &Mbuf) -> bool {
    answer_for(packet, &mut [0; MAX_ANSWER]).is_some()
}

/// Writes the answer to a packet; `None` if it gets no answer.
fn answer_for(packet: &Mbuf, answer: &mut [u8]) -> Option<usize> {
    let mut headers = [0u8; HEADER_BYTES];
    let copied = packet.copy_to(&mut headers);
    answer_to(&headers[..copied], packet.pkt_len() as usize, answer)
}

fn admits(policer: Option<&Policer>, now: u64) -> bool {
    policer.is_some_and(|policer| policer.admit(now, 1))
}

/// Writes the answer to a frame of `frame_len` bytes that begins with `headers`; `None` if it gets no answer.
fn answer_to(headers: &[u8], frame_len: usize, answer: &mut [u8]) -> Option<usize> {
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
    if !answerable {
        return None;
    }
    let mut builder = FrameBuilder::new(key.destination_mac, key.source_mac).ip(destination, source);
    if let Some(vlan) = key.vlan {
        builder = builder.vlan(vlan);
    }
    if key.protocol == IpProto::TCP {
        return reset(headers, &parsed, builder, answer);
    }
    unreachable(headers, &parsed, builder, answer)
}

fn is_group(address: IpAddr) -> bool {
    address.is_multicast() || matches!(address, IpAddr::V4(v4) if v4.is_broadcast())
}

/// RFC 9293 section 3.10.7.1: a reset that the sender accepts.
fn reset(headers: &[u8], parsed: &Headers, builder: FrameBuilder<'_>, answer: &mut [u8]) -> Option<usize> {
    let key: &FlowKey = parsed.key();
    if key.tcp_flags.contains(TcpFlags::RST) {
        return None;
    }
    let tcp = headers.get(parsed.l4_offset()?..)?.first_chunk::<20>()?;
    let number = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
    let builder = if key.tcp_flags.contains(TcpFlags::ACK) {
        builder.tcp(key.destination_port, key.source_port, TcpFlags::RST).numbers(number(8), 0)
    } else {
        let payload = parsed.payload_end().saturating_sub(parsed.payload_offset());
        let flags = [TcpFlags::SYN, TcpFlags::FIN].into_iter().filter(|flag| key.tcp_flags.contains(*flag));
        let length = payload as u32 + flags.count() as u32;
        let flags = TcpFlags::RST | TcpFlags::ACK;
        builder.tcp(key.destination_port, key.source_port, flags).numbers(0, number(4).wrapping_add(length))
    };
    builder.write(answer).ok()
}

fn unreachable(
    headers: &[u8],
    parsed: &Headers,
    builder: FrameBuilder<'_>,
    answer: &mut [u8],
) -> Option<usize> {
    let key: &FlowKey = parsed.key();
    let v4 = key.source.is_v4();
    // An error gets no error as an answer: types below 128 of ICMPv6, and all ICMP types but queries.
    let is_error = match key.protocol {
        IpProto::ICMP => !matches!(key.icmp_type, 8 | 10 | 13 | 15 | 17),
        IpProto::ICMPV6 => key.icmp_type < 128,
        _ => false,
    };
    if is_error {
        return None;
    }
    // The quoted part: the header and at least 8 bytes after it.
    let packet = headers.get(parsed.l3_offset()..headers.len().min(parsed.payload_end()))?;
    let quoted = &packet[..packet.len().min(QUOTED)];
    let mut message = [0u8; 8 + QUOTED];
    let message = &mut message[..8 + quoted.len()];
    let (protocol, kind) =
        if v4 { (IpProto::ICMP, UNREACHABLE_V4) } else { (IpProto::ICMPV6, UNREACHABLE_V6) };
    message[..2].copy_from_slice(&kind);
    message[8..].copy_from_slice(quoted);
    let sum = if v4 {
        checksum::internet_checksum(message)
    } else {
        checksum::transport_checksum(key.destination, key.source, IpProto::ICMPV6, message)
    };
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    builder.protocol(protocol).payload(message).write(answer).ok()
}

#[cfg(test)]
mod tests {
    use netvm_wire::parse;

    use super::*;

    const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn frame(v6: bool) -> FrameBuilder<'static> {
        let (a, b) = if v6 { ("2001:db8::1", "2001:db8::2") } else { ("10.0.0.1", "10.0.0.2") };
        FrameBuilder::new(A, B).ip(a.parse().unwrap(), b.parse().unwrap())
    }

    fn answered(frame: &[u8]) -> Option<Vec<u8>> {
        let mut answer = [0; MAX_ANSWER];
        let length = answer_to(&frame[..frame.len().min(HEADER_BYTES)], frame.len(), &mut answer)?;
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
}
