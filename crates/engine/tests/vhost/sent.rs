// SPDX-License-Identifier: Apache-2.0
//! Buffers of every shape from which a guest sends: its packets arrive whole, and those that contradict their header do
//! not.

use std::path::Path;

use crate::buffers::{Buffer, HEADER, Ring, place};
use crate::support::Rig;
use crate::support::guests::{TIMEOUT, host, no_buffer_is_lost, view};
use crate::support::hostile_guest::HostileGuest;
use crate::support::hostile_rig::{CSUM, INDIRECT, MERGEABLE, PACKED, TSO, VERSION_1};
use crate::support::pcap::Scratch;
use netvm_engine::DropReason;
use netvm_model::{EngineConfig, Forward, Host};
use netvm_wire::{FrameBuilder, MacAddr, checksum, parse};

/// The transmit ring of the first pair.
const RING: u64 = 0x1_0000;
const PLAIN: [u8; HEADER] = [0; HEADER];

/// A buffer and what is in it.
struct Sent {
    bytes: Vec<u8>,
    buffer: Buffer,
}

fn sent(header: [u8; HEADER], frame: &[u8], pieces: &[usize], indirect: bool) -> Sent {
    let bytes = [&header[..], frame].concat();
    let (mut pieces, known) = (pieces.to_vec(), pieces.iter().sum::<usize>());
    pieces.push(bytes.len() - known);
    Sent { bytes, buffer: Buffer { pieces, indirect } }
}

/// Writes what is in a buffer.
fn fill(hostile: &HostileGuest, number: usize, sent: &Sent) {
    let mut bytes = &sent.bytes[..];
    for (piece, length) in sent.buffer.pieces.iter().enumerate() {
        let (part, rest) = bytes.split_at(*length);
        (place(number, piece)..).zip(part).for_each(|(place, byte)| hostile.write(place, [*byte]));
        bytes = rest;
    }
}

fn frames() -> Vec<Vec<u8>> {
    let of = |n: u16| {
        let builder = FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let builder = builder.ip("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        builder.udp(1000 + n, 53).payload(&vec![n as u8; 40 + 97 * usize::from(n)]).to_vec().unwrap()
    };
    (0..8).map(of).collect()
}

/// An engine that switches between a guest, port 0, and a capture, port 1.
pub fn before_a_capture(scratch: &Scratch, path: &Path) -> Rig {
    let mut rig = Rig::new(&EngineConfig::default());
    let mut host = host(&[path]);
    let mut capture = scratch.port(1, &[]);
    capture.policy.forward = Forward::Normal;
    host.ports.push(capture);
    rig.engine.apply(&host).unwrap();
    rig
}

/// Sends the buffers and returns the frames that a capture received.
fn send(name: &str, features: u64, sent: &[Sent], malformed: u64) -> Vec<Vec<u8>> {
    let scratch = Scratch::new();
    let path = scratch.path().join(name);
    let mut rig = before_a_capture(&scratch, &path);
    let hostile = HostileGuest::connect(&path, features);
    sent.iter().enumerate().for_each(|(number, sent)| fill(&hostile, number, sent));
    let ring = Ring { hostile: &hostile, at: RING, packed: features & PACKED != 0, flags: 0, shift: 0 };
    let heads = ring.offer(&sent.iter().map(|sent| sent.buffer.clone()).collect::<Vec<_>>());
    hostile.kick();
    assert!(rig.until(TIMEOUT, |_| ring.is_used(&heads)), "{}", rig.describe());
    let passed = sent.len() as u64 - malformed;
    assert!(rig.until(TIMEOUT, |engine| view(engine, 1).tx_packets == passed), "{}", rig.describe());
    let drops = view(&rig.engine, 0).drops;
    let dropped = drops.iter().find(|(why, _)| *why == DropReason::Malformed).map_or(0, |(_, count)| *count);
    assert_eq!(dropped, malformed, "{}", rig.describe());
    no_buffer_is_lost(&mut rig);
    rig.engine.apply(&Host::default()).unwrap();
    scratch.sent(1)
}

const KINDS: [(&str, u64); 4] =
    [("split", 0), ("split-merged", MERGEABLE), ("packed", PACKED), ("packed-merged", PACKED | MERGEABLE)];

#[test]
fn packets_arrive_whole_from_buffers_of_every_shape() {
    let frames = frames();
    let shapes: [(&[usize], bool); 8] = [
        (&[], false),
        (&[HEADER], false),
        (&[1, 1, 9, 1, 1], false),
        (&[5], false),
        (&[], true),
        (&[3, 3, 3, 3, 3], true),
        (&[HEADER, 50], true),
        (&[], false),
    ];
    let buffers: Vec<Sent> = frames
        .iter()
        .zip(shapes)
        .map(|(frame, (pieces, indirect))| sent(PLAIN, frame, pieces, indirect))
        .collect();
    for (name, kind) in KINDS {
        assert_eq!(send(name, VERSION_1 | INDIRECT | kind, &buffers, 0), frames, "{name}");
    }
}

/// A header with such flags, kind of segment, segment size, and place of the checksum.
fn header(flags: u8, kind: u8, size: u16, [from, at]: [u16; 2]) -> [u8; HEADER] {
    let mut header = PLAIN;
    (header[0], header[1]) = (flags, kind);
    for (place, value) in [(4, size), (6, from), (8, at)] {
        header[place..place + 2].copy_from_slice(&value.to_le_bytes());
    }
    header
}

#[test]
fn packets_that_contradict_their_header_are_dropped_and_others_pass() {
    let frame = &frames()[3];
    let whole = |header| sent(header, frame, &[], false);
    let udp = [34, 6];
    let long = vec![0xff; 65_535 + 23];
    let pieces = vec![4096; 16];
    let buffers = [
        whole(PLAIN),
        // A segment without a checksum to compute, of UDP, of no bytes, of another protocol, and beyond the packet.
        whole(header(0, 1, 700, udp)),
        whole(header(1, 3, 700, udp)),
        whole(header(1, 1, 0, [34, 16])),
        whole(header(1, 4, 700, [34, 16])),
        whole(header(1, 1, 700, [u16::MAX, 16])),
        whole(header(1, 0, 0, [u16::MAX, u16::MAX])),
        // Nothing behind the header, and too much.
        Sent { bytes: PLAIN.to_vec(), buffer: Buffer::direct(&[HEADER]) },
        sent(PLAIN, &long, &pieces, false),
        // Of a protocol whose checksum mbufs have no flag for: it is computed at once.
        whole(header(1, 0, 0, [34, 8])),
        whole(header(1, 0, 0, udp)),
        whole(PLAIN),
    ];
    for (name, kind) in KINDS {
        let got = send(name, VERSION_1 | CSUM | TSO | kind, &buffers, 8);
        assert_eq!((&got[0], &got[3]), (frame, frame), "{name}");
        let sum = got[1][34..].chunks(2).fold(0u32, |sum, word| {
            let sum = sum + u32::from(u16::from_be_bytes([word[0], *word.get(1).unwrap_or(&0)]));
            (sum & 0xffff) + (sum >> 16)
        });
        // The complement of what the field had before.
        assert_eq!(sum as u16, !u16::from_be_bytes([frame[42], frame[43]]), "{name}");
        assert!(parse(&got[2]).is_ok_and(|headers| checksum::verify(&got[2], &headers).is_err()), "{name}");
    }
}
