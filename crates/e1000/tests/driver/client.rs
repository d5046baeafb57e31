// SPDX-License-Identifier: Apache-2.0
//! A vfio-user client.

use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

pub const VERSION: u16 = 1;
pub const DMA_MAP: u16 = 2;
pub const DMA_UNMAP: u16 = 3;
pub const DEVICE_GET_INFO: u16 = 4;
pub const REGION_INFO: u16 = 5;
pub const IRQ_INFO: u16 = 7;
pub const SET_IRQS: u16 = 8;
pub const READ: u16 = 9;
pub const WRITE: u16 = 10;
pub const RESET: u16 = 13;
/// A flag: the client waits for no answer.
const NO_REPLY: u32 = 1 << 4;

pub struct Client {
    pub socket: UnixStream,
    id: u16,
    /// Whether a second reply to the last request is allowed, if it is only a header; and how many came.
    pub ignores_late: bool,
    pub late: u32,
    /// Whether it waits for no answer when it writes a register.
    pub posts: bool,
}

pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// The body of a message that reads or writes a region.
fn access(region: u32, at: u64, count: u32, data: &[u8]) -> Vec<u8> {
    [&at.to_ne_bytes()[..], &words(&[region, count]), data].concat()
}

impl Client {
    /// Connects and agrees on the version.
    pub fn connect(path: &Path) -> Self {
        Self::over(UnixStream::connect(path).unwrap())
    }

    /// Agrees on the version.
    pub fn over(socket: UnixStream) -> Self {
        let mut client = Self::new(socket);
        let reply = client.call(VERSION, b"\0\0\0\0{\"capabilities\":{}}\0", None).unwrap().0;
        assert!(reply.starts_with(b"\0\0\0\0{") && reply.ends_with(b"}\0"));
        client
    }

    pub fn raw(path: &Path) -> Self {
        Self::new(UnixStream::connect(path).unwrap())
    }

    fn new(socket: UnixStream) -> Self {
        socket.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        Self { socket, id: 7, ignores_late: false, late: 0, posts: false }
    }

    pub fn send(&mut self, command: u16, body: &[u8], fd: Option<BorrowedFd<'_>>) {
        self.send_with(0, command, body, fd);
    }

    fn send_with(&mut self, flags: u32, command: u16, body: &[u8], fd: Option<BorrowedFd<'_>>) {
        self.id = self.id.wrapping_add(1);
        let mut bytes = [self.id.to_ne_bytes(), command.to_ne_bytes()].concat();
        bytes.extend(words(&[16 + body.len() as u32, flags, 0]));
        bytes.extend(body);
        self.send_raw(&bytes, fd.as_slice());
    }

    pub fn send_raw(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let _ = sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL);
    }

    /// A request and its reply, with a descriptor; or the error's number. 0: the connection has ended.
    pub fn call(
        &mut self,
        command: u16,
        body: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(Vec<u8>, Option<OwnedFd>), u32> {
        self.send(command, body, fd);
        self.reply(command)
    }

    fn reply(&mut self, command: u16) -> Result<(Vec<u8>, Option<OwnedFd>), u32> {
        let (mut header, mut space) = ([0; 16], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(&self.socket, &mut [IoSliceMut::new(&mut header)], &mut ancillary, RecvFlags::WAITALL);
        if received.map_or(0, |received| received.bytes) < 16 {
            return Err(0);
        }
        let fd = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
        let is_late = header[..2] == self.id.wrapping_sub(1).to_ne_bytes();
        if is_late && word(4) == 16 && self.ignores_late {
            // QEMU logs it.
            self.late += 1;
            return self.reply(command);
        }
        assert_eq!(header[..4], [self.id.to_ne_bytes(), command.to_ne_bytes()].concat());
        let mut body = vec![0; word(4) as usize - 16];
        self.socket.read_exact(&mut body).map_err(|_| 0u32)?;
        match word(8) {
            1 => Ok((body, fd)),
            0x21 => Err(word(12)),
            flags => panic!("flags {flags:#x}"),
        }
    }

    /// The reply, whose first 16 bytes repeat the request.
    pub fn read_region(&mut self, region: u32, at: u64, count: u32) -> Vec<u8> {
        self.call(READ, &access(region, at, count, &[]), None).unwrap().0
    }

    pub fn write_region(&mut self, region: u32, at: u64, data: &[u8]) {
        self.call(WRITE, &access(region, at, data.len() as u32, data), None).unwrap();
    }

    /// A register of BAR 0.
    pub fn get(&mut self, register: u32) -> u32 {
        let reply = self.read_region(0, register.into(), 4);
        u32::from_le_bytes(reply[16..].try_into().unwrap())
    }

    pub fn set(&mut self, register: u32, value: u32) {
        let value = value.to_le_bytes();
        if self.posts {
            self.send_with(NO_REPLY, WRITE, &access(0, register.into(), 4, &value), None);
        } else {
            self.write_region(0, register.into(), &value);
        }
    }

    pub fn map(&mut self, first: u64, bytes: u64, file: impl AsFd) -> Result<(), u32> {
        let mut body = words(&[32, 3]);
        [0, first, bytes].iter().for_each(|long: &u64| body.extend(long.to_ne_bytes()));
        self.call(DMA_MAP, &body, Some(file.as_fd())).map(drop)
    }

    pub fn unmap(&mut self, first: u64, bytes: u64) -> Result<(), u32> {
        let mut body = words(&[24, 0]);
        [first, bytes].iter().for_each(|long: &u64| body.extend(long.to_ne_bytes()));
        self.call(DMA_UNMAP, &body, None).map(drop)
    }

    /// Sets the eventfd of INTx.
    pub fn interrupt(&mut self, eventfd: impl AsFd) -> Result<(), u32> {
        self.call(SET_IRQS, &words(&[20, 0x24, 0, 0, 1]), Some(eventfd.as_fd())).map(drop)
    }

    /// Unmasks INTx.
    pub fn unmask(&mut self) {
        self.call(SET_IRQS, &words(&[20, 0x11, 0, 0, 1]), None).unwrap();
    }
}
