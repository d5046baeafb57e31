// SPDX-License-Identifier: Apache-2.0
//! The peer of a memif: messages as a client and as a server, and all that it can write into shared memory.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use netvm_memif::{MAX_PACKET, MESSAGE_BYTES, Message, Options, Queue, Role, Session, Step};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::input::Input;

/// Bytes of a client's memory.
const BYTES: u64 = 1 << 15;
const COOKIE: u32 = 0x03e3_1f20;

/// One connection.
struct Peer {
    session: Session,
    queue: Option<Queue>,
    memory: File,
}

/// Steps that a peer takes, and what the worker does in between.
pub fn memif(data: &[u8]) {
    let mut input = Input::new(data);
    let role = if input.u8().is_multiple_of(2) { Role::Server } else { Role::Client };
    let options = Options {
        path: "/".into(),
        role,
        id: 1,
        secret: None,
        log2_ring_size: input.u8() % 5,
        buffer_size: 256,
        queues: 1,
        name: "port".to_owned(),
    };
    let alarm = Arc::new(event());
    let (session, _) = Session::new(&options, &alarm);
    let mut peer = Peer { session, queue: None, memory: client_memory() };
    while !input.is_empty() {
        let went_on = match input.u8() % 6 {
            0 => {
                let mut bytes = [0; MESSAGE_BYTES];
                let (kind, count) = (input.u8() % 10, input.u8());
                let fields = input.bytes(usize::from(count).min(MESSAGE_BYTES - 2));
                bytes[0] = kind;
                bytes[2..2 + fields.len()].copy_from_slice(fields);
                let fd = match input.u8() % 3 {
                    0 => None,
                    1 => Some(event()),
                    _ => Some(peer.memory.try_clone().expect("descriptor").into()),
                };
                peer.send(&bytes, fd)
            }
            1 => peer.handshake(role, input.u8() % 5),
            2 => {
                let (at, count) = (u64::from(input.u16()) % BYTES, input.u8());
                // A client's memory may be smaller.
                let _ = peer.memory.write_all_at(input.bytes(count.into()), at);
                true
            }
            // A ring's head or tail.
            3 => {
                let (place, value) = (input.u8(), input.u8());
                let ring = if place & 1 == 0 { 0 } else { 128 + (16 << options.log2_ring_size) };
                let at = ring + if place & 2 == 0 { 6 } else { 64 };
                let _ = peer.memory.write_all_at(&u16::from(value).to_ne_bytes(), at);
                true
            }
            4 => {
                peer.receive();
                true
            }
            _ => {
                peer.transmit(usize::from(input.u16() % 4096));
                true
            }
        };
        if !went_on {
            break;
        }
    }
    peer.receive();
    peer.transmit(60);
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("eventfd")
}

/// Memory of a client, with two rings at its beginning.
fn client_memory() -> File {
    let file: OwnedFd = memfd_create("peer", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
    ftruncate(&file, 2 * BYTES).expect("size");
    fcntl_add_seals(&file, SealFlags::SHRINK).expect("seals");
    file.into()
}

/// A message of a type with these fields.
fn message(kind: u8, fields: &[&[u8]]) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [0; MESSAGE_BYTES];
    bytes[0] = kind;
    let fields = fields.concat();
    bytes[2..2 + fields.len()].copy_from_slice(&fields);
    bytes
}

impl Peer {
    /// Sends a message. Whether the connection goes on.
    fn send(&mut self, bytes: &[u8; MESSAGE_BYTES], fd: Option<OwnedFd>) -> bool {
        let Some(message) = Message::parse(bytes) else { return true };
        // A name without an end is cut.
        let cut = Message::parse(&message.bytes()).expect("a message");
        assert_eq!(Message::parse(&cut.bytes()), Some(cut));
        let Ok(Step { link, answer }) = self.session.handle(message, fd) else { return false };
        if let Some((Message::AddRegion { bytes, .. }, Some(file))) = answer {
            self.memory = File::from(file);
            assert!(self.memory.metadata().expect("metadata").len() >= bytes);
        }
        if let Some(link) = link {
            assert!(self.queue.is_none(), "connected twice");
            self.queue = Some(Queue::of(link).expect("descriptors"));
        }
        true
    }

    /// What every peer does: agrees on the version, passes or takes memory and rings.
    fn handshake(&mut self, role: Role, log2_ring_size: u8) -> bool {
        let version = 0x200u16.to_ne_bytes();
        if role == Role::Client {
            let hello = message(2, &[&[0; 32], &version, &version, &[9, 0, 0, 0, 0, 0, log2_ring_size]]);
            let ack = message(1, &[]);
            let mut went_on = self.send(&hello, None);
            for _ in 0..4 {
                went_on = went_on && self.send(&ack, None);
            }
            return went_on && self.send(&message(7, &[]), None);
        }
        let file = || Some(OwnedFd::from(self.memory.try_clone().expect("descriptor")));
        let mut messages = vec![
            (message(3, &[&version, &1u32.to_ne_bytes()]), None),
            (message(4, &[&[0, 0], &BYTES.to_ne_bytes()]), file()),
        ];
        for (n, flags) in [(0, 1u8), (1, 0)] {
            let offset = n * (128 + (16u32 << log2_ring_size));
            self.memory.write_all_at(&COOKIE.to_ne_bytes(), offset.into()).expect("memory");
            let place = offset.to_ne_bytes();
            messages.push((message(5, &[&[flags, 0, 0, 0, 0, 0], &place, &[log2_ring_size]]), Some(event())));
        }
        messages.push((message(6, &[]), None));
        messages.into_iter().all(|(bytes, fd)| self.send(&bytes, fd))
    }

    fn receive(&mut self) {
        let Some(queue) = &mut self.queue else { return };
        queue.receive(32, |received| {
            assert!((14..=MAX_PACKET).contains(&received.length));
            let mut bytes = vec![0; received.length];
            // SAFETY: the vector has as many bytes.
            let is_whole = unsafe { received.copy(std::iter::once((bytes.as_mut_ptr(), received.length))) };
            Some(is_whole)
        });
        queue.begin_wait();
    }

    fn transmit(&mut self, length: usize) {
        let Some(queue) = &mut self.queue else { return };
        let bytes = vec![0xff; length];
        let Some(mut sending) = queue.send() else { return };
        let (front, back) = bytes.split_at(length / 3);
        // SAFETY: both parts of the vector.
        let _ = unsafe { sending.put(&[front, back].map(|part| (part.as_ptr(), part.len()))) };
    }
}
