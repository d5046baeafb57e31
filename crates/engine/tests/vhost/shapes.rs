// SPDX-License-Identifier: Apache-2.0
//! Guests' buffers of every shape that virtio allows: packets arrive whole in all of them.

use std::path::Path;
use std::time::Duration;

use crate::buffers::{Buffer, HEADER, Ring, WRITE, place};
use crate::support::Rig;
use crate::support::hostile_guest::{HostileGuest, USED};
use crate::support::hostile_rig::{INDIRECT, MERGEABLE, PACKED, VERSION_1, with_rig};
use netvm_model::VhostDma;
use netvm_wire::{checksum, parse};

/// The frame of each packet.
const FRAME: usize = 60;

/// Each holds a packet; but with mergeable buffers, four of 20 bytes together hold one.
fn shapes(mergeable: bool) -> Vec<Buffer> {
    let (direct, indirect) = (Buffer::direct, Buffer::indirect);
    let mut shapes = vec![
        direct(&[2048]),
        direct(&[HEADER, FRAME]),
        direct(&[1, 1, 9, 1, 1, 58, 1]),
        direct(&[5, 2000]),
        indirect(&[2048]),
        indirect(&[3, 3, 3, 3, 3, 57]),
        direct(&[72]),
        indirect(&[72]),
        direct(&[4096]),
    ];
    if mergeable {
        shapes.splice(3..3, [direct(&[20]), indirect(&[13, 7]), direct(&[20]), direct(&[20])]);
    }
    shapes
}

/// The content of a buffer.
fn content(hostile: &HostileGuest, number: usize, buffer: &Buffer) -> Vec<u8> {
    let pieces = buffer.pieces.iter().enumerate();
    let bytes = pieces.flat_map(|(piece, bytes)| {
        (0..*bytes as u64).map(move |offset| hostile.read::<1>(place(number, piece) + offset)[0])
    });
    bytes.collect()
}

/// The number and length of the `n`th used buffer, whose first slot is `slot`.
fn given(hostile: &HostileGuest, n: usize, slot: usize, packed: bool) -> (u32, u32) {
    let at = if packed { slot as u64 * 16 + 8 } else { USED + 4 + n as u64 * 8 };
    let word: [u8; 8] = hostile.read(at);
    let (low, high) = (&word[..4], &word[4..]);
    let number = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().unwrap());
    if packed { (number(high) & 0xffff, number(low)) } else { (number(low), number(high)) }
}

fn packets_come_whole(rig: &mut Rig, path: &Path, features: u64) {
    let packed = features & PACKED != 0;
    let mergeable = features & MERGEABLE != 0;
    let hostile = HostileGuest::connect(path, features);
    let buffers = shapes(mergeable);
    let ring = Ring { hostile: &hostile, at: 0, packed, flags: WRITE, shift: 0 };
    let heads = ring.offer(&buffers);
    let done = rig.until(Duration::from_secs(30), |_| ring.is_used(&heads));
    assert!(done, "{}", rig.describe());

    let mut packet = Vec::new();
    let mut frames = Vec::new();
    for (number, buffer) in buffers.iter().enumerate() {
        let slot = usize::from(heads[number]);
        let (id, bytes) = given(&hostile, number, slot, packed);
        // Split rings name a buffer by its first slot.
        assert_eq!(id as usize, if packed { number } else { slot });
        packet.extend(&content(&hostile, number, buffer)[..bytes as usize]);
        if packet.len() >= HEADER + FRAME {
            frames.push(std::mem::take(&mut packet));
        }
    }
    assert!(packet.is_empty());
    assert_eq!(frames.len(), shapes(false).len() + usize::from(mergeable));
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
