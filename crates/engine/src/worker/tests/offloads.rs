// SPDX-License-Identifier: Apache-2.0
//! Segments of up to 64 KB and unfinished checksums on their way through NFs that take them, and through others.

use netvm_model::Forward;
use netvm_ring::Descriptor;
use netvm_wire::{TcpFlags, checksum, parse};

use super::rig::{CHAIN, Rig, ip};
use crate::drop_reason::{DropReason, Violation};

/// Payload bytes of each packet.
const SIZE: u16 = 300;
/// Bytes of all headers.
const HEADERS: usize = 14 + 20 + 20;

/// A rig with one NF, and segments from port 0.
fn rig(offloads: bool) -> Rig {
    let rig = Rig::new(&[Forward::Chain(CHAIN), Forward::None]).with_chain_of(1, &[], offloads);
    rig.wires[0].lock().unwrap().segment_size = Some(SIZE);
    rig
}

fn payload(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n % 251) as u8).collect()
}

fn segment(length: usize) -> Vec<u8> {
    ip(1, 2).tcp(1000, 80, TcpFlags::ACK).payload(&payload(length)).to_vec().unwrap()
}

/// Hands a segment of `length` bytes of payload to the NF, lets `change` change it, and returns the rig after the way
/// back.
fn through(length: usize, change: impl FnOnce(&mut [u8], Descriptor) -> Descriptor) -> Rig {
    let mut rig = rig(true);
    rig.receive(0, &segment(length));
    rig.turn();
    let [packet] = rig.nfs[0].take()[..] else { panic!("one packet") };
    assert_eq!(usize::from(packet.length()), HEADERS + length);
    let changed = change(rig.bytes_of(&packet), packet);
    rig.nfs[0].tx.push(&[changed]);
    rig.turn();
    rig
}

/// The payloads of what left by port 1, one after the other. Every packet is right in itself.
fn payload_of(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut all = Vec::new();
    for frame in frames {
        let headers = parse(frame).unwrap();
        checksum::verify(frame, &headers).unwrap();
        assert!(frame.len() <= HEADERS + usize::from(SIZE));
        all.extend(&frame[HEADERS..]);
    }
    all
}

#[test]
fn an_nf_that_takes_segments_gets_them_whole_and_may_change_their_headers() {
    let rig = through(30_000, |bytes, packet| {
        // Another destination, without a word about the checksum.
        bytes[30..34].copy_from_slice(&[10, 9, 9, 9]);
        let headers = parse(bytes).unwrap();
        checksum::fill(bytes, &headers).unwrap();
        packet
    });
    let frames = rig.sent(1);
    assert!(frames.len() == 100 && payload_of(&frames) == payload(30_000));
    assert!(frames.iter().all(|frame| frame[30..34] == [10, 9, 9, 9]));
    rig.assert_nothing_leaked();
}

#[test]
fn unfinished_checksums_pass_too() {
    let rig = through(100, |_, packet| packet);
    assert_eq!(payload_of(&rig.sent(1)), payload(100));
    rig.assert_nothing_leaked();
}

#[test]
fn an_nf_that_cannot_gets_finished_packets() {
    let mut rig = rig(false);
    rig.receive(0, &segment(3000));
    rig.turn();
    let packets = rig.nfs[0].take();
    assert_eq!(packets.len(), 10);
    for packet in &packets {
        let frame = rig.bytes_of(packet).to_vec();
        checksum::verify(&frame, &parse(&frame).unwrap()).unwrap();
    }
    rig.nfs[0].tx.push(&packets);
    rig.turn();
    assert_eq!(payload_of(&rig.sent(1)), payload(3000));
    rig.assert_nothing_leaked();
}

#[test]
fn a_tag_moves_the_headers_and_they_are_found_again() {
    let rig = through(1000, |bytes, packet| {
        // Into the headroom: addresses, tag, and the rest where it is.
        let tagged = packet.with_span(packet.offset() - 4, packet.length() + 4);
        let addresses: [u8; 12] = bytes[..12].try_into().unwrap();
        // SAFETY: four bytes of headroom precede the packet.
        let front = unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().sub(4), 16) };
        front[..12].copy_from_slice(&addresses);
        front[12..].copy_from_slice(&[0x81, 0, 0, 7]);
        tagged
    });
    let frames = rig.sent(1);
    assert_eq!(frames.len(), 4);
    for frame in frames {
        assert_eq!(frame[12..16], [0x81, 0, 0, 7]);
        checksum::verify(&frame, &parse(&frame).unwrap()).unwrap();
    }
    rig.assert_nothing_leaked();
}

#[test]
fn a_segment_that_an_nf_cuts_short_leaves_as_one_packet() {
    let rig = through(20_000, |bytes, packet| {
        let length = (HEADERS + 200) as u16;
        bytes[16..18].copy_from_slice(&(length - 14).to_be_bytes());
        let short = &mut bytes[..length.into()];
        let headers = parse(short).unwrap();
        checksum::fill(short, &headers).unwrap();
        packet.with_span(packet.offset(), length)
    });
    assert_eq!(payload_of(&rig.sent(1)), payload(200));
    rig.assert_nothing_leaked();
}

/// What an NF does with a segment.
type Change = fn(&mut [u8], Descriptor) -> Descriptor;

#[test]
fn what_cannot_be_finished_any_more_is_dropped() {
    let changes: [Change; 5] = [
        |bytes, packet| {
            bytes[12..14].copy_from_slice(&[0x88, 0xcc]);
            packet
        },
        |bytes, packet| {
            bytes[23] = 17;
            packet
        },
        |bytes, packet| {
            bytes[46] = 0xf0;
            bytes[16..18].copy_from_slice(&41u16.to_be_bytes());
            packet
        },
        |_, packet| packet.with_span(packet.offset(), packet.length() - 1),
        |_, packet| packet.with_span(packet.offset() + 14, packet.length() - 14),
    ];
    for change in changes {
        let rig = through(5000, change);
        assert!(rig.sent(1).is_empty());
        assert_eq!(rig.dropped_at(0, DropReason::Malformed), 1);
        rig.assert_nothing_leaked();
    }
}

#[test]
fn bounds_of_large_buffers_are_checked_and_their_inner_numbers_are_nobodys() {
    let rig = through(5000, |_, packet| packet.with_span(u16::MAX - 100, 200));
    assert!(rig.sent(1).is_empty());
    rig.assert_nothing_leaked();

    let mut rig = rig_with_segment();
    let [packet] = rig.nfs[0].take()[..] else { panic!("one packet") };
    let inner = netvm_ring::Span::new(packet.buffer() + 1, packet.offset(), 100);
    rig.nfs[0].tx.push(&[packet.with_packet(inner), packet]);
    rig.turn();
    let violations = &rig.counters().links[0].violations;
    assert_eq!(violations[Violation::BufferNotOut as usize].get(), 1);
    assert_eq!(payload_of(&rig.sent(1)), payload(5000));
    rig.assert_nothing_leaked();
}

fn rig_with_segment() -> Rig {
    let mut rig = rig(true);
    rig.receive(0, &segment(5000));
    rig.turn();
    rig
}
