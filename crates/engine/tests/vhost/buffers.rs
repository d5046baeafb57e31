// SPDX-License-Identifier: Apache-2.0
//! Buffers of every shape that virtio allows (virtio 1.2, sections 2.7 and 2.8), and how a guest offers them.

use crate::support::hostile_guest::{AVAILABLE, HostileGuest, USED, descriptor};

/// Bytes of a virtio-net header (virtio 1.2, section 5.1.6).
pub const HEADER: usize = 12;

/// Where buffers are, behind the rings, and how far apart they and their pieces are.
const BUFFERS: u64 = 0x4_0000;
const STRIDE: u64 = 0x1_4000;
const APART: u64 = 0x1000;
/// Where tables of indirect descriptors are, and how far apart.
const TABLES: u64 = 0x3_0000;
const TABLE_STRIDE: u64 = 0x200;
const NEXT: u16 = 1;
/// The device writes to the buffer.
pub const WRITE: u16 = 2;
const TABLE: u16 = 4;
/// Of packed rings: the flags of an available descriptor while the driver's wrap counter is 0.
const THERE: u16 = 1 << 15;

/// A buffer: the lengths of its descriptors, and whether they are in an indirect table.
#[derive(Clone)]
pub struct Buffer {
    pub pieces: Vec<usize>,
    pub indirect: bool,
}

impl Buffer {
    pub fn direct(pieces: &[usize]) -> Self {
        Self { pieces: pieces.to_vec(), indirect: false }
    }

    pub fn indirect(pieces: &[usize]) -> Self {
        Self { pieces: pieces.to_vec(), indirect: true }
    }

    /// Descriptors of the ring that it takes.
    pub fn slots(&self) -> usize {
        if self.indirect { 1 } else { self.pieces.len() }
    }
}

/// The address of a piece of a buffer.
pub fn place(buffer: usize, piece: usize) -> u64 {
    BUFFERS + buffer as u64 * STRIDE + piece as u64 * APART
}

/// A ring of a guest.
pub struct Ring<'a> {
    pub hostile: &'a HostileGuest,
    /// Its address.
    pub at: u64,
    pub packed: bool,
    /// Flags of all descriptors of buffers.
    pub flags: u16,
    /// Bytes by which all pieces are behind their usual place.
    pub shift: u64,
}

/// Buffers that are described, and not offered yet.
pub struct Prepared {
    /// Their first descriptors.
    pub heads: Vec<u16>,
    /// The write that offers them: its place, and what it writes.
    pub last: (u64, [u8; 2]),
}

impl Ring<'_> {
    /// Writes a buffer's descriptors, from number `first` of the table at an address on.
    fn write_table(&self, table: u64, first: u16, number: usize, buffer: &Buffer) {
        for (piece, length) in buffer.pieces.iter().enumerate() {
            let (place, length) = (place(number, piece) + self.shift, *length as u32);
            let last = piece + 1 == buffer.pieces.len();
            let flags = self.flags | if last { 0 } else { NEXT };
            let word = if self.packed {
                descriptor(place, length, number as u16, flags | THERE)
            } else {
                descriptor(place, length, flags, if last { 0 } else { first + piece as u16 + 1 })
            };
            self.hostile.write(table + (u64::from(first) + piece as u64) * 16, word);
        }
    }

    /// Writes a buffer's descriptors, those in the ring from number `head` on.
    fn describe(&self, head: u16, number: usize, buffer: &Buffer) {
        if !buffer.indirect {
            return self.write_table(self.at, head, number, buffer);
        }
        let (table, bytes) = (TABLES + number as u64 * TABLE_STRIDE, buffer.pieces.len() as u32 * 16);
        self.write_table(table, 0, number, buffer);
        let word = if self.packed {
            descriptor(table, bytes, number as u16, TABLE | THERE)
        } else {
            descriptor(table, bytes, TABLE, 0)
        };
        self.hostile.write(self.at + u64::from(head) * 16, word);
    }

    /// Offers the buffers. Returns their first descriptors.
    pub fn offer(&self, buffers: &[Buffer]) -> Vec<u16> {
        let Prepared { heads, last: (at, bytes) } = self.prepare(buffers);
        self.hostile.write(at, bytes);
        heads
    }

    /// Describes the buffers, the first of a packed ring last.
    pub fn prepare(&self, buffers: &[Buffer]) -> Prepared {
        let (mut heads, mut slot) = (Vec::new(), 0);
        let mut first = None;
        for (number, buffer) in buffers.iter().enumerate() {
            self.describe(slot, number, buffer);
            if !self.packed {
                self.hostile.write(self.at + AVAILABLE + 4 + number as u64 * 2, slot.to_ne_bytes());
            } else if first.is_none() {
                // Not there yet.
                first = Some(self.hostile.read::<2>(self.at + 14));
                self.hostile.write(self.at + 14, [0; 2]);
            }
            heads.push(slot);
            slot += buffer.slots() as u16;
        }
        let index = (self.at + AVAILABLE + 2, (buffers.len() as u16).to_ne_bytes());
        Prepared { heads, last: first.map_or(index, |flags| (self.at + 14, flags)) }
    }

    /// Whether the device has used the buffers with these first descriptors.
    pub fn is_used(&self, heads: &[u16]) -> bool {
        if self.packed {
            let last = u64::from(*heads.last().unwrap());
            u16::from_ne_bytes(self.hostile.read(self.at + last * 16 + 14)) & 0x8080 == 0
        } else {
            u16::from_ne_bytes(self.hostile.read(self.at + USED + 2)) == heads.len() as u16
        }
    }
}
