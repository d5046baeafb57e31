// SPDX-License-Identifier: Apache-2.0
//! What netvmd gives to the reader of a capture, over a Unix stream socket: a message in JSON and the rings' memory.
//!
//! ```text
//!  4 bytes: length of the JSON, little endian │ JSON
//!  the descriptors come with the first byte
//! ```

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Rings that a capture can have: one for each worker.
pub const MAX_RINGS: usize = 32;
/// Longest message.
const MAX_MESSAGE: usize = 1 << 20;

/// The hand-over failed.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// The socket.
    #[error("the connection to netvmd broke: {0}")]
    Socket(#[from] io::Error),
    /// The peer closed it.
    #[error("netvmd closed the connection: see its log")]
    Closed,
    /// The message is not one of this version.
    #[error("netvmd did not send a capture: {0}. Does it have the version of this program?")]
    Message(String),
}

/// Sends a message with descriptors; the socket blocks.
///
/// # Errors
/// [`HandoverError`].
pub fn send_handover<M: Serialize>(
    socket: impl AsFd,
    message: &M,
    fds: &[BorrowedFd<'_>],
) -> Result<(), HandoverError> {
    let json = serde_json::to_vec(message).map_err(|error| HandoverError::Message(error.to_string()))?;
    if json.len() > MAX_MESSAGE || fds.len() > MAX_RINGS {
        return Err(HandoverError::Message(format!("{} bytes, {} rings", json.len(), fds.len())));
    }
    let bytes = [&(json.len() as u32).to_le_bytes()[..], &json].concat();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_RINGS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(HandoverError::Message("too many rings".to_owned()));
    }
    let mut sent = 0;
    while sent < bytes.len() {
        let rest = [IoSlice::new(bytes.get(sent..).unwrap_or_default())];
        match rustix::net::sendmsg(&socket, &rest, &mut ancillary, SendFlags::NOSIGNAL) {
            Ok(0) => return Err(HandoverError::Closed),
            Ok(count) => sent += count,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(HandoverError::Socket(error.into())),
        }
        ancillary.clear();
    }
    Ok(())
}

/// Receives a message with its descriptors (close-on-exec); the socket blocks.
///
/// # Errors
/// [`HandoverError`].
pub fn receive_handover<M: DeserializeOwned>(socket: impl AsFd) -> Result<(M, Vec<OwnedFd>), HandoverError> {
    let mut fds = Vec::new();
    let mut bytes = Vec::new();
    let mut wanted = 4;
    while bytes.len() < wanted {
        let mut part = vec![0; (wanted - bytes.len()).min(64 << 10)];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_RINGS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut part)];
        let received =
            match rustix::net::recvmsg(&socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) => received,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(HandoverError::Socket(error.into())),
            };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received.bytes == 0 {
            return Err(HandoverError::Closed);
        }
        bytes.extend_from_slice(part.get(..received.bytes).unwrap_or_default());
        if wanted == 4
            && let Some(length) = bytes.first_chunk::<4>()
        {
            let length = u32::from_le_bytes(*length) as usize;
            if length > MAX_MESSAGE {
                return Err(HandoverError::Message(format!("a message of {length} bytes")));
            }
            wanted = 4 + length;
        }
    }
    let message = serde_json::from_slice(bytes.get(4..).unwrap_or_default());
    let message = message.map_err(|error| HandoverError::Message(error.to_string()))?;
    Ok((message, fds))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_long_message_and_its_descriptors_arrive() {
        let (here, there) = UnixStream::pair().unwrap();
        let message: Vec<String> = (0..20_000).map(|n| format!("interface {n}")).collect();
        let wanted = message.clone();
        let sender = std::thread::spawn(move || {
            let fds = [there.as_fd(), there.as_fd()];
            send_handover(&there, &message, &fds).unwrap();
        });
        let (got, fds) = receive_handover::<Vec<String>>(&here).unwrap();
        sender.join().unwrap();
        assert_eq!(got, wanted);
        assert_eq!(fds.len(), 2);
        drop(fds);
        assert!(matches!(receive_handover::<Vec<String>>(&here), Err(HandoverError::Closed)));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        use std::io::Write;
        for bytes in [&[0xff_u8; 4][..], &[2, 0, 0, 0, b'{', b'x']] {
            let (here, mut there) = UnixStream::pair().unwrap();
            there.write_all(bytes).unwrap();
            assert!(matches!(receive_handover::<Vec<u8>>(&here), Err(HandoverError::Message(_))));
        }
    }
}
