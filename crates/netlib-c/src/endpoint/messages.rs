// SPDX-License-Identifier: Apache-2.0
//! Messages in C: of other NFs of the trust group, and of netvmd.

use std::ffi::{c_char, c_int};

use netlib::{MAX_PAYLOAD, Message, MessageError, Outgoing};

use super::{borrow, netlib_endpoint};
use crate::status::{Failure, guard, netlib_status};

/// Most bytes of the payload of a message.
pub const NETLIB_MAX_PAYLOAD: usize = 1024;
const _: () = assert!(NETLIB_MAX_PAYLOAD == MAX_PAYLOAD);
/// Room for the name of a role and a zero.
pub const NETLIB_ROLE_ROOM: usize = 33;

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum netlib_message_kind {
    /// Another NF of the trust group has sent it.
    NETLIB_FROM_NF = 0,
    /// A new configuration is in force.
    NETLIB_CONFIGURED = 1,
    /// The NF gets no new flows, and is to end when those that it has have ended.
    NETLIB_DRAIN = 2,
    /// It gets new flows again.
    NETLIB_RESUME = 3,
    /// The load of the NF's role has changed.
    NETLIB_LOAD = 4,
}

/// A message.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct netlib_message {
    /// A netlib_message_kind.
    pub kind: c_int,
    /// NETLIB_FROM_NF: the role of the sender, zero-terminated. To send: the role of the receivers.
    pub role: [c_char; NETLIB_ROLE_ROOM],
    /// NETLIB_FROM_NF: the number of the sender's instance.
    pub instance: u32,
    /// NETLIB_FROM_NF: what the payload means, by agreement of both programs.
    pub version: u16,
    /// NETLIB_LOAD: percent.
    pub percent: u16,
    /// NETLIB_FROM_NF: bytes of the payload.
    pub length: usize,
    /// NETLIB_FROM_NF: the payload.
    pub payload: [u8; NETLIB_MAX_PAYLOAD],
}

/// A message of netvmd, as the simulator sends it; `None` for another kind, or a role or a length that cannot be.
pub(crate) fn message_of(raw: &netlib_message) -> Option<Message> {
    const FROM_NF: c_int = netlib_message_kind::NETLIB_FROM_NF as c_int;
    const CONFIGURED: c_int = netlib_message_kind::NETLIB_CONFIGURED as c_int;
    const DRAIN: c_int = netlib_message_kind::NETLIB_DRAIN as c_int;
    const RESUME: c_int = netlib_message_kind::NETLIB_RESUME as c_int;
    const LOAD: c_int = netlib_message_kind::NETLIB_LOAD as c_int;
    Some(match raw.kind {
        FROM_NF => {
            let Outgoing { to: role, version, payload } = outgoing(raw)?;
            Message::FromNf { role, instance: raw.instance, version, payload }
        }
        CONFIGURED => Message::Configured,
        DRAIN => Message::Drain,
        RESUME => Message::Resume,
        LOAD => Message::Load { percent: u8::try_from(raw.percent).ok()? },
        _ => return None,
    })
}

/// Role, version and payload; `None` if the role is no text, or the payload is too long.
fn outgoing(raw: &netlib_message) -> Option<Outgoing> {
    let name = raw.role.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
    let payload = raw.payload.get(..raw.length)?.to_vec();
    Some(Outgoing { to: String::from_utf8(name).ok()?, version: raw.version, payload })
}

/// A message that an NF has sent, as the simulator returns it.
pub(crate) fn sent(message: Outgoing) -> netlib_message {
    let Outgoing { to: role, version, payload } = message;
    described(&Message::FromNf { role, instance: 0, version, payload })
}

fn described(message: &Message) -> netlib_message {
    let mut out = netlib_message {
        kind: 0,
        role: [0; NETLIB_ROLE_ROOM],
        instance: 0,
        version: 0,
        percent: 0,
        length: 0,
        payload: [0; NETLIB_MAX_PAYLOAD],
    };
    let kind = match message {
        Message::FromNf { role, instance, version, payload } => {
            for (to, from) in out.role[..NETLIB_ROLE_ROOM - 1].iter_mut().zip(role.bytes()) {
                *to = from as c_char;
            }
            let length = payload.len().min(NETLIB_MAX_PAYLOAD);
            out.payload[..length].copy_from_slice(&payload[..length]);
            (out.instance, out.version, out.length) = (*instance, *version, length);
            netlib_message_kind::NETLIB_FROM_NF
        }
        Message::Drain => netlib_message_kind::NETLIB_DRAIN,
        Message::Resume => netlib_message_kind::NETLIB_RESUME,
        Message::Load { percent } => {
            out.percent = u16::from(*percent);
            netlib_message_kind::NETLIB_LOAD
        }
        // Those of a later version are skipped before.
        Message::Configured | Message::Unknown => netlib_message_kind::NETLIB_CONFIGURED,
    };
    out.kind = kind as c_int;
    out
}

/// The next message, if there is one, and options->messages was set. Does not wait. May be called within a callback.
///
/// @return 1 if `message` has one, 0 if there is none now; NETLIB_ERR_NULL.
///
/// # Safety
/// As for netlib_send(); `message` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_next_message(
    endpoint: *mut netlib_endpoint,
    message: *mut netlib_message,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let endpoint = unsafe { borrow(endpoint) }?;
        if message.is_null() {
            return Err(Failure::Null("message"));
        }
        let Some(next) = endpoint.next_message() else { return Ok(0) };
        // SAFETY: not NULL, and writable by the caller's promise.
        unsafe { message.write(described(&next)) };
        Ok(1)
    })
}

/// Sends a message to all other NFs of a role in the same trust group, by way of netvmd: at most 100 a second, and 200
/// at once. May be called within a callback.
///
/// @param message its role is the receivers'; its version, length and payload are sent. Other members do not matter.
/// @return NETLIB_OK; NETLIB_ERR_SPACE if netvmd has not read the last ones yet; NETLIB_ERR_ARGUMENT for a role that is
/// no text, a length above NETLIB_MAX_PAYLOAD, and in a VM, which has no messages; NETLIB_ERR_CONNECT,
/// NETLIB_ERR_NULL.
///
/// # Safety
/// As for netlib_send(); `message` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netlib_send_message(
    endpoint: *mut netlib_endpoint,
    message: *const netlib_message,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let endpoint = unsafe { borrow(endpoint) }?;
        // SAFETY: the caller's promise.
        let message = unsafe { message.as_ref() }.ok_or(Failure::Null("message"))?;
        let message = outgoing(message)
            .ok_or(Failure::Argument("the role is not UTF-8, or the length exceeds NETLIB_MAX_PAYLOAD"))?;
        match endpoint.send_message(message) {
            Ok(()) => Ok(netlib_status::NETLIB_OK as c_int),
            Err(MessageError::Full | MessageError::TooLong(_)) => {
                Err(Failure::Plain(netlib_status::NETLIB_ERR_SPACE))
            }
            Err(MessageError::Unsupported) => {
                Err(Failure::Argument("netvmd has no messages for NFs in VMs: update it on the host"))
            }
            Err(MessageError::Socket(_)) => Err(Failure::Plain(netlib_status::NETLIB_ERR_CONNECT)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_has_its_kind() {
        let payload = vec![7; 3];
        let from_nf = Message::FromNf { role: "r".repeat(40), instance: 9, version: 2, payload };
        let message = described(&from_nf);
        assert_eq!(
            (
                message.role.iter().take_while(|byte| **byte != 0).count(),
                message.instance,
                message.version,
                message.length
            ),
            (32, 9, 2, 3)
        );
        let kinds =
            [from_nf, Message::Configured, Message::Drain, Message::Resume, Message::Load { percent: 5 }]
                .map(|message| described(&message).kind);
        assert_eq!(kinds, [0, 1, 2, 3, 4]);
        assert_eq!(described(&Message::Load { percent: 5 }).percent, 5);
    }
}
