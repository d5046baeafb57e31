//! Messages of an NF: to other NFs of its trust group and from them, and from netvmd, over the attach socket. Not for
//! packets: netvmd passes each one on, at most 100 a second and 200 at once, and no more than fit into a socket.

use std::os::fd::OwnedFd;

use netvm_attach::AttachError;
use netvm_attach::messages::{MAX_PAYLOAD, Message, Request, try_receive, try_send};

/// A message to all other NFs of a role in the same trust group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The role.
    pub to: String,
    /// What the payload means, by agreement of both programs: a receiver ignores versions that it does not know.
    pub version: u16,
    /// At most [`MAX_PAYLOAD`] bytes.
    pub payload: Vec<u8>,
}

impl From<Outgoing> for Request {
    fn from(Outgoing { to, version, payload }: Outgoing) -> Self {
        Self::Send { to, version, payload }
    }
}

/// A message was not sent.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// netvmd has not read the last ones yet.
    #[error("there is no room for the message: send fewer, or later")]
    Full,
    /// The payload is too long.
    #[error("a payload of {0} bytes: it has at most {MAX_PAYLOAD}")]
    TooLong(usize),
    /// The NF has no socket: it runs in a VM.
    #[error("there are no messages in a VM")]
    NoSocket,
    /// The socket failed.
    #[error(transparent)]
    Socket(#[from] AttachError),
}

/// Sends a request.
pub(crate) fn send(socket: Option<&OwnedFd>, request: &Request) -> Result<(), MessageError> {
    if let Request::Send { payload, .. } = request
        && payload.len() > MAX_PAYLOAD
    {
        return Err(MessageError::TooLong(payload.len()));
    }
    let socket = socket.ok_or(MessageError::NoSocket)?;
    if try_send(socket, request)? { Ok(()) } else { Err(MessageError::Full) }
}

/// The next message, if there is one; skips those of a later version.
pub(crate) fn next(socket: Option<&OwnedFd>) -> Option<Message> {
    loop {
        // An error means that netvmd has gone, which the NF notices otherwise.
        match try_receive(socket?).ok().flatten()? {
            Message::Unknown => {}
            message => return Some(message),
        }
    }
}
