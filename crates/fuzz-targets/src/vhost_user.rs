//! A guest's front-end on its vhost-user socket: messages of any kind in any order, with any descriptors.

use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use netvm_vhost_user::End;
use netvm_vhost_user::memory::GuestMemory;
use netvm_vhost_user::message::Message;
use netvm_vhost_user::peer::{bytes, payload, send};
use netvm_vhost_user::protocol::{Addresses, PACKED, Protocol, RINGS};
use netvm_vhost_user::request::{
    GET_VRING_BASE, SET_FEATURES, SET_MEM_TABLE, SET_VRING_ADDR, SET_VRING_BASE, SET_VRING_KICK,
    SET_VRING_NUM,
};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::input::Input;

/// Guest memory: its address in the front-end, and its size, which is less than the longest ring.
const START: u64 = 0x7f00_0000_0000;
const BYTES: u64 = 1 << 17;
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
            1 => match input.u8() % 3 {
                0 => bytes(SET_FEATURES, 1, &payload(&[input.u64()])),
                1 => bytes(SET_MEM_TABLE, 1, &payload(&[1, 1 << 32, BYTES, START, 0])),
                _ => {
                    // Within the memory, or as far behind it.
                    let at = [0; 3].map(|_| START + 16 * u64::from(input.u16() % (1 << 14)));
                    bytes(SET_VRING_ADDR, 1, &payload(&[u64::from(input.u8() % 4), at[0], at[1], at[2], 0]))
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
            0 if message_bytes[..4] == SET_MEM_TABLE.to_ne_bytes() => (0, 1),
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
        if request == SET_MEM_TABLE {
            let files = std::mem::take(&mut message.fds);
            self.memory = GuestMemory::map(&self.protocol.memory, files, false).ok_or(End::Closed)?;
        }
        self.started += usize::from(request == SET_VRING_KICK);
        for ring in (0..RINGS).map(|ring| self.protocol.known(ring)).filter(|ring| ring.started) {
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
