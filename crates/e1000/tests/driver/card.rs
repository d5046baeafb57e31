// SPDX-License-Identifier: Apache-2.0
//! A driver of the card, with its rings in guest memory, and a wire behind it.

use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use netvm_e1000::{Doorbells, Model, NotTaken, Options, Pieces, Port, Queue, Request};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::client::{Client, words};

pub const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
/// Where guest memory begins, and its size.
pub const FIRST: u64 = 0x10_0000;
pub const BYTES: u64 = 1 << 20;
/// In guest memory: rings and buffers.
pub const TX_RING: u64 = 0;
pub const RX_RING: u64 = 0x1000;
pub const TX_BUFFERS: u64 = 0x2_0000;
pub const RX_BUFFERS: u64 = 0x8_0000;
/// Descriptors of a ring.
pub const COUNT: u32 = 32;

pub const ICR: u32 = 0xc0;
pub const IMS: u32 = 0xd0;
pub const IMC: u32 = 0xd8;
pub const RCTL: u32 = 0x100;
pub const TCTL: u32 = 0x400;
pub const RX: u32 = 0x2800;
pub const TX: u32 = 0x3800;
pub const HEAD: u32 = 0x10;
pub const TAIL: u32 = 0x18;

/// A file like QEMU's memory.
pub fn sealed(bytes: u64) -> std::fs::File {
    sealed_as("guest", bytes)
}

/// The same, with a name.
pub fn sealed_as(name: &str, bytes: u64) -> std::fs::File {
    let file: OwnedFd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, bytes).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    file.into()
}

/// What the card sent.
#[derive(Debug, PartialEq, Eq)]
pub struct Packet {
    pub bytes: Vec<u8>,
    pub tag: Option<[u8; 4]>,
    pub request: Request,
}

/// A driver, with its client and guest memory.
pub struct Driver {
    pub client: Client,
    pub memory: std::fs::File,
    /// Next descriptor of each ring.
    pub tx: u32,
    rx: u32,
}

/// A driver, and the card in this process.
pub struct Card {
    driver: Driver,
    pub port: Port,
    pub queue: Queue,
    pub path: std::path::PathBuf,
    _folder: tempfile::TempDir,
}

impl Deref for Card {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        &self.driver
    }
}

impl DerefMut for Card {
    fn deref_mut(&mut self) -> &mut Driver {
        &mut self.driver
    }
}

impl Card {
    /// A card whose driver has set its rings up: an 82540EM.
    pub fn new() -> Self {
        Self::of(Model::I82540)
    }

    /// The same for a client that posts doorbells, and all its writes.
    pub fn posted() -> Self {
        let mut card = Self::with(Model::I82540, Doorbells::Posted);
        card.client.posts = true;
        card
    }

    /// A card of a model.
    pub fn of(model: Model) -> Self {
        Self::with(model, Doorbells::Mapped)
    }

    fn with(model: Model, doorbells: Doorbells) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card.sock");
        let (port, queue) = Port::open(&Options { path: path.clone(), model, mac: MAC, doorbells }).unwrap();
        let driver = Driver::new(Client::connect(&path));
        Self { driver, port, queue, path, _folder: folder }
    }

    /// Another client takes the place of this one.
    pub fn reconnect(&mut self) {
        drop(std::mem::replace(&mut self.client.socket, std::os::unix::net::UnixStream::pair().unwrap().0));
        netvm_testing::until("the port has noticed that its client has gone", || {
            !self.port.status().is_connected
        });
        self.client = Client::connect(&self.path);
    }

    /// Takes up to `most` packets as the worker does; also returns how many were malformed.
    pub fn transmit(&mut self, most: usize) -> (Vec<Packet>, u64) {
        let mut packets = Vec::new();
        let mut turn = turn(&mut self.queue);
        let malformed = turn.transmit(most, |sent| {
            let mut bytes = vec![0; sent.length];
            // Pieces of uneven lengths.
            let (a, b) = bytes.split_at_mut(sent.length / 3);
            let pieces = [a, b].map(|piece| (piece.as_mut_ptr(), piece.len()));
            // SAFETY: both are parts of the vector.
            let is_whole = unsafe { sent.copy(pieces.into_iter()) };
            if is_whole {
                packets.push(Packet { bytes, tag: sent.tag, request: sent.request });
            }
            Some(is_whole)
        });
        (packets, malformed)
    }

    /// Gives the guest a packet, in pieces.
    pub fn put(&mut self, packet: &[u8]) -> Result<(), NotTaken> {
        let (a, b) = packet.split_at(packet.len().min(40));
        let pieces = [a, b].map(|piece| (piece.as_ptr(), piece.len()));
        // SAFETY: both are parts of the packet.
        unsafe { turn(&mut self.queue).receive().put(Pieces(&pieces)) }
    }
}

impl Driver {
    /// Sets the rings up.
    pub fn new(client: Client) -> Self {
        let mut driver = Self { client, memory: sealed(BYTES), tx: 0, rx: 0 };
        driver.start();
        driver
    }

    /// Maps memory and sets the rings up.
    pub fn start(&mut self) {
        self.client.map(FIRST, BYTES, &self.memory).unwrap();
        // Bus master, memory, I/O.
        self.client.write_region(7, 4, &[7, 0]);
        self.start_rings();
    }

    /// Sets the rings up.
    pub fn start_rings(&mut self) {
        for (ring, base) in [(TX, TX_RING), (RX, RX_RING)] {
            self.client.set(ring, (FIRST + base) as u32);
            self.client.set(ring + 8, COUNT * 16);
        }
        for n in 0..COUNT {
            self.write(
                RX_RING + u64::from(n) * 16,
                &(FIRST + RX_BUFFERS + u64::from(n) * 2048).to_le_bytes(),
            );
        }
        self.client.set(RX + TAIL, COUNT - 1);
        // Enabled; broadcasts.
        self.client.set(RCTL, 0x8002);
        self.client.set(TCTL, 2);
        (self.tx, self.rx) = (0, 0);
    }

    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at).unwrap();
    }

    pub fn read(&self, at: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.memory.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    /// Puts a descriptor into the transmit ring.
    pub fn describe(&mut self, first: u64, second: u64) {
        let at = TX_RING + u64::from(self.tx) * 16;
        self.write(at, &[first.to_le_bytes(), second.to_le_bytes()].concat());
        self.tx = (self.tx + 1) % COUNT;
    }

    /// Puts the parts of a packet into buffers and the ring, with `command` in all of their descriptors, `options` in
    /// the first, and the end of the packet in the last.
    pub fn send(&mut self, parts: &[&[u8]], command: u64, options: u64, special: u64) {
        for (n, part) in parts.iter().enumerate() {
            let buffer = TX_BUFFERS + u64::from(self.tx) * 4096;
            self.write(buffer, part);
            let end = u64::from(n + 1 == parts.len());
            let length = part.len() as u64;
            let kind = if command & 0x20 == 0 { 0 } else { 1 << 20 };
            let options = if n == 0 { options } else { 0 };
            self.describe(
                FIRST + buffer,
                length | kind | (command | end) << 24 | options << 40 | special << 48,
            );
        }
        self.client.set(TX + TAIL, self.tx);
    }

    /// The next received packet, with its VLAN tag; the buffer goes back to the card.
    pub fn received(&mut self) -> Option<(Vec<u8>, Option<u16>)> {
        let mut packet = Vec::new();
        loop {
            let at = RX_RING + u64::from(self.rx) * 16;
            let second = u64::from_le_bytes(self.read(at + 8, 8).try_into().unwrap());
            if second >> 32 & 1 == 0 {
                assert!(packet.is_empty(), "a packet without its end");
                return None;
            }
            packet.extend(self.read(RX_BUFFERS + u64::from(self.rx) * 2048, second as usize & 0xffff));
            self.write(at + 8, &[0; 8]);
            self.client.set(RX + TAIL, self.rx);
            self.rx = (self.rx + 1) % COUNT;
            if second >> 32 & 2 != 0 {
                return Some((packet, (second >> 32 & 8 != 0).then_some((second >> 48) as u16)));
            }
        }
    }

    /// Whether a transmit descriptor is done.
    pub fn is_done(&self, n: u32) -> bool {
        self.read(TX_RING + u64::from(n) * 16 + 12, 1)[0] & 1 == 1
    }
}

/// A turn: the port's thread may have the card for a moment.
pub fn turn(queue: &mut Queue) -> netvm_e1000::Turn<'_> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !queue.is_active() {
        assert!(Instant::now() < deadline, "the card is not active");
        std::thread::yield_now();
    }
    let queue: *mut Queue = queue;
    loop {
        // SAFETY: the borrow of an attempt that fails ends with it.
        if let Some(turn) = unsafe { &mut *queue }.turn() {
            return turn;
        }
        assert!(Instant::now() < deadline, "the card is in use");
        std::thread::yield_now();
    }
}

/// A packet of this length to an address, with content.
pub fn frame(to: [u8; 6], length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..length).map(|n| (n * 7 + n / 256) as u8).collect();
    bytes[..6].copy_from_slice(&to);
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes
}

/// Whether an eventfd was signalled since the last call.
pub fn is_signalled(eventfd: &OwnedFd) -> bool {
    rustix::io::read(eventfd, &mut [0; 8]).is_ok()
}

/// Bytes of a region's answer.
pub fn region_info(index: u32, room: u32) -> Vec<u8> {
    let mut body = words(&[room, 0, index, 0]);
    body.extend([0; 16]);
    body
}
