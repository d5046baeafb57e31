// SPDX-License-Identifier: Apache-2.0
//! What becomes of packets.

use netvm_conntrack::{Half, Rewrite, Translation};
use netvm_wire::{FrameBuilder, IpProto, TcpFlags, checksum, parse, partial};
use proptest::prelude::*;

use super::{INSIDE, OUTSIDE, REMOTE, ROUTER, address, masquerade, pool, rig, udp_frame};
use crate::rig::{between, error_about};

/// An ICMP or ICMPv6 error about a frame, with checksums.
pub fn error(about: &[u8], from: &str, to: &str) -> Vec<u8> {
    let mut frame = if from.contains(':') {
        let mut message = vec![1, 4, 0, 0, 0, 0, 0, 0];
        message.extend(&about[14..]);
        between(from, to).protocol(IpProto::ICMPV6).payload(&message).to_vec().unwrap()
    } else {
        error_about(about, from, to)
    };
    let headers = parse(&frame).unwrap();
    checksum::fill(&mut frame, &headers).unwrap();
    frame
}

#[test]
fn errors_are_translated_inside_and_out() {
    for (inside, remote, outside, router) in
        [(INSIDE, REMOTE, OUTSIDE, ROUTER), ("fd00::1", "2001:db8::7", "2001:db8::1", "2001:db8:2::1")]
    {
        let pools = [pool(outside, outside, [40_000, 50_000])];
        let translation = Translation { sources: &pools, destination: None };
        let frames = [
            between(inside, remote).udp(1000, 53).payload(b"payload").to_vec().unwrap(),
            between(inside, remote).tcp(1000, 80, TcpFlags::SYN).numbers(77, 0).to_vec().unwrap(),
            between(inside, remote).echo(false, 7, 1).to_vec().unwrap(),
        ];
        for sent in frames {
            let mut rig = rig();
            let out = rig.through(&sent, translation).unwrap();
            assert_eq!(checksum::verify(&out, &parse(&out).unwrap()), Ok(()));
            for from in [router, remote] {
                let back = rig.known(&error(&out, from, outside)).unwrap();
                assert_eq!(back, error(&sent, from, inside));
            }
            assert!(rig.known(&error(&sent, router, inside)).is_none(), "no packet outside had that source");
        }
    }
}

#[test]
fn errors_from_inside_hide_what_sent_them() {
    let mut rig = rig();
    let pools = masquerade();
    rig.through(&udp_frame(INSIDE, REMOTE, [1000, 53]), Translation { sources: &pools, destination: None });
    let answer = udp_frame(REMOTE, OUTSIDE, [53, 1000]);
    let inwards = rig.known(&answer).unwrap();
    for from in [INSIDE, "10.0.0.254"] {
        assert_eq!(rig.known(&error(&inwards, from, REMOTE)).unwrap(), error(&answer, OUTSIDE, REMOTE));
    }
}

#[test]
fn a_missing_checksum_stays_missing_and_a_partial_one_partial() {
    let (inside, outside) = (udp_frame(INSIDE, REMOTE, [1000, 53]), udp_frame(OUTSIDE, REMOTE, [1000, 53]));
    let with = |frame: &[u8], sum: u16| {
        let mut frame = frame.to_vec();
        frame[40..42].copy_from_slice(&sum.to_be_bytes());
        frame
    };
    let pools = masquerade();
    let translation = Translation { sources: &pools, destination: None };
    assert_eq!(rig().through(&with(&inside, 0), translation).unwrap(), with(&outside, 0));
    let pseudo = |frame: &[u8]| with(frame, partial::transport(frame).unwrap().pseudo_sum);
    let (mut rig, mut frame) = (rig(), pseudo(&inside));
    rig.begin(&frame, translation).unwrap();
    let length = frame.len();
    let mut packet = Rewrite { front: &mut frame, length, is_partial: true };
    rig.only().rewrite(Half::Source, false, &mut packet).unwrap();
    assert_eq!(frame, pseudo(&outside));
}

#[test]
fn fragments_are_translated_as_one_packet() {
    let whole = |from: &str| between(from, REMOTE).udp(1000, 53).payload(&[9; 64]).to_vec().unwrap();
    let fragments = |from: &str, port: u16| {
        let mut first =
            between(from, REMOTE).fragment(5, 0, true).udp(port, 53).payload(&[9; 24]).to_vec().unwrap();
        // Length and checksum of the whole datagram.
        let mut datagram = whole(from)[34..].to_vec();
        datagram[0..2].copy_from_slice(&port.to_be_bytes());
        datagram[6..8].fill(0);
        let sum = checksum::udp_checksum(address(from), address(REMOTE), &datagram);
        first[38..40].copy_from_slice(&datagram[4..6]);
        first[40..42].copy_from_slice(&sum.to_be_bytes());
        let later = between(from, REMOTE).fragment(5, 4, false).protocol(IpProto::UDP);
        [first, later.payload(&[9; 40]).to_vec().unwrap()]
    };
    let mut rig = rig();
    let pools = [pool(OUTSIDE, OUTSIDE, [40_000, 40_000])];
    let translation = Translation { sources: &pools, destination: None };
    for (inside, outside) in fragments(INSIDE, 1000).iter().zip(fragments(OUTSIDE, 40_000)) {
        assert_eq!(rig.through(inside, translation).unwrap(), outside);
    }
}

proptest! {
    #[test]
    fn any_packet_is_as_if_it_was_built_translated(
        kind in 0..3, v6: bool, port: u16, payload in prop::collection::vec(any::<u8>(), 0..80), length in 0usize..120,
    ) {
        let (inside, remote, outside) =
            if v6 { ("fd00::1", "2001:db8::7", "2001:db8::1") } else { (INSIDE, REMOTE, OUTSIDE) };
        let frame = |from: &str, to: &str, ports: [u16; 2], is_reply: bool| {
            let builder = between(from, to).payload(&payload).frame_len(length);
            let built: FrameBuilder<'_> = match kind {
                0 => builder.udp(ports[0], ports[1]),
                1 => builder.tcp(ports[0], ports[1], TcpFlags::ACK),
                _ => builder.echo(is_reply, if is_reply { ports[1] } else { ports[0] }, 1),
            };
            built.to_vec().unwrap()
        };
        let mut rig = rig();
        let pools = [pool(outside, outside, [40_000, 40_000])];
        let translation = Translation { sources: &pools, destination: None };
        let out = rig.through(&frame(inside, remote, [port, 53], false), translation).unwrap();
        prop_assert_eq!(out, frame(outside, remote, [40_000, 53], false));
        let back = rig.through(&frame(remote, outside, [53, 40_000], true), translation).unwrap();
        prop_assert_eq!(back, frame(remote, inside, [53, port], true));
    }
}
