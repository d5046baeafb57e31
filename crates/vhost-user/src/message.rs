// SPDX-License-Identifier: Apache-2.0
//! Messages of a front-end, and replies to it.
//!
//! A message is read without blocking, whatever parts it comes in, and has 200 ms to become complete. It may have as
//! many bytes and descriptors as the longest valid one. A reply that does not fit into the socket ends the connection.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use vhost::vhost_user::message::VhostUserHeaderFlag;

use crate::protocol::{MAX_BYTES, REGIONS};
use crate::{End, Refusal};

/// Time limit for the rest of a message.
const REST_TIMEOUT: Duration = Duration::from_millis(200);
/// Request, flags and bytes of payload (vhost-user, "Message Specification").
const HEADER: usize = 12;
/// Descriptors that a message can have: one for each region of memory.
pub(crate) const MAX_FDS: usize = REGIONS;
/// The only version.
const VERSION: u32 = 1;

/// A message being read, or complete.
#[derive(Debug)]
pub struct Message {
    bytes: [u8; HEADER + MAX_BYTES],
    have: usize,
    /// Its descriptors.
    pub fds: Vec<OwnedFd>,
    /// Deadline for the rest of the message.
    end: Option<Instant>,
}

impl Default for Message {
    fn default() -> Self {
        Self::new()
    }
}

impl Message {
    /// Nothing is read yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: [0; HEADER + MAX_BYTES], have: 0, fds: Vec::new(), end: None }
    }

    /// Closes its descriptors, and reads the next message.
    pub fn clear(&mut self) {
        self.have = 0;
        self.fds.clear();
    }

    fn word(&self, n: usize) -> u32 {
        let bytes = self.bytes.get(4 * n..4 * n + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_ne_bytes)
    }

    /// Its number (see [`request`](crate::request)).
    #[must_use]
    pub fn request(&self) -> u32 {
        self.word(0)
    }

    /// Whether the front-end waits for a reply, also to a message that has none of its own.
    #[must_use]
    pub fn needs_reply(&self) -> bool {
        self.word(1) & VhostUserHeaderFlag::NEED_REPLY.bits() != 0
    }

    /// What follows its header.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.bytes.get(HEADER..self.have).unwrap_or_default()
    }

    /// Bytes of the header, or of the message once its header is complete.
    fn expected(&self) -> usize {
        if self.have < HEADER { HEADER } else { HEADER.saturating_add(self.word(2) as usize) }
    }

    fn is_whole(&self) -> bool {
        self.have >= HEADER && self.have == self.expected()
    }

    /// Waits for a message of this front-end and reads it.
    ///
    /// # Errors
    /// The connection ends: nothing more can be read.
    pub fn receive(&mut self, from: impl AsFd) -> Result<(), End> {
        while !self.read(&from)? {
            wait(&mut [PollFd::new(&from, PollFlags::IN)], self.end)?;
        }
        Ok(())
    }

    /// Reads more of this message; returns whether it is complete.
    fn read(&mut self, from: impl AsFd) -> Result<bool, End> {
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let expected = self.expected();
            // Longer than any valid message.
            let Some(rest) = self.bytes.get_mut(self.have..expected) else {
                return Err(End::Refused(Refusal::Protocol));
            };
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let received = match recvmsg(&from, &mut [IoSliceMut::new(rest)], &mut control, flags) {
                Ok(received) => received,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for part in control.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = part {
                    self.fds.extend(fds);
                }
            }
            if received.bytes == 0 {
                return Err(End::Closed);
            }
            if received.flags.contains(ReturnFlags::CTRUNC) || self.fds.len() > MAX_FDS {
                return Err(End::Refused(Refusal::Protocol));
            }
            self.have += received.bytes;
            self.end = if self.is_whole() { None } else { self.end.or(Some(Instant::now() + REST_TIMEOUT)) };
            if self.is_whole() {
                return Ok(true);
            }
        }
    }
}

/// Waits until a descriptor is ready; the connection ends if this takes too long.
fn wait(fds: &mut [PollFd<'_>], end: Option<Instant>) -> Result<(), End> {
    loop {
        let left = end.map(|end| Timespec::try_from(end.saturating_duration_since(Instant::now())));
        match poll(fds, left.transpose().map_err(|_| End::Closed)?.as_ref()) {
            Ok(0) => return Err(End::Closed),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// What follows the header of a reply.
#[derive(Debug, Default)]
pub struct Reply {
    /// Its payload.
    pub payload: Vec<u8>,
    /// Its descriptor.
    pub fd: Option<OwnedFd>,
}

impl From<u64> for Reply {
    fn from(number: u64) -> Self {
        Self { payload: number.to_ne_bytes().to_vec(), fd: None }
    }
}

/// Sends the reply to a request, if there is room for it.
///
/// # Errors
/// The connection ends.
pub fn reply(to: impl AsFd, request: u32, Reply { payload, fd }: &Reply) -> Result<(), End> {
    let header = [request, VERSION | VhostUserHeaderFlag::REPLY.bits(), payload.len() as u32];
    let header: Vec<u8> = header.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let parts = [IoSlice::new(&header), IoSlice::new(payload)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<BorrowedFd<'_>> = fd.iter().map(AsFd::as_fd).collect();
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(End::Closed);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = sendmsg(to, &parts, &mut control, flags)?;
    (sent == header.len() + payload.len()).then_some(()).ok_or(End::Closed)
}

#[cfg(test)]
mod tests;
