// SPDX-License-Identifier: Apache-2.0
//! A guest's front-end on its vhost-user socket: messages of any kind in any order, with any descriptors.

use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use netvm_vhost_user::End;
use netvm_vhost_user::memory::{GuestMemory, SharedPart};
use netvm_vhost_user::message::Message;
use netvm_vhost_user::peer::{bytes, payload, send};
use netvm_vhost_user::protocol::{Addresses, PACKED, Protocol, RINGS, SLOTS};
use netvm_vhost_user::request::{
    ADD_MEM_REG, GET_VRING_BASE, REM_MEM_REG, SET_FEATURES, SET_INFLIGHT_FD, SET_LOG_BASE, SET_MEM_TABLE,
    SET_PROTOCOL_FEATURES, SET_VRING_ADDR, SET_VRING_BASE, SET_VRING_KICK, SET_VRING_NUM,
};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::input::Input;

/// Guest memory: its address in the front-end, and its size, which is less than the longest ring.
const START: u64 = 0x7f00_0000_0000;
const BYTES: u64 = 1 << 17;
/// Its address in the guest: the log of its pages fits into its file.
const PHYSICAL: u64 = 1 << 30;
/// Requests with a file.
const SHARED: [u32; 4] = [SET_MEM_TABLE, ADD_MEM_REG, SET_LOG_BASE, SET_INFLIGHT_FD];
/// Requests that set up rings, of which one number follows the ring's.
const OF_RINGS: [u32; 4] = [SET_VRING_NUM, SET_VRING_BASE, SET_VRING_KICK, GET_VRING_BASE];

/// Messages of a front-end.
pub fn vhost_user(data: &[u8]) {
    vhost_user_rings(data);
}

/// The same; returns the number of rings that the messages have started.
pub fn vhost_user_rings(data: &[u8]) -> usize {
    let mut input = Input::new(data);
    let (guest, stream) = UnixStream::pair().expect("sockets");
    let mut back_end = BackEnd { protocol: Protocol::default(), memory: GuestMemory::default(), started: 0 };
    let fds = [memory(), eventfd(0, EventfdFlags::CLOEXEC).expect("eventfd")];
    let mut message = Message::new();
    while !input.is_empty() {
        let kind = input.u8();
        let message_bytes = match kind % 4 {
            0 => {
                let (request, flags, count) = (u32::from(input.u8() % 48), input.u8(), input.u8());
                bytes(request, u32::from(flags), input.bytes(count.into()))
            }
            1 => match input.u8() % 8 {
                0 => bytes(SET_FEATURES, 1, &payload(&[input.u64()])),
                1 => bytes(SET_MEM_TABLE, 1, &payload(&[1, PHYSICAL, BYTES, START, 0])),
                2 => bytes(SET_PROTOCOL_FEATURES, 1, &payload(&[u64::MAX >> (input.u8() % 2)])),
                3 | 4 => {
                    // Regions beside each other, in both orders.
                    let (request, at) = (input.u8(), BYTES * u64::from(input.u8() % 3));
                    let request = if request.is_multiple_of(2) { ADD_MEM_REG } else { REM_MEM_REG };
                    bytes(request, 1, &payload(&[0, PHYSICAL + at, BYTES, START + at, 0]))
                }
                5 => {
                    // About as long as is needed for the memory, and at a place in its file.
                    let (bytes_of_log, offset) = (u64::from(input.u16()) * 4, u64::from(input.u16()) * 4);
                    bytes(SET_LOG_BASE, 1, &payload(&[bytes_of_log, offset]))
                }
                6 => {
                    let (bytes_of_all, rings) = (u64::from(input.u16()), u64::from(input.u8()));
                    bytes(SET_INFLIGHT_FD, 1, &payload(&[bytes_of_all, 0, rings | 256 << 16]))
                }
                _ => {
                    // Within the memory, or as far behind it; logged or not.
                    let at = [0; 3].map(|_| START + 16 * u64::from(input.u16() % (1 << 14)));
                    let (ring, log) = (u64::from(input.u8()), u64::from(input.u16()) << 4);
                    let ring = (ring % 4) | ((ring >> 7) << 32);
                    bytes(SET_VRING_ADDR, 1, &payload(&[ring, at[0], at[1], at[2], PHYSICAL + log]))
                }
            },
            2 => {
                let request = OF_RINGS[usize::from(input.u8()) % OF_RINGS.len()];
                let (ring, number) = (u64::from(input.u8() % 4), u64::from(input.u16()));
                let number = match request {
                    SET_VRING_KICK => 0,
                    // Most sizes of split rings are powers of two.
                    SET_VRING_NUM if number.is_multiple_of(2) => 1 << (number / 2 % 17),
                    _ => number,
                };
                bytes(request, 1, &payload(&[ring | number << 32]))
            }
            // Half of a message, or something longer, and the end.
            _ => {
                let _ = send(&guest, input.rest(), &[]);
                break;
            }
        };
        // Most often the descriptors that the message should have.
        let (kind, count) = match kind >> 4 {
            0 if SHARED.iter().any(|request| message_bytes[..4] == request.to_ne_bytes()) => (0, 1),
            0 if message_bytes[..4] == SET_VRING_KICK.to_ne_bytes() => (1, 1),
            0 => (0, 0),
            other => (usize::from(other % 2), usize::from(other)),
        };
        let fds: Vec<BorrowedFd<'_>> = vec![fds[kind].as_fd(); count];
        if send(&guest, &message_bytes, &fds).is_err() || back_end.handle(&mut message, &stream).is_err() {
            return back_end.started;
        }
    }
    guest.shutdown(Shutdown::Write).expect("the socket");
    while back_end.handle(&mut message, &stream).is_ok() {}
    back_end.started
}

fn memory() -> OwnedFd {
    let memory = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memfd");
    ftruncate(&memory, BYTES).expect("size");
    memory
}

/// What is known of the front-end.
struct BackEnd {
    protocol: Protocol,
    memory: GuestMemory,
    started: usize,
}

impl BackEnd {
    /// Receives a message and applies it.
    fn handle(&mut self, message: &mut Message, from: &UnixStream) -> Result<(), End> {
        message.clear();
        message.receive(from)?;
        let request = message.request();
        self.protocol.check(request, message.payload(), &message.fds).map_err(End::Refused)?;
        let mut files = std::mem::take(&mut message.fds);
        let region = self.protocol.slot(message.payload());
        let mut one = || files.pop().ok_or(End::Closed);
        match request {
            SET_MEM_TABLE => {
                self.memory = GuestMemory::map(&self.protocol.memory, files, false).ok_or(End::Closed)?;
            }
            ADD_MEM_REG => {
                self.memory.add(&region.expect("a region"), one()?, false).ok_or(End::Closed)?;
            }
            REM_MEM_REG => drop(self.memory.remove(&region.expect("a region")).expect("the same regions")),
            SET_LOG_BASE => {
                let log = self.protocol.log.expect("a log");
                SharedPart::map(log, one()?).ok_or(End::Closed)?;
                // Also what is far behind the memory: it is the front-end's own.
                assert!(
                    self.protocol
                        .memory
                        .iter()
                        .all(|region| { (region.physical + region.bytes - 1) / 4096 < log.bytes * 8 })
                );
            }
            SET_INFLIGHT_FD => {
                let (part, rings) = self.protocol.inflight.expect("a part");
                assert!((1..=RINGS).contains(&u32::from(rings)));
                SharedPart::map(part, one()?).ok_or(End::Closed)?;
            }
            _ => {}
        }
        assert!(
            self.protocol.memory.len() <= SLOTS
                && self.memory.regions().count() == self.protocol.memory.len()
        );
        self.started += usize::from(request == SET_VRING_KICK);
        let in_memory = (0..RINGS).filter(|ring| self.protocol.is_in_memory(*ring));
        for ring in in_memory.map(|ring| self.protocol.known(ring)).filter(|ring| ring.started) {
            let (size, at) = (ring.size.expect("a size"), ring.addresses.expect("addresses"));
            self.check_ring(u64::from(size), at);
        }
        Ok(())
    }

    /// A started ring lies in the memory, each part in one mapping (virtio 1.2 sections 2.7 and 2.8).
    fn check_ring(&self, entries: u64, at: Addresses) {
        assert!((32..=32_768).contains(&entries));
        let is_packed = self.protocol.features & PACKED != 0;
        let (driver, device) = if is_packed { (4, 4) } else { (4 + 2 * entries, 4 + 8 * entries) };
        assert!(is_packed || entries.is_power_of_two());
        for (start, bytes) in [(at.descriptors, 16 * entries), (at.driver, driver), (at.device, device)] {
            let [first, last] = [start, start + (bytes - 1)].map(|address| {
                let mapped = self.memory.translate(address).expect("an address within the memory");
                mapped as u64
            });
            assert_eq!(last - first, bytes - 1, "a part of a ring is in two mappings");
        }
    }
}
