// SPDX-License-Identifier: Apache-2.0
//! Messages of an NF: to other NFs of its trust group and from them, and from netvmd. They go over the attach socket,
//! or in a VM over the mailbox in control memory. Not for packets: netvmd passes each one on, at most 100 a second and
//! 200 at once, and no more than fit into a socket or a mailbox.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use netvm_attach::AttachError;
use netvm_attach::messages::{MAX_PAYLOAD, Message, Request, decode, encode, try_receive, try_send};
use netvm_region::{Control, Mailbox};

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
    /// The NF runs in a VM, and netvmd is older than the NF.
    #[error("netvmd has no messages for NFs in VMs: update it on the host")]
    Unsupported,
    /// The socket failed, or the request is too long for it.
    #[error(transparent)]
    Socket(#[from] AttachError),
}

/// What messages go over.
#[derive(Debug)]
pub(crate) enum Transport {
    /// The connection to netvmd, which closes when netvmd ends.
    Socket(OwnedFd),
    /// In a VM: control memory.
    Mailbox(Mutex<Mailbox>),
    /// In the simulator without messages, and in a VM on a host with an older netvmd.
    None,
}

impl Transport {
    pub(crate) const fn socket(&self) -> Option<&OwnedFd> {
        if let Self::Socket(socket) = self { Some(socket) } else { None }
    }

    /// Sends a request.
    pub(crate) fn send(&self, control: &Control, request: &Request) -> Result<(), MessageError> {
        if let Request::Send { payload, .. } = request
            && payload.len() > MAX_PAYLOAD
        {
            return Err(MessageError::TooLong(payload.len()));
        }
        let has_room = match self {
            Self::Socket(socket) => try_send(socket, request)?,
            Self::Mailbox(mailbox) => lock(mailbox).send(control, &encode(request)?),
            Self::None => return Err(MessageError::Unsupported),
        };
        if has_room { Ok(()) } else { Err(MessageError::Full) }
    }

    /// The next message, if there is one; skips those of a later version.
    pub(crate) fn next(&self, control: &Control) -> Option<Message> {
        loop {
            let message = match self {
                // An error means that netvmd has gone, which the NF notices otherwise.
                Self::Socket(socket) => try_receive(socket).ok().flatten(),
                Self::Mailbox(mailbox) => {
                    lock(mailbox).receive(control).ok().flatten().and_then(|body| decode(&body).ok())
                }
                Self::None => None,
            };
            match message? {
                Message::Unknown => {}
                message => return Some(message),
            }
        }
    }
}

fn lock(mailbox: &Mutex<Mailbox>) -> MutexGuard<'_, Mailbox> {
    mailbox.lock().unwrap_or_else(PoisonError::into_inner)
}
