// SPDX-License-Identifier: Apache-2.0
//! The front-end's side of the socket, as tests and fuzz targets play it: it may send anything.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::message::MAX_FDS;

/// A message: its request, flags and payload.
#[must_use]
pub fn bytes(request: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let header = [request, flags, payload.len() as u32];
    header.iter().flat_map(|word| word.to_ne_bytes()).chain(payload.iter().copied()).collect()
}

/// A payload of several numbers.
#[must_use]
pub fn payload(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Sends bytes with descriptors, at most twice as many as a message may have.
///
/// # Errors
/// Those of sendmsg(2), and EMSGSIZE if it sent only a part.
pub fn send(to: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2 * MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::TOOBIG);
    }
    let sent = sendmsg(to, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    (sent == bytes.len()).then_some(()).ok_or(Errno::MSGSIZE)
}
