//! Guests' buffers of every shape that virtio allows: packets arrive whole in all of them.

use std::path::Path;
use std::time::Duration;

use crate::support::Rig;
use crate::support::rogue::{AVAILABLE, Rogue, USED, descriptor};
use crate::support::rogues::{INDIRECT, MERGEABLE, PACKED, VERSION_1, with_rig};
use netvm_config::model::VhostDma;
use netvm_wire::{checksum, parse};

/// Where buffers are, behind the rings, and how far apart.
const BUFFERS: u64 = 0x4_0000;
const STRIDE: u64 = 0x1000;
/// Where tables of indirect descriptors are.
const TABLES: u64 = 0x10_0000;
const NEXT: u16 = 1;
const TABLE: u16 = 4;
/// Of packed rings: the flags of an available descriptor while the driver's wrap counter is 0.
const THERE: u16 = 1 << 15;

/// The header and the frame of each packet.
const HEADER: usize = 12;
const FRAME: usize = 60;

/// A buffer: the lengths of its descriptors, and whether they are in an indirect table.
struct Buffer {
    pieces: &'static [u32],
    indirect: bool,
}

const fn direct(pieces: &'static [u32]) -> Buffer {
    Buffer { pieces, indirect: false }
}

const fn indirect(pieces: &'static [u32]) -> Buffer {
    Buffer { pieces, indirect: true }
}

/// Each holds a packet; but with mergeable buffers, four of 20 bytes together hold one.
const SHAPES: [Buffer; 9] = [
    direct(&[2048]),
    direct(&[HEADER as u32, FRAME as u32]),
    direct(&[1, 1, 9, 1, 1, 58, 1]),
    direct(&[5, 2000]),
    indirect(&[2048]),
    indirect(&[3, 3, 3, 3, 3, 57]),
    direct(&[72]),
    indirect(&[72]),
    direct(&[4096]),
];
const SMALL: [Buffer; 4] = [direct(&[20]), indirect(&[13, 7]), direct(&[20]), direct(&[20])];

fn place(buffer: usize, piece: usize) -> u64 {
    BUFFERS + buffer as u64 * STRIDE + if piece == 0 { 0 } else { 0x100 * piece as u64 }
}

/// Puts a buffer's descriptors into a table that begins there: `first` is the number of the first.
fn fill_table(rogue: &Rogue, table: u64, first: u16, number: usize, buffer: &Buffer, packed: bool) {
    for (piece, bytes) in buffer.pieces.iter().enumerate() {
        let (at, place) = (table + (u64::from(first) + piece as u64) * 16, place(number, piece));
        let last = piece + 1 == buffer.pieces.len();
        let flags = 2 | if last { 0 } else { NEXT };
        let word = if packed {
            descriptor(place, *bytes, number as u16, flags | THERE)
        } else {
            descriptor(place, *bytes, flags, if last { 0 } else { first + piece as u16 + 1 })
        };
        rogue.write(at, word);
    }
}

/// Offers the buffers, the first of a packed ring last, and waits until the device has used all.
fn offer(rogue: &Rogue, buffers: &[&Buffer], packed: bool) {
    let mut slot = 0u16;
    let mut first = None;
    for (number, buffer) in buffers.iter().enumerate() {
        let head = slot;
        if buffer.indirect {
            let (table, bytes) = (TABLES + number as u64 * STRIDE, buffer.pieces.len() as u32 * 16);
            fill_table(rogue, table, 0, number, buffer, packed);
            let word = if packed {
                descriptor(table, bytes, number as u16, TABLE | THERE)
            } else {
                descriptor(table, bytes, TABLE, 0)
            };
            rogue.write(u64::from(head) * 16, word);
            slot += 1;
        } else {
            fill_table(rogue, 0, head, number, buffer, packed);
            slot += buffer.pieces.len() as u16;
        }
        if !packed {
            rogue.write(AVAILABLE + 4 + number as u64 * 2, head.to_ne_bytes());
        } else if first.is_none() {
            // Not there yet.
            let word: [u8; 16] = rogue.read(0);
            rogue.write(14, [0; 2]);
            first = Some([word[14], word[15]]);
        }
    }
    match first {
        Some(flags) => rogue.write(14, flags),
        None => rogue.write(AVAILABLE + 2, (buffers.len() as u16).to_ne_bytes()),
    }
}

/// The content of a buffer.
fn content(rogue: &Rogue, number: usize, buffer: &Buffer) -> Vec<u8> {
    let pieces = buffer.pieces.iter().enumerate();
    let bytes = pieces.flat_map(|(piece, bytes)| {
        (0..u64::from(*bytes)).map(move |offset| rogue.read::<1>(place(number, piece) + offset)[0])
    });
    bytes.collect()
}

/// Whether the device has used so many buffers, which begin at these slots.
fn given_back(rogue: &Rogue, buffers: &[&Buffer], packed: bool) -> bool {
    if !packed {
        return u16::from_ne_bytes(rogue.read(USED + 2)) == buffers.len() as u16;
    }
    let slots = buffers.iter().map(|buffer| if buffer.indirect { 1 } else { buffer.pieces.len() });
    let last: usize = slots.take(buffers.len() - 1).sum();
    u16::from_ne_bytes(rogue.read(last as u64 * 16 + 14)) & 0x8080 == 0
}

/// The number and length of the `n`th used buffer, whose first slot is `slot`.
fn given(rogue: &Rogue, n: usize, slot: usize, packed: bool) -> (u32, u32) {
    let at = if packed { slot as u64 * 16 + 8 } else { USED + 4 + n as u64 * 8 };
    let word: [u8; 8] = rogue.read(at);
    let (low, high) = (&word[..4], &word[4..]);
    let number = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().unwrap());
    if packed { (number(high) & 0xffff, number(low)) } else { (number(low), number(high)) }
}

fn packets_come_whole(rig: &mut Rig, path: &Path, features: u64) {
    let packed = features & PACKED != 0;
    let mergeable = features & MERGEABLE != 0;
    let rogue = Rogue::connect(path, features);
    let mut buffers: Vec<&Buffer> = SHAPES.iter().collect();
    if mergeable {
        buffers.splice(3..3, SMALL.iter());
    }
    offer(&rogue, &buffers, packed);
    let done = rig.until(Duration::from_secs(30), |_| given_back(&rogue, &buffers, packed));
    assert!(done, "{}", rig.story());

    let mut packet = Vec::new();
    let mut frames = Vec::new();
    let mut slot = 0;
    for (number, buffer) in buffers.iter().enumerate() {
        let (id, bytes) = given(&rogue, number, slot, packed);
        // Split rings name a buffer by its first slot.
        assert_eq!(id as usize, if packed { number } else { slot });
        packet.extend(&content(&rogue, number, buffer)[..bytes as usize]);
        slot += if buffer.indirect { 1 } else { buffer.pieces.len() };
        if packet.len() >= HEADER + FRAME {
            frames.push(std::mem::take(&mut packet));
        }
    }
    assert!(packet.is_empty());
    assert_eq!(frames.len(), SHAPES.len() + usize::from(mergeable));
    for (number, frame) in frames.iter().enumerate() {
        let buffers = if mergeable && number == 3 { 4 } else { 1 };
        assert_eq!(frame[..HEADER], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, buffers, 0], "{number}");
        assert_eq!(frame.len(), HEADER + FRAME);
        let frame = &frame[HEADER..];
        let headers = parse(frame).unwrap();
        checksum::verify(frame, &headers).unwrap();
    }
}

/// Without mergeable buffers, and with them.
fn in_rings(name: &str, features: u64) {
    for (kind, merged) in [("whole", 0), ("merged", MERGEABLE)] {
        let features = VERSION_1 | INDIRECT | features | merged;
        with_rig(&format!("{name}-{kind}"), VhostDma::Off, |rig, path| {
            packets_come_whole(rig, path, features);
        });
    }
}

#[test]
fn in_split_rings() {
    in_rings("split", 0);
}

#[test]
fn in_packed_rings() {
    in_rings("packed", PACKED);
}
