// SPDX-License-Identifier: Apache-2.0
//! Messages of the socket: 128 bytes each, in a packet of its own (`SOCK_SEQPACKET`), with at most one descriptor.

mod channel;
mod message;

pub(crate) use channel::{Channel, ChannelError, connect};
pub(crate) use message::{AddRing, Hello, Init, VERSION, secret_bytes};
pub use message::{MESSAGE_BYTES, Message};
