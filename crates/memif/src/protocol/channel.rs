// SPDX-License-Identifier: Apache-2.0
//! The socket: sends and receives messages without waiting.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg,
};

use super::message::{MESSAGE_BYTES, Message};

/// The connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelError {
    /// The peer has closed it, or takes nothing.
    Gone,
    /// The peer sent something else than a message.
    NoMessage(&'static str),
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Channel(UnixStream);

impl From<UnixStream> for Channel {
    fn from(socket: UnixStream) -> Self {
        Self(socket)
    }
}

/// Connects to a server. Does not wait.
pub(crate) fn connect(path: &Path) -> Result<UnixStream, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

impl Channel {
    /// The next message, if there is one, and its descriptor.
    pub(crate) fn receive(&self) -> Result<Option<(Message, Option<OwnedFd>)>, ChannelError> {
        // A byte more, so that a longer message is noticed; room for two descriptors, so that a second one is.
        let mut bytes = [0; MESSAGE_BYTES + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = match recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
            Ok(received) => received.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(_) => return Err(ChannelError::Gone),
        };
        let mut first = None;
        for message in ancillary.drain() {
            let RecvAncillaryMessage::ScmRights(fds) = message else { continue };
            for fd in fds {
                if first.replace(fd).is_some() {
                    return Err(ChannelError::NoMessage("a message with several descriptors"));
                }
            }
        }
        match (received, bytes.first_chunk()) {
            (0, _) => Err(ChannelError::Gone),
            (MESSAGE_BYTES, Some(bytes)) => {
                let message = Message::parse(bytes);
                let message = message.ok_or(ChannelError::NoMessage("a message of an unknown type"))?;
                Ok(Some((message, first)))
            }
            _ => Err(ChannelError::NoMessage("a message that is not of 128 bytes")),
        }
    }

    /// Sends a message. A peer that leaves messages unread until the socket has no room is taken as gone.
    pub(crate) fn send(&self, message: &Message, fd: Option<BorrowedFd<'_>>) -> Result<(), ChannelError> {
        let bytes = message.bytes();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = [fd.unwrap_or_else(|| self.0.as_fd())];
        if fd.is_some() && !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(ChannelError::Gone);
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut ancillary, flags) {
            Ok(MESSAGE_BYTES) => Ok(()),
            _ => Err(ChannelError::Gone),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
