// SPDX-License-Identifier: Apache-2.0
//! RFC 5508: ICMP.

use netvm_conntrack::Timeouts;
use netvm_wire::{ConnState, IpProto, checksum, parse};

use super::{OTHER_REMOTE, from, plain, udp_to_remote, with_timeouts};
use crate::nat::packets::error;
use crate::nat::{INSIDE, OTHER_INSIDE, OUTSIDE, REMOTE, ROUTER, masquerade, pool, udp_frame};
use crate::rig::{Rig, between};

/// Where ICMP begins in a frame without IP options.
const ICMP: usize = 34;

fn echo(from: &str, to: &str, is_reply: bool) -> Vec<u8> {
    between(from, to).echo(is_reply, 7, 1).to_vec().unwrap()
}

/// A timestamp message of this type.
fn timestamp(from: &str, to: &str, icmp_type: u8) -> Vec<u8> {
    let mut message = [0; 20];
    (message[0], message[5], message[7]) = (icmp_type, 7, 1);
    let mut frame = between(from, to).protocol(IpProto::ICMP).payload(&message).to_vec().unwrap();
    let headers = parse(&frame).unwrap();
    checksum::fill(&mut frame, &headers).unwrap();
    frame
}

/// An error with this type and code.
fn error_of(kind: [u8; 2], about: &[u8], from: &str, to: &str) -> Vec<u8> {
    let mut frame = error(about, from, to);
    frame[ICMP..ICMP + 2].copy_from_slice(&kind);
    let headers = parse(&frame).unwrap();
    checksum::fill(&mut frame, &headers).unwrap();
    frame
}

#[test]
fn rfc5508_req_1_queries_and_their_answers_pass() {
    let (mut rig, pools) = (plain(), masquerade());
    let out = rig.through(&echo(INSIDE, REMOTE, false), from(&pools)).unwrap();
    assert_eq!(out, echo(OUTSIDE, REMOTE, false));
    assert_eq!(rig.known(&echo(REMOTE, OUTSIDE, true)).unwrap(), echo(REMOTE, INSIDE, true));
    let out = rig.through(&timestamp(INSIDE, REMOTE, 13), from(&pools)).unwrap();
    assert_eq!(out, timestamp(OUTSIDE, REMOTE, 13));
    assert_eq!(rig.known(&timestamp(REMOTE, OUTSIDE, 14)).unwrap(), timestamp(REMOTE, INSIDE, 14));
}

#[test]
fn rfc5508_req_1_an_identifier_does_not_depend_on_the_destination() {
    let (mut rig, pools) = (plain(), [pool(OUTSIDE, OUTSIDE, [40_000, 50_000])]);
    let mut identifier = |from_host: &str, remote: &str| {
        let out = rig.through(&echo(from_host, remote, false), from(&pools)).unwrap();
        out[ICMP + 4..ICMP + 6].to_vec()
    };
    let first = identifier(INSIDE, REMOTE);
    assert_eq!(identifier(INSIDE, OTHER_REMOTE), first);
    let other = identifier(OTHER_INSIDE, REMOTE);
    assert_ne!(other, first, "identifiers that collide");
    assert_eq!(identifier(OTHER_INSIDE, OTHER_REMOTE), other);
}

#[test]
fn rfc5508_req_2_queries_last_as_long_as_configured() {
    let mut rig = with_timeouts(Timeouts { icmp: 60, ..Timeouts::default() });
    rig.through(&echo(INSIDE, REMOTE, false), from(&masquerade())).unwrap();
    rig.wait(59);
    rig.expire();
    assert!(rig.known(&echo(REMOTE, OUTSIDE, true)).is_some());
    rig.wait(61);
    rig.expire();
    assert!(rig.known(&echo(REMOTE, OUTSIDE, true)).is_none());
}

#[test]
fn rfc5508_req_3_a_wrong_checksum_stays_wrong() {
    let mut rig = plain();
    let out = rig.through(&udp_to_remote(INSIDE, 1000), from(&masquerade())).unwrap();
    let mut wrong = error(&out, ROUTER, OUTSIDE);
    wrong[ICMP + 2] ^= 1;
    let inwards = rig.known(&wrong).unwrap();
    assert!(checksum::verify(&inwards, &parse(&inwards).unwrap()).is_err(), "its receiver drops it");
}

#[test]
fn rfc5508_req_3_options_of_the_packet_in_an_error_are_skipped() {
    let mut rig = plain();
    rig.through(&udp_to_remote(INSIDE, 1000), from(&masquerade())).unwrap();
    let with_options = |source: &str| {
        let frame = udp_frame(source, REMOTE, [1000, 53]);
        let mut message = vec![3, 1, 0, 0, 0, 0, 0, 0];
        message.extend(&frame[14..34]);
        // Four bytes of options, and the header's checksum without its old value.
        message[8] = 0x46;
        message.extend([1, 1, 1, 0]);
        message.extend(&frame[34..]);
        message[8 + 10..8 + 12].fill(0);
        let sum: u32 =
            message[8..32].as_chunks().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
        let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
        message[8 + 10..8 + 12].copy_from_slice(&sum.to_be_bytes());
        message
    };
    let error = |source: &str| {
        let message = with_options(source);
        let mut frame = between(ROUTER, source).protocol(IpProto::ICMP).payload(&message).to_vec().unwrap();
        let headers = parse(&frame).unwrap();
        checksum::fill(&mut frame, &headers).unwrap();
        frame
    };
    assert_eq!(rig.known(&error(OUTSIDE)).unwrap(), error(INSIDE));
}

#[test]
fn rfc5508_req_4_errors_from_outside_are_translated_or_invalid() {
    let mut rig = plain();
    let sent = udp_to_remote(INSIDE, 1000);
    let out = rig.through(&sent, from(&masquerade())).unwrap();
    for kind in [[3, 0], [3, 1], [3, 3], [3, 4], [3, 13], [4, 0], [11, 0], [11, 1], [12, 0]] {
        let inwards = rig.known(&error_of(kind, &out, ROUTER, OUTSIDE)).unwrap();
        assert_eq!(inwards, error_of(kind, &sent, ROUTER, INSIDE), "type and code are unchanged");
        let unknown = error_of(kind, &udp_frame(OUTSIDE, REMOTE, [1001, 53]), ROUTER, OUTSIDE);
        assert_eq!(rig.look(&unknown).state, ConnState::Invalid);
    }
}

#[test]
fn rfc5508_req_5_errors_from_inside_are_translated_or_invalid() {
    let mut rig = plain();
    rig.through(&udp_to_remote(INSIDE, 1000), from(&masquerade())).unwrap();
    let answer = udp_frame(REMOTE, OUTSIDE, [53, 1000]);
    let inwards = rig.known(&answer).unwrap();
    for kind in [[3, 3], [11, 1]] {
        // Also a router inside appears with the address outside (REQ-5c).
        for from in [INSIDE, "10.0.0.254"] {
            let out = rig.known(&error_of(kind, &inwards, from, REMOTE)).unwrap();
            assert_eq!(out, error_of(kind, &answer, OUTSIDE, REMOTE));
        }
        let unknown = error_of(kind, &udp_frame(REMOTE, INSIDE, [53, 1001]), INSIDE, REMOTE);
        assert_eq!(rig.look(&unknown).state, ConnState::Invalid);
    }
}

#[test]
fn rfc5508_req_6_errors_neither_refresh_nor_end_a_query() {
    let mut rig = plain();
    let out = rig.through(&echo(INSIDE, REMOTE, false), from(&masquerade())).unwrap();
    rig.wait(20);
    let left = rig.only().left(rig.now);
    for icmp_type in 0..=255 {
        rig.look(&error_of([icmp_type, 0], &out, ROUTER, OUTSIDE));
    }
    assert_eq!(rig.only().left(rig.now), left);
    assert!(rig.known(&echo(REMOTE, OUTSIDE, true)).is_some());
}

/// A connection from one host inside to the end outside of another one: both packets as they arrive inside.
fn hairpinned(rig: &mut Rig) -> [Vec<u8>; 2] {
    let pools = masquerade();
    rig.through(&udp_to_remote(INSIDE, 1000), from(&pools)).unwrap();
    let there = rig.hairpin(&udp_frame(OTHER_INSIDE, OUTSIDE, [2000, 1000]), &pools).unwrap();
    let back = rig.known(&udp_frame(INSIDE, OUTSIDE, [1000, 2000])).unwrap();
    [there, back]
}

#[test]
fn rfc5508_req_7_errors_about_hairpinned_packets_are_translated() {
    let mut rig = plain();
    let [there, back] = hairpinned(&mut rig);
    let sent = udp_frame(OTHER_INSIDE, OUTSIDE, [2000, 1000]);
    let error_there = rig.known(&error(&there, INSIDE, OUTSIDE)).unwrap();
    assert_eq!(error_there, error(&sent, OUTSIDE, OTHER_INSIDE));
    let answer = udp_frame(INSIDE, OUTSIDE, [1000, 2000]);
    let error_back = rig.known(&error(&back, OTHER_INSIDE, OUTSIDE)).unwrap();
    assert_eq!(error_back, error(&answer, OUTSIDE, INSIDE));
}

#[test]
fn rfc5508_req_10_queries_and_errors_of_all_kinds_pass() {
    let (mut rig, pools) = (plain(), masquerade());
    for icmp_type in [8, 13, 15, 17] {
        let out = rig.through(&timestamp(INSIDE, REMOTE, icmp_type), from(&pools)).unwrap();
        assert_eq!(out, timestamp(OUTSIDE, REMOTE, icmp_type));
        let reply = if icmp_type == 8 { 0 } else { icmp_type + 1 };
        let answer = rig.known(&timestamp(REMOTE, OUTSIDE, reply)).unwrap();
        assert_eq!(answer, timestamp(REMOTE, INSIDE, reply));
    }
}
