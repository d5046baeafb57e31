// SPDX-License-Identifier: Apache-2.0
//! The client of an e1000 card's socket and its guest: messages, registers, and rings in guest memory.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use netvm_e1000::{Card, MAX_PACKET, Model, Pieces, Queue, finish_headers};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::input::Input;

/// Guest memory: where it begins, and its size.
const FIRST: u64 = 0x10_0000;
const BYTES: u64 = 1 << 16;

/// Steps that a client and its guest take, and what the worker does in between.
pub fn e1000(data: &[u8]) {
    let mut input = Input::new(data);
    let memory = guest_memory();
    let model = if input.u8().is_multiple_of(2) { Model::I82540 } else { Model::I82574 };
    let (mut card, mut queue) = Card::new(model, [2, 0, 0, 0, 0, 1]).expect("a card");
    while !input.is_empty() {
        match input.u8() % 9 {
            0 => {
                let (command, flags, count) = (u16::from(input.u8() % 16), input.u32(), input.u8());
                let body = input.bytes(count.into());
                send(&mut card, Message { command, flags, body }, Some(&memory));
            }
            1 => handshake(&mut card, &memory),
            2 => {
                let (register, value) = (u32::from(input.u16()), input.u32());
                write(&mut card, 0, register, value);
            }
            // Ring registers.
            3 => {
                let ring = if input.u8().is_multiple_of(2) { 0x2800 } else { 0x3800 };
                let (register, value) = (u32::from(input.u8() % 0x30), u32::from(input.u16()));
                write(&mut card, 0, ring + register, value);
            }
            4 => write(&mut card, 0, [0x100, 0x400][usize::from(input.u8() % 2)], input.u32() | 2),
            5 => {
                let (at, count) = (u64::from(input.u16()), input.u8());
                memory.write_all_at(input.bytes(count.into()), at).expect("guest memory");
            }
            6 => transmit(&mut queue),
            // A communication status block somewhere, with anything in it; `guest_csb_on` is its fourth word.
            7 => {
                let (at, words) = (input.u16(), [0; 6].map(|_| u32::from(input.u8() % 64)));
                let block = words.map(u32::to_le_bytes).concat();
                memory.write_all_at(&block, at.into()).expect("guest memory");
                write(&mut card, 0, 0x2830, FIRST as u32 + u32::from(at));
            }
            _ => receive(&mut queue, input.u16()),
        }
    }
    transmit(&mut queue);
    receive(&mut queue, 60);
}

fn guest_memory() -> File {
    let file: OwnedFd =
        memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
    ftruncate(&file, 2 * BYTES).expect("size");
    fcntl_add_seals(&file, SealFlags::SHRINK).expect("seals");
    file.into()
}

/// A message of the client.
#[derive(Clone, Copy)]
struct Message<'a> {
    command: u16,
    flags: u32,
    body: &'a [u8],
}

/// Sends a message; its reply must be one.
fn send(card: &mut Card, message: Message<'_>, fd: Option<&File>) {
    let Message { command, flags, body } = message;
    let mut bytes = [[1, 0], command.to_ne_bytes()].concat();
    for word in [16 + body.len() as u32, flags, 0] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend(body);
    let fd = fd.map(|fd| OwnedFd::from(fd.try_clone().expect("descriptor")));
    if let Some(reply) = card.handle(&bytes, fd) {
        assert_eq!(reply[..4], bytes[..4], "another message's reply");
        assert_eq!(reply[4..8], (reply.len() as u32).to_ne_bytes());
        assert!(reply.len() <= 16 + 16 + 4096);
    }
}

fn write(card: &mut Card, region: u32, at: u32, value: u32) {
    let words = [at, 0, region, 4, value];
    let body = words.map(u32::to_ne_bytes).concat();
    send(card, Message { command: 10, flags: 0, body: &body }, None);
}

/// What every client does: agrees on the version, maps memory, makes the card a bus master, sets up the rings.
fn handshake(card: &mut Card, memory: &File) {
    send(card, Message { command: 1, flags: 0, body: b"\0\0\0\0{}\0" }, None);
    let mut body = [32u32, 3].map(u32::to_ne_bytes).concat();
    body.extend([0, FIRST, BYTES].map(u64::to_ne_bytes).concat());
    send(card, Message { command: 2, flags: 0, body: &body }, Some(memory));
    write(card, 7, 4, 7);
    for (ring, base) in [(0x2800, 0), (0x3800, 0x1000)] {
        write(card, 0, ring, FIRST as u32 + base);
        write(card, 0, ring + 8, 256);
        write(card, 0, ring + 0x18, 15);
    }
    write(card, 0, 0x100, 0x801a);
    write(card, 0, 0x400, 2);
}

fn transmit(queue: &mut Queue) {
    let Some(mut turn) = queue.turn() else { return };
    turn.transmit(32, |sent| {
        assert!((14..=MAX_PACKET).contains(&sent.length));
        let mut bytes = vec![0; sent.length];
        // SAFETY: the vector has as many bytes.
        let is_whole = unsafe { sent.copy(std::iter::once((bytes.as_mut_ptr(), sent.length))) };
        let front = bytes.len().min(256);
        if let Some(netvm_vnet::Pending::Checksum { from, at }) =
            finish_headers(&mut bytes[..front], sent.length, &sent.request)
        {
            assert!(from <= at && usize::from(at) + 2 <= sent.length);
        }
        Some(is_whole)
    });
}

fn receive(queue: &mut Queue, length: u16) {
    let Some(mut turn) = queue.turn() else { return };
    let bytes = vec![0xff; usize::from(length)];
    // SAFETY: the bytes of the vector.
    let _ = unsafe { turn.receive().put(Pieces(&[(bytes.as_ptr(), bytes.len())])) };
}
