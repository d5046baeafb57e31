//! A connection's bytes and descriptors. Its memory is bounded by the longest message, with one descriptor each.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use super::message::{HEADER, Header, MOST_BODY};

/// A message with its descriptor.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) header: Header,
    pub(crate) body: Vec<u8>,
    pub(crate) fd: Option<OwnedFd>,
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

/// One connection.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: UnixStream,
    /// Bytes of a message that is not complete.
    bytes: Box<[u8; HEADER + MOST_BODY]>,
    length: usize,
    fd: Option<OwnedFd>,
    /// Replies that the client has not taken yet.
    unsent: Vec<u8>,
}

impl Stream {
    /// Takes a connection over, and makes it non-blocking.
    pub(crate) fn new(socket: UnixStream) -> std::io::Result<Self> {
        socket.set_nonblocking(true)?;
        let bytes = Box::new([0; HEADER + MOST_BODY]);
        Ok(Self { socket, bytes, length: 0, fd: None, unsent: Vec::new() })
    }

    /// Whether replies wait for the client. No request is read meanwhile, so they stay few.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// The next message, if it is there.
    pub(crate) fn receive(&mut self) -> Result<Option<Message>, StreamError> {
        loop {
            let header = match self.bytes.first_chunk::<HEADER>() {
                Some(bytes) if self.length >= HEADER => {
                    Some(Header::read(bytes).ok_or(StreamError::Protocol)?)
                }
                _ => None,
            };
            let wanted = HEADER + header.map_or(0, |header| header.body);
            if let Some(header) = header
                && self.length == wanted
            {
                let body = self.bytes[HEADER..wanted].to_vec();
                self.length = 0;
                return Ok(Some(Message { header, body, fd: self.fd.take() }));
            }
            if !self.read(wanted)? {
                return Ok(None);
            }
        }
    }

    /// Reads until the message has `wanted` bytes. Returns whether any were there.
    fn read(&mut self, wanted: usize) -> Result<bool, StreamError> {
        // Room for two, so that a second one is noticed.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let place = &mut self.bytes[self.length..wanted];
        let received =
            recvmsg(&self.socket, &mut [IoSliceMut::new(place)], &mut ancillary, RecvFlags::CMSG_CLOEXEC);
        let received = match received {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
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
        if received.bytes == 0 {
            return Err(StreamError::Closed);
        }
        self.length += received.bytes;
        Ok(true)
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
