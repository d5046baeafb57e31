// SPDX-License-Identifier: Apache-2.0
//! Messages on the socket of an attached NF, or in the mailbox of one in a VM: between NFs of a trust group, by way of
//! netvmd, and from netvmd. Nothing of this is on the packet path. Nobody waits for a receiver: what does not fit into
//! its socket is lost, and counted.

use std::io::IoSlice;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{AttachError, MAX_MESSAGE};

/// Most bytes of the payload of a message.
pub const MAX_PAYLOAD: usize = 1024;

/// What an attached NF sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// It takes messages from now on.
    Subscribe,
    /// A message to all other NFs of a role in its trust group.
    Send {
        /// The role.
        to: String,
        /// What the payload means, by agreement of both programs.
        version: u16,
        /// At most [`MAX_PAYLOAD`] bytes.
        payload: Vec<u8>,
    },
}

/// What an attached NF gets, if it has subscribed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum Message {
    /// From another NF of its trust group.
    FromNf {
        /// Its role.
        role: String,
        /// The number of the instance.
        instance: u32,
        /// What the payload means, by agreement of both programs.
        version: u16,
        /// The payload.
        payload: Vec<u8>,
    },
    /// A new configuration is in force.
    Configured,
    /// The NF gets no new flows, and is to end when those that it has have ended.
    Drain,
    /// It gets new flows again.
    Resume,
    /// The load of the NF's role in percent: how full the rings of its NFs are. Once a second while it changes.
    Load {
        /// The mean of its NFs.
        percent: u8,
    },
    /// A message of a later version.
    #[serde(other)]
    Unknown,
}

/// A message as bytes.
///
/// # Errors
/// [`AttachError::Protocol`] if it is too long.
pub fn encode<M: Serialize>(message: &M) -> Result<Vec<u8>, AttachError> {
    let body = serde_json::to_vec(message).map_err(|e| AttachError::Protocol(e.to_string()))?;
    if body.len() > MAX_MESSAGE {
        return Err(AttachError::Protocol(format!("a message of {} bytes is too long", body.len())));
    }
    Ok(body)
}

/// A message of these bytes.
///
/// # Errors
/// [`AttachError::Protocol`] if they are none.
pub fn decode<M: DeserializeOwned>(body: &[u8]) -> Result<M, AttachError> {
    serde_json::from_slice(body).map_err(|e| AttachError::Protocol(e.to_string()))
}

/// Sends a message without waiting. Returns whether there was room for it.
///
/// # Errors
/// As for [`send`](crate::send).
pub fn try_send<M: Serialize>(socket: impl AsFd, message: &M) -> Result<bool, AttachError> {
    let body = encode(message)?;
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let parts = [IoSlice::new(&body)];
    match rustix::net::sendmsg(socket, &parts, &mut SendAncillaryBuffer::default(), flags) {
        Ok(_) => Ok(true),
        Err(Errno::WOULDBLOCK | Errno::NOBUFS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The next message, if there is one now.
///
/// # Errors
/// As for [`receive_bare`](crate::receive_bare).
pub fn try_receive<M: DeserializeOwned>(socket: impl AsFd) -> Result<Option<M>, AttachError> {
    let mut body = vec![0; MAX_MESSAGE];
    let flags = RecvFlags::TRUNC | RecvFlags::DONTWAIT;
    let length = match rustix::net::recv(socket, body.as_mut_slice(), flags) {
        Ok((_, length)) => length,
        Err(Errno::WOULDBLOCK) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match body.get(..length) {
        Some([]) => Err(AttachError::Closed),
        Some(body) => decode(body).map(Some),
        None => Err(AttachError::Protocol(format!("a message of {length} bytes is too long"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_in_order_until_there_is_no_room() {
        let (engine, nf) = crate::pair().unwrap();
        assert_eq!(try_receive::<Message>(&nf).unwrap(), None);
        let payload = vec![0xff; MAX_PAYLOAD];
        let from_nf = |instance| Message::FromNf {
            role: "scan".into(),
            instance,
            version: 7,
            payload: payload.clone(),
        };
        let sent = (0..10_000).take_while(|n| try_send(&engine, &from_nf(*n)).unwrap()).count() as u32;
        assert!((10..10_000).contains(&sent), "{sent}");
        for n in 0..sent {
            assert_eq!(try_receive(&nf).unwrap(), Some(from_nf(n)));
        }
        assert_eq!(try_receive::<Message>(&nf).unwrap(), None);
        drop(engine);
        assert!(matches!(try_receive::<Message>(&nf), Err(AttachError::Closed)));
    }

    #[test]
    fn a_message_of_a_later_version_is_unknown() {
        let (engine, nf) = crate::pair().unwrap();
        rustix::net::send(&engine, br#"{"message":"weather","rain":true}"#, SendFlags::empty()).unwrap();
        assert_eq!(try_receive(&nf).unwrap(), Some(Message::Unknown));
        let request = Request::Send { to: "scan".into(), version: 1, payload: vec![1, 2] };
        assert!(try_send(&nf, &request).unwrap());
        assert_eq!(try_receive(&engine).unwrap(), Some(request));
    }
}
