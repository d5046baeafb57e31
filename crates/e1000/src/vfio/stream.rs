// SPDX-License-Identifier: Apache-2.0
//! A connection's bytes and descriptors. Its memory is bounded by the longest message, with one descriptor each.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::ioctl::{Getter, ioctl};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, sendmsg,
};

use super::message::{HEADER, Header, MAX_BODY, NoRequest};

/// A message with its descriptor.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) header: Header,
    pub(crate) body: Vec<u8>,
    pub(crate) fd: Option<OwnedFd>,
}

/// What the socket has.
#[derive(Debug)]
enum Peeked {
    Nothing,
    /// The beginning of a message.
    Part,
    Whole(Message),
}

/// The connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StreamError {
    /// The client has closed it.
    #[error("closed")]
    Closed,
    /// The client violates the protocol.
    #[error("protocol")]
    Protocol,
}

impl From<NoRequest> for StreamError {
    fn from(_: NoRequest) -> Self {
        Self::Protocol
    }
}

/// One connection. A request stays in the socket until it is answered, for a process that goes on after this one.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: UnixStream,
    bytes: Box<[u8; HEADER + MAX_BODY]>,
    /// Bytes of a request that the client sends in pieces. They are not in the socket any more.
    length: usize,
    fd: Option<OwnedFd>,
    /// Bytes of the last request, which are in the socket.
    unfinished: usize,
    /// Replies that the client has not taken yet.
    unsent: Vec<u8>,
}

impl Stream {
    /// Takes a connection over, and makes it non-blocking.
    pub(crate) fn new(socket: UnixStream) -> std::io::Result<Self> {
        socket.set_nonblocking(true)?;
        let bytes = Box::new([0; HEADER + MAX_BODY]);
        Ok(Self { socket, bytes, length: 0, fd: None, unfinished: 0, unsent: Vec::new() })
    }

    /// Whether replies wait for the client. No request is read meanwhile, so they stay few.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// The next message, if it is there.
    pub(crate) fn receive(&mut self) -> Result<Option<Message>, StreamError> {
        if self.length == 0 {
            match self.peek()? {
                Peeked::Nothing => return Ok(None),
                Peeked::Part => {}
                Peeked::Whole(message) => return Ok(Some(message)),
            }
        }
        loop {
            let header = Header::of(&self.bytes[..self.length])?;
            let wanted = HEADER + header.map_or(0, |header| header.body);
            if let Some(header) = header
                && self.length == wanted
            {
                let body = self.bytes[HEADER..wanted].to_vec();
                self.length = 0;
                return Ok(Some(Message { header, body, fd: self.fd.take() }));
            }
            let read = self.read(self.length, wanted, RecvFlags::empty())?;
            if read == 0 {
                return Ok(None);
            }
            self.length += read;
        }
    }

    /// The next message, if the socket has all of it, which stays there until [`Self::finish`].
    fn peek(&mut self) -> Result<Peeked, StreamError> {
        let mut room = self.bytes.len();
        loop {
            let length = self.read(0, room, RecvFlags::PEEK)?;
            let fd = self.fd.take();
            if length == 0 {
                return Ok(Peeked::Nothing);
            }
            let Some(header) = Header::of(&self.bytes[..length])? else { return Ok(Peeked::Part) };
            let bytes = HEADER + header.body;
            if length < bytes {
                return Ok(Peeked::Part);
            }
            // The descriptor may be that of a later message.
            if length > bytes && fd.is_some() {
                room = bytes;
                continue;
            }
            self.unfinished = bytes;
            let body = self.bytes[HEADER..bytes].to_vec();
            return Ok(Peeked::Whole(Message { header, body, fd }));
        }
    }

    /// The last message was answered.
    pub(crate) fn finish(&mut self) -> Result<(), StreamError> {
        let bytes = std::mem::take(&mut self.unfinished);
        match recv(&self.socket, &mut self.bytes[..bytes], RecvFlags::DONTWAIT) {
            Ok((_, received)) if received == bytes => Ok(()),
            _ if bytes == 0 => Ok(()),
            _ => Err(StreamError::Closed),
        }
    }

    /// A process before this one has handled request `id`. Makes sure that it is answered, and not left in the socket.
    pub(crate) fn settle(&mut self, id: u16) -> Result<(), StreamError> {
        const LIMIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };
        let Peeked::Whole(Message { header, .. }) = self.peek()? else { return Ok(()) };
        if header.id != id {
            return Ok(());
        }
        // If the client has sent more, it has the reply.
        if header.wants_reply && !self.has_unread()? && !self.has_more_within(LIMIT)? {
            // Whether it was sent is not known. A reply to no request is ignored if it is only a header; a client that
            // waits takes the register for 0.
            self.send(&header.reply(&[]), None)?;
        }
        self.finish()
    }

    /// Whether the client has not read all that was sent.
    fn has_unread(&self) -> Result<bool, StreamError> {
        /// `SIOCOUTQ`.
        const UNREAD: rustix::ioctl::Opcode = 0x5411;
        // SAFETY: it writes an int.
        let unread = unsafe { ioctl(&self.socket, Getter::<UNREAD, i32>::new()) };
        unread.map(|bytes| bytes > 0).map_err(|_| StreamError::Closed)
    }

    /// Whether the client sends more than the message that was peeked.
    fn has_more_within(&mut self, mut limit: Timespec) -> Result<bool, StreamError> {
        const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        while limit.tv_nsec > 0 {
            if self.read(0, self.bytes.len(), RecvFlags::PEEK)? > self.unfinished {
                return Ok(true);
            }
            let _ = rustix::thread::nanosleep(&WAIT);
            limit.tv_nsec -= WAIT.tv_nsec;
        }
        Ok(false)
    }

    /// Reads into a part of the bytes. Returns how many were there.
    fn read(&mut self, from: usize, to: usize, flags: RecvFlags) -> Result<usize, StreamError> {
        // Room for two, so that a second one is noticed.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let place = &mut self.bytes[from..to];
        let flags = flags | RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = match recvmsg(&self.socket, &mut [IoSliceMut::new(place)], &mut ancillary, flags) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(0),
            Err(_) => return Err(StreamError::Closed),
        };
        for message in ancillary.drain() {
            let RecvAncillaryMessage::ScmRights(fds) = message else { continue };
            for fd in fds {
                if self.fd.replace(fd).is_some() {
                    return Err(StreamError::Protocol);
                }
            }
        }
        if received.bytes == 0 { Err(StreamError::Closed) } else { Ok(received.bytes) }
    }

    /// Sends a reply, with a descriptor; what the client does not take is kept.
    pub(crate) fn send(&mut self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<(), StreamError> {
        if self.is_blocked() {
            // A descriptor cannot wait: the client has requests open of which it takes no replies.
            if fd.is_some() {
                return Err(StreamError::Protocol);
            }
            self.unsent.extend(bytes);
            return Ok(());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds: [BorrowedFd<'_>; 1] = [fd.unwrap_or_else(|| self.socket.as_fd())];
        if fd.is_some() && !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(StreamError::Protocol);
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = match sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut ancillary, flags) {
            Ok(sent) => sent,
            Err(Errno::AGAIN | Errno::INTR) if fd.is_none() => 0,
            Err(Errno::AGAIN | Errno::INTR) => return Err(StreamError::Protocol),
            Err(_) => return Err(StreamError::Closed),
        };
        self.unsent.extend(bytes.get(sent..).unwrap_or_default());
        Ok(())
    }

    /// Sends what waits.
    pub(crate) fn flush(&mut self) -> Result<(), StreamError> {
        let unsent = std::mem::take(&mut self.unsent);
        if unsent.is_empty() { Ok(()) } else { self.send(&unsent, None) }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
