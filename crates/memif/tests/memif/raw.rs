// SPDX-License-Identifier: Apache-2.0
//! A peer that sends any bytes. Its messages are written here a second time, as `memif.h` has them.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg,
    socket_with,
};

pub const HELLO: u16 = 2;
pub const ACK: u16 = 1;
pub const DISCONNECT: u16 = 8;
/// Bytes of a ring with eight descriptors, and of a buffer.
pub const RING: u64 = 128 + 8 * 16;
pub const BUFFER: u64 = 2048;
/// Where buffers begin.
pub const BUFFERS: u64 = 4096;

/// A message: a type, then fields.
pub fn message(kind: u16, fields: &[&[u8]]) -> Vec<u8> {
    let mut bytes = [&kind.to_ne_bytes()[..], &fields.concat()].concat();
    bytes.resize(128, 0);
    bytes
}

pub fn init(version: u16, id: u32, mode: u8) -> Vec<u8> {
    message(3, &[&version.to_ne_bytes(), &id.to_ne_bytes(), &[mode]])
}

pub fn add_region(index: u16, bytes: u64) -> Vec<u8> {
    message(4, &[&index.to_ne_bytes(), &bytes.to_ne_bytes()])
}

/// A ring to the server: its number, and where it is.
pub fn add_ring(index: u16, offset: u32, log2_size: u8) -> Vec<u8> {
    ring_message(1, index, offset, log2_size)
}

/// The same, with any flags; 0: to the client.
pub fn ring_message(flags: u16, index: u16, offset: u32, log2_size: u8) -> Vec<u8> {
    let fields = [flags, index, 0].map(u16::to_ne_bytes).concat();
    message(5, &[&fields, &offset.to_ne_bytes(), &[log2_size]])
}

pub fn connect_message() -> Vec<u8> {
    message(6, &[b"raw"])
}

/// A descriptor: flags, region, length, offset.
pub fn descriptor(flags: u16, region: u16, length: u32, offset: u32) -> Vec<u8> {
    let mut bytes = [flags, region].map(u16::to_ne_bytes).concat();
    bytes.extend([length, offset, 0].map(u32::to_ne_bytes).concat());
    bytes
}

pub fn eventfd() -> OwnedFd {
    netvm_notify::new_eventfd().unwrap()
}

/// A memfd of this size, sealed or not.
pub fn memory(bytes: u64, seals: SealFlags) -> File {
    named_memory("raw", bytes, seals)
}

pub fn named_memory(name: &str, bytes: u64, seals: SealFlags) -> File {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, bytes).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file.into()
}

/// A connection.
pub struct Raw(pub OwnedFd);

impl Raw {
    pub fn connect(path: &Path) -> Self {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        rustix::net::sockopt::set_socket_timeout(
            &socket,
            rustix::net::sockopt::Timeout::Recv,
            Some(std::time::Duration::from_secs(20)),
        )
        .unwrap();
        Self(socket)
    }

    /// Sends bytes with descriptors. Whether it could be sent.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        }
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL).is_ok()
    }

    /// The next message, with its descriptor; `None` when the other side has closed.
    pub fn receive(&self) -> Option<(Vec<u8>, Option<OwnedFd>)> {
        let mut bytes = vec![0; 256];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags).ok()?;
        let mut first = None;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                first = first.or_else(|| fds.into_iter().next());
            }
        }
        bytes.truncate(received.bytes);
        (received.bytes > 0).then_some((bytes, first))
    }

    /// The type of the next message.
    pub fn kind(&self) -> Option<u16> {
        self.receive().map(|(bytes, _)| u16::from_ne_bytes([bytes[0], bytes[1]]))
    }

    /// Sends a message, which must be accepted.
    pub fn agreed(&self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) {
        assert!(self.send(bytes, fd.as_slice()));
        assert_eq!(self.kind(), Some(ACK));
    }

    /// Why the other side has ended the connection; empty if it did not say.
    pub fn end(&self) -> String {
        while let Some((bytes, _)) = self.receive() {
            if bytes[..2] == DISCONNECT.to_ne_bytes() {
                return String::from_utf8_lossy(&bytes[6..102]).trim_end_matches('\0').to_owned();
            }
        }
        String::new()
    }
}

/// A client with a ring of eight descriptors in each direction, connected to interface 3.
pub struct RawClient {
    pub raw: Raw,
    pub memory: File,
    _interrupts: [OwnedFd; 2],
}

impl RawClient {
    pub fn connect(path: &Path) -> Self {
        Self::connect_as(path, "raw")
    }

    /// The same, with memory of this name.
    pub fn connect_as(path: &Path, name: &str) -> Self {
        let raw = Raw::connect(path);
        assert_eq!(raw.kind(), Some(HELLO));
        let bytes = BUFFERS + 16 * BUFFER;
        let memory = named_memory(name, bytes, SealFlags::SHRINK);
        raw.agreed(&init(0x200, 3, 0), None);
        raw.agreed(&add_region(0, bytes), Some(memory.as_fd()));
        let interrupts = [eventfd(), eventfd()];
        for (n, interrupt) in (0..2u32).zip(&interrupts) {
            let at = u64::from(n) * RING;
            memory.write_all_at(&0x03e3_1f20u32.to_ne_bytes(), at).unwrap();
            for slot in 0..8 {
                let buffer = BUFFERS + (8 * u64::from(n) + slot) * BUFFER;
                let bytes = descriptor(0, 0, BUFFER as u32, buffer as u32);
                memory.write_all_at(&bytes, at + 128 + 16 * slot).unwrap();
            }
            raw.agreed(&ring_message(1 - n as u16, 0, at as u32, 3), Some(interrupt.as_fd()));
        }
        assert!(raw.send(&connect_message(), &[]));
        assert_eq!(raw.kind(), Some(7));
        Self { raw, memory, _interrupts: interrupts }
    }

    /// Writes a head: that of the ring to the server, or of the other one.
    pub fn set_head(&self, ring: u64, count: u16) {
        self.memory.write_all_at(&count.to_ne_bytes(), ring * RING + 6).unwrap();
    }

    pub fn tail(&self, ring: u64) -> u16 {
        let mut bytes = [0; 2];
        self.memory.read_exact_at(&mut bytes, ring * RING + 64).unwrap();
        u16::from_ne_bytes(bytes)
    }

    pub fn descriptor(&self, ring: u64, slot: u64) -> Vec<u8> {
        let mut bytes = vec![0; 16];
        self.memory.read_exact_at(&mut bytes, ring * RING + 128 + 16 * slot).unwrap();
        bytes
    }

    pub fn set_descriptor(&self, ring: u64, slot: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, ring * RING + 128 + 16 * slot).unwrap();
    }
}
