// SPDX-License-Identifier: Apache-2.0
//! A guest that speaks enough vhost-user to connect, and then writes anything into its rings.
//!
//! Messages are those of QEMU's `docs/interop/vhost-user.rst`, rings those of virtio 1.2 section 2.7.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use netvm_vhost_user::message::Message;
use netvm_vhost_user::peer::{bytes, payload, send};
use netvm_vhost_user::request::{
    GET_FEATURES, GET_VRING_BASE, SET_FEATURES, SET_LOG_BASE, SET_MEM_TABLE, SET_OWNER, SET_VRING_ADDR,
    SET_VRING_BASE, SET_VRING_CALL, SET_VRING_ENABLE, SET_VRING_KICK, SET_VRING_NUM,
};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

pub mod random;

/// Version 1, and the same for a message that asks for an answer.
const VERSION: u32 = 1;
const NEED_REPLY: u32 = 1 | 1 << 3;

pub const MEMORY: usize = 4 << 20;
/// An address before the guest's memory where nothing is mapped; the other side maps below it.
const GUARD: usize = 4 << 20;
/// The address of its memory in its own address space, as the guest gives it.
pub const USER: u64 = 0x10_0000_0000;
pub const ENTRIES: u32 = 256;
/// Where the buffers of the first ring begin, and bytes to those of the next.
pub const BUFFERS: u64 = 0x10_0000;
/// Bytes between the rings of two queues; each has descriptors, then the available ring, then the used one.
const RING: u64 = 0x1_0000;
pub const AVAILABLE: u64 = 0x4000;
pub const USED: u64 = 0x8000;

/// A hostile guest and its memory.
pub struct HostileGuest {
    socket: UnixStream,
    memory: *mut u8,
    kick: OwnedFd,
    memfd: OwnedFd,
}

impl HostileGuest {
    /// One region, which is not where the guest's memory was.
    const ELSEWHERE: [u64; 5] = [1, 1 << 30, MEMORY as u64, USER, 0];

    /// Connects and negotiates virtio features of its choice.
    pub fn connect(path: &Path, features: u64) -> Self {
        let hostile = Self::reach(path);
        hostile.begin(features);
        (0..2).for_each(|ring| hostile.start(ring));
        hostile
    }

    /// Connects, and sends nothing yet.
    pub fn reach(path: &Path) -> Self {
        let memfd = memfd_create("hostile", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memfd, MEMORY as u64).unwrap();
        // SAFETY: new mappings: one at an address of the kernel's choice, the other in the upper part of it.
        let memory = unsafe {
            let none = MapFlags::PRIVATE | MapFlags::NORESERVE;
            let guard =
                mmap_anonymous(std::ptr::null_mut(), GUARD + MEMORY, ProtFlags::empty(), none).unwrap();
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap(guard.add(GUARD), MEMORY, protection, MapFlags::SHARED | MapFlags::FIXED, &memfd, 0).unwrap()
        };
        let kick = netvm_notify::new_eventfd().unwrap();
        let socket = UnixStream::connect(path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Self { socket, memory: memory.cast(), kick, memfd }
    }

    /// Connects again with the same memory, as after the other side was killed.
    pub fn reach_again(&mut self, path: &Path) {
        self.socket = UnixStream::connect(path).unwrap();
        self.socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    }

    /// The payload and the descriptor of the answer to a message.
    pub fn answer(&self, request: u32, words: &[u64]) -> (Vec<u8>, Option<OwnedFd>) {
        self.send(request, words, None);
        let mut answer = Message::new();
        answer.receive(&self.socket).unwrap();
        (answer.payload().to_vec(), answer.fds.pop())
    }

    /// Sends the messages that come before the rings.
    pub fn begin(&self, features: u64) {
        self.send(SET_OWNER, &[], None);
        self.features(features);
        self.memory(MEMORY as u64);
    }

    pub fn features(&self, features: u64) {
        self.send(SET_FEATURES, &[features], None);
    }

    /// Shares so many bytes.
    pub fn memory(&self, bytes: u64) {
        self.send(SET_MEM_TABLE, &[1, 0, bytes, USER, 0], Some(self.memfd.as_fd()));
    }

    /// Starts a ring of 256 entries at its usual place.
    pub fn start(&self, ring: u64) {
        self.size(ring, ENTRIES);
        self.base(ring, 0);
        let at = ring * RING;
        self.start_at(ring, at, at + AVAILABLE, at + USED);
    }

    /// Starts a ring whose parts are there; its size and base stay.
    pub fn start_at(&self, ring: u64, descriptors: u64, available: u64, used: u64) {
        self.place(ring, descriptors, available, used);
        self.call(ring);
        self.run(ring);
    }

    pub fn size(&self, ring: u64, entries: u32) {
        self.send(SET_VRING_NUM, &[ring | u64::from(entries) << 32], None);
    }

    pub fn base(&self, ring: u64, base: u32) {
        self.send(SET_VRING_BASE, &[ring | u64::from(base) << 32], None);
    }

    /// Sends the addresses of a ring's parts in its memory.
    pub fn place(&self, ring: u64, descriptors: u64, available: u64, used: u64) {
        let [descriptors, available, used] = [descriptors, available, used].map(|at| USER.wrapping_add(at));
        self.send(SET_VRING_ADDR, &[ring, descriptors, used, available, 0], None);
    }

    pub fn call(&self, ring: u64) {
        self.send(SET_VRING_CALL, &[ring], Some(self.kick.as_fd()));
    }

    /// Starts a ring.
    pub fn run(&self, ring: u64) {
        self.send(SET_VRING_KICK, &[ring], Some(self.kick.as_fd()));
    }

    pub fn enable(&self, ring: u64) {
        self.send(SET_VRING_ENABLE, &[ring | 1 << 32], None);
    }

    /// Stops a ring.
    pub fn stop(&self, ring: u64) {
        self.send(GET_VRING_BASE, &[ring], None);
    }

    /// Whether the other side hangs up before long.
    pub fn is_disconnected(&mut self) -> bool {
        let mut answers = [0; 512];
        loop {
            match self.socket.read(&mut answers) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == ErrorKind::ConnectionReset,
            }
        }
    }

    /// Waits until the other side has handled all messages.
    pub fn wait_until_handled(&self) {
        self.send(GET_FEATURES, &[], None);
        let _ = (&self.socket).read(&mut [0; 20]);
    }

    /// A message; the other side may have hung up.
    pub fn send(&self, request: u32, words: &[u64], fd: Option<BorrowedFd<'_>>) {
        self.send_flagged(request, VERSION, words, fd);
    }

    /// The same, and asks for an answer.
    pub fn ask(&self, request: u32, words: &[u64], fd: Option<BorrowedFd<'_>>) {
        self.send_flagged(request, NEED_REPLY, words, fd);
    }

    fn send_flagged(&self, request: u32, flags: u32, words: &[u64], fd: Option<BorrowedFd<'_>>) {
        let message = bytes(request, flags, &payload(words));
        let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
        let _ = send(&self.socket, &message, &fds);
    }

    /// Asks for an answer to a message again and again, and reads none, until the other side hangs up.
    pub fn ask_and_read_nothing(&mut self, request: u32, word: u64) {
        let message = bytes(request, NEED_REPLY, &payload(&[word]));
        self.socket.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        while self.socket.write_all(&message).is_ok() {}
    }

    /// Sends only the beginning of a message.
    pub fn begin_to_speak(&mut self) {
        let message = bytes(SET_FEATURES, VERSION, &payload(&[0]));
        self.socket.write_all(&message[..message.len() - 8]).unwrap();
    }

    /// Takes back memory that it shares: the other side must not write to it from here on.
    pub fn shrink(&self, bytes: u64) {
        ftruncate(&self.memfd, bytes).unwrap();
    }

    /// Announces memory at an address where there is none.
    pub fn move_to_nothing(&self) {
        self.shrink(0);
        self.replace_by(self.memfd.as_fd());
    }

    /// Announces memory in a file that cannot be mapped.
    pub fn replace_by_unmappable(&self) {
        self.send(SET_MEM_TABLE, &Self::ELSEWHERE, Some(unmappable().as_fd()));
    }

    /// The same, and asks for an answer.
    pub fn ask_for_unmappable(&self) {
        self.ask(SET_MEM_TABLE, &Self::ELSEWHERE, Some(unmappable().as_fd()));
    }

    /// Announces memory in such a file.
    pub fn replace_by(&self, file: BorrowedFd<'_>) {
        self.send(SET_MEM_TABLE, &Self::ELSEWHERE, Some(file));
    }

    /// A message with its memory.
    pub fn share(&self, request: u32, words: &[u64]) {
        self.send(request, words, Some(self.memfd.as_fd()));
    }

    pub fn write<const N: usize>(&self, at: u64, bytes: [u8; N]) {
        let at = (at as usize).min(MEMORY - N);
        // SAFETY: within the mapping, which others map as well: nothing else refers to it here.
        unsafe { self.memory.add(at).cast::<[u8; N]>().write_volatile(bytes) };
    }

    pub fn read<const N: usize>(&self, at: u64) -> [u8; N] {
        let at = (at as usize).min(MEMORY - N);
        // SAFETY: within the mapping; others write there.
        unsafe { self.memory.add(at).cast::<[u8; N]>().read_volatile() }
    }

    /// Gives a file for the dirty log, and waits until it is taken.
    pub fn log(&self, file: BorrowedFd<'_>, bytes: u64, offset: u64) -> bool {
        self.send(SET_LOG_BASE, &[bytes, offset], Some(file));
        let mut answer = [0; 12];
        // Without a payload.
        (&self.socket).read_exact(&mut answer).is_ok() && answer[8..] == [0; 4]
    }

    /// Gives the addresses of a ring at its usual place anew, with that of its used ring for the log.
    pub fn log_ring(&self, ring: u64, is_logged: bool) {
        let at = ring * RING;
        let [descriptors, available, used] = [at, at + AVAILABLE, at + USED].map(|at| USER + at);
        let words = [ring | u64::from(is_logged) << 32, descriptors, used, available, at + USED];
        self.send(SET_VRING_ADDR, &words, None);
    }

    /// Stops a ring and returns where it is, once nothing more is written for it.
    pub fn stop_at(&self, ring: u64) -> u32 {
        self.stop(ring);
        let mut answer = [0; 20];
        (&self.socket).read_exact(&mut answer).unwrap();
        u32::from_ne_bytes(answer[16..].try_into().unwrap())
    }

    /// All of its memory as it is now.
    pub fn snapshot(&self) -> Vec<u8> {
        (0..MEMORY as u64).step_by(4096).flat_map(|at| self.read::<4096>(at)).collect()
    }

    /// Offers a ring full of buffers, for the `turn`th time from 1 on: empty ones, or frames to all in its transmit
    /// ring. Asks for a notification once they are used.
    pub fn offer(&self, ring: u64, turn: u16) {
        const BYTES: u64 = 2048;
        let at = ring * RING;
        for n in 0..u64::from(ENTRIES) {
            let buffer = BUFFERS * (1 + ring) + n * BYTES;
            let (length, flags) = if ring == 0 { (BYTES as u32, 2) } else { (72, 0) };
            if ring != 0 {
                // Behind the virtio-net header.
                self.write(buffer + 12, [0xff; 6]);
            }
            self.write(at + n * 16, descriptor(buffer, length, flags, 0));
            self.write(at + AVAILABLE + 4 + n * 2, (n as u16).to_ne_bytes());
        }
        self.write(at + AVAILABLE, [0; 2]);
        self.write(at + AVAILABLE + 2, (turn * ENTRIES as u16).to_ne_bytes());
    }

    /// Where the buffers of a ring are mapped, and their bytes.
    pub fn buffers(&self, ring: u64) -> (*mut u8, usize) {
        // SAFETY: within the mapping.
        (unsafe { self.memory.add((BUFFERS * (1 + ring)) as usize) }, BUFFERS as usize)
    }

    /// Takes pages out of its memory, without a sign to other processes.
    pub fn punch(&self, at: u64, bytes: u64) {
        fallocate(&self.memfd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, bytes).unwrap();
    }

    /// Announces them.
    pub fn kick(&self) {
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).unwrap();
    }

    /// How many buffers of a ring have been used.
    pub fn used(&self, ring: u64) -> u16 {
        // SAFETY: within the mapping, and aligned; others write there.
        unsafe { self.memory.add((ring * RING + USED + 2) as usize).cast::<u16>().read_volatile() }
    }

    /// The other side has hung up.
    pub fn is_alone(&mut self) -> bool {
        self.socket.set_nonblocking(true).unwrap();
        !matches!(self.socket.read(&mut [0; 512]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    }
}

/// A descriptor, with the two fields behind the length in the order of its layout.
pub fn descriptor(address: u64, bytes: u32, third: u16, fourth: u16) -> [u8; 16] {
    let mut descriptor = [0; 16];
    descriptor[..8].copy_from_slice(&address.to_ne_bytes());
    descriptor[8..12].copy_from_slice(&bytes.to_ne_bytes());
    descriptor[12..14].copy_from_slice(&third.to_ne_bytes());
    descriptor[14..].copy_from_slice(&fourth.to_ne_bytes());
    descriptor
}

/// Memory that the other side cannot write to, although it must.
fn unmappable() -> OwnedFd {
    let file = memfd_create("sealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, MEMORY as u64).unwrap();
    fcntl_add_seals(&file, SealFlags::WRITE).unwrap();
    file
}

impl Drop for HostileGuest {
    fn drop(&mut self) {
        let _ = self.socket.flush();
        // SAFETY: made by `connect`, and not used afterwards.
        unsafe { munmap(self.memory.sub(GUARD).cast(), GUARD + MEMORY).unwrap() };
    }
}
