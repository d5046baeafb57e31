//! Buffers of every shape from which a guest sends: its packets arrive whole, and those that contradict their header do not.

use std::time::Duration;

use crate::support::Rig;
use crate::support::guests::{SOON, host, no_buffer_is_lost, view};
use crate::support::pcap::Scratch;
use crate::support::rogue::{AVAILABLE, Rogue, USED, descriptor};
use crate::support::rogues::{CSUM, INDIRECT, MERGEABLE, PACKED, TSO, VERSION_1};
use netvm_config::model::{EngineConfig, Forward, Host};
use netvm_engine::DropReason;
use netvm_wire::{FrameBuilder, MacAddr, checksum, parse};

/// The transmit ring of the first pair.
const RING: u64 = 0x1_0000;
/// Where buffers are, behind the rings, and how far apart they and their pieces are.
const BUFFERS: u64 = 0x4_0000;
const STRIDE: u64 = 0x1_4000;
const APART: u64 = 0x1000;
const TABLES: u64 = 0x3_0000;
const NEXT: u16 = 1;
const TABLE: u16 = 4;
/// Of packed rings: the flags of an available descriptor while the driver's wrap counter is 0.
const THERE: u16 = 1 << 15;

/// A virtio-net header (virtio 1.2, section 5.1.6).
const HEADER: usize = 12;
const PLAIN: [u8; HEADER] = [0; HEADER];

/// What is in a buffer, the lengths of its descriptors, and whether they are in an indirect table.
struct Sent {
    bytes: Vec<u8>,
    pieces: Vec<usize>,
    indirect: bool,
}

fn sent(header: [u8; HEADER], frame: &[u8], pieces: &[usize], indirect: bool) -> Sent {
    let bytes = [&header[..], frame].concat();
    let (mut pieces, known) = (pieces.to_vec(), pieces.iter().sum::<usize>());
    pieces.push(bytes.len() - known);
    Sent { bytes, pieces, indirect }
}

/// Writes the descriptors of a buffer, from number `first` of the table at an address on.
fn write_table(rogue: &Rogue, table: u64, first: u16, (number, sent): (usize, &Sent), packed: bool) {
    let mut bytes = &sent.bytes[..];
    for (piece, length) in sent.pieces.iter().enumerate() {
        let place = BUFFERS + number as u64 * STRIDE + piece as u64 * APART;
        let (part, rest) = bytes.split_at(*length);
        (0..).zip(part).for_each(|(offset, byte)| rogue.write(place + offset, [*byte]));
        bytes = rest;
        let last = piece + 1 == sent.pieces.len();
        let flags = if last { 0 } else { NEXT };
        let word = if packed {
            descriptor(place, *length as u32, number as u16, flags | THERE)
        } else {
            descriptor(place, *length as u32, flags, if last { 0 } else { first + piece as u16 + 1 })
        };
        rogue.write(table + (u64::from(first) + piece as u64) * 16, word);
    }
}

/// Offers the buffers, the first of a packed ring last. Returns their first descriptors.
fn offer(rogue: &Rogue, buffers: &[Sent], packed: bool) -> Vec<u16> {
    let (mut heads, mut slot) = (Vec::new(), 0u16);
    for (number, buffer) in buffers.iter().enumerate() {
        heads.push(slot);
        if buffer.indirect {
            let (table, bytes) = (TABLES + number as u64 * 0x200, buffer.pieces.len() as u32 * 16);
            write_table(rogue, table, 0, (number, buffer), packed);
            let word = if packed {
                descriptor(table, bytes, number as u16, TABLE | THERE)
            } else {
                descriptor(table, bytes, TABLE, 0)
            };
            rogue.write(RING + u64::from(slot) * 16, word);
            slot += 1;
        } else {
            write_table(rogue, RING, slot, (number, buffer), packed);
            slot += buffer.pieces.len() as u16;
        }
        let head = heads[number];
        rogue.write(RING + AVAILABLE + 4 + number as u64 * 2, head.to_ne_bytes());
        if packed && number == 0 {
            // Not there yet.
            rogue.write(RING + 14, rogue.read::<2>(RING + 14).map(|byte| byte & 0x7f));
        }
    }
    if packed {
        let [low, high] = rogue.read(RING + 14);
        rogue.write(RING + 14, [low, high | 0x80]);
    } else {
        rogue.write(RING + AVAILABLE + 2, (buffers.len() as u16).to_ne_bytes());
    }
    rogue.kick();
    heads
}

/// Whether netvm has used as many buffers.
fn is_used(rogue: &Rogue, heads: &[u16], packed: bool) -> bool {
    let last = u64::from(*heads.last().unwrap());
    if packed {
        u16::from_ne_bytes(rogue.read(RING + last * 16 + 14)) & 0x8080 == 0
    } else {
        u16::from_ne_bytes(rogue.read(RING + USED + 2)) == heads.len() as u16
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

/// Sends the buffers and returns the frames that a capture received.
fn send(name: &str, features: u64, buffers: &[Sent], malformed: u64) -> Vec<Vec<u8>> {
    let scratch = Scratch::new();
    let path = scratch.path().join(name);
    let mut rig = Rig::new(&EngineConfig::default());
    let mut host = host(&[&path]);
    let mut capture = scratch.port(1, &[]);
    capture.policy.forward = Forward::Normal;
    host.ports.push(capture);
    rig.engine.apply(&host).unwrap();
    let (rogue, packed) = (Rogue::connect(&path, features), features & PACKED != 0);
    let heads = offer(&rogue, buffers, packed);
    assert!(rig.until(SOON, |_| is_used(&rogue, &heads, packed)), "{}", rig.story());
    let passed = buffers.len() as u64 - malformed;
    assert!(rig.until(SOON, |engine| view(engine, 1).tx_packets == passed), "{}", rig.story());
    let drops = view(&rig.engine, 0).drops;
    let dropped = drops.iter().find(|(why, _)| *why == DropReason::Malformed).map_or(0, |(_, count)| *count);
    assert_eq!(dropped, malformed, "{}", rig.story());
    std::thread::sleep(Duration::from_millis(20));
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
        Sent { bytes: PLAIN.to_vec(), pieces: vec![HEADER], indirect: false },
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
