// SPDX-License-Identifier: Apache-2.0
//! SCTP (RFC 9260): the state of an association between one address of each end, and which packets have its
//! verification tags (section 8.5).
//!
//! States and their changes are those of Linux's conntrack. An INIT chunk has no tag to check, so anybody can send one.
//! While an association is open, the tags that INIT and INIT ACK offer take effect with the COOKIE ECHO that has the
//! offered one (section 5.2: the end has restarted). Until then the association goes on. Linux changes tags at once.
//!
//! A multi-homed association is not tracked as one: the packets between each pair of addresses are a connection, which
//! a HEARTBEAT chunk may begin.

mod association;
mod packet;
mod state;

pub(crate) use association::{SAVED_SCTP, Sctp};
pub(crate) use packet::SctpPacket;
pub use state::SctpState;
