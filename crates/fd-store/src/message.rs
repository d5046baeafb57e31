// SPDX-License-Identifier: Apache-2.0
//! Messages between an owner and the store: those of [`netvm_attach`], with at most one file each.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netvm_attach::AttachError;
use serde::{Deserialize, Serialize};

/// Most files under one name.
pub const MAX_FILES: usize = 1024;

/// What a message asks for, or answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    /// The sender owns the files of a name from now on. They are sent to it as `Put`, and then `Opened`.
    Open(Vec<u8>),
    Opened,
    /// A file with its number, in place of one that had this number.
    Put(u32),
    Remove(u32),
    /// All files of the name.
    Forget,
    /// How long the files stay without an owner: until there is one, if it says so.
    KeepOn(bool),
    /// Closes the files of all names that begin so and have no owner. The answer is `Opened`.
    CloseLeft(Vec<u8>),
}

/// Sends a message. Waits for room.
pub(crate) fn send(socket: impl AsFd, message: &Message, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    retry(|| netvm_attach::send(&socket, message, file.as_slice()))
}

/// The next message, and its file.
///
/// # Errors
/// `ConnectionReset` once the other side has closed the connection, `InvalidData` for what is no message.
pub(crate) fn receive(socket: impl AsFd) -> io::Result<(Message, Option<OwnedFd>)> {
    retry(|| netvm_attach::receive(&socket)).map(|(message, files)| (message, files.into_iter().next()))
}

/// Does it again after a signal.
fn retry<T>(mut act: impl FnMut() -> Result<T, AttachError>) -> io::Result<T> {
    loop {
        match act() {
            Ok(value) => return Ok(value),
            Err(AttachError::Socket(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(AttachError::Socket(error)) => return Err(error),
            Err(AttachError::Closed) => return Err(io::ErrorKind::ConnectionReset.into()),
            Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }
}
