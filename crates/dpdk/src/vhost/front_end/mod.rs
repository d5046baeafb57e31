//! The vhost-user front end of guests' devices: from a socket to started rings.
//!
//! ```text
//!   listener ── connection ──▶ connection ── message ──▶ device ── memory, rings ──▶ guests
//!   (one thread a port)        (one thread a guest)                                  (what workers use)
//! ```
//!
//! A guest's peer may send anything, or half of a message, or read no reply, and closing a descriptor that it sent may
//! take arbitrarily long. So each connection has a thread of its own, which waits only for its own guest. `message`
//! reads a message, `protocol` allows it at this time, and `descriptors` checks that its descriptors cannot block netvm;
//! only then `device` applies it. `memory` maps what the guest shares.
//!
//! Numbers and structures of messages are those of rust-vmm's `vhost` crate. Its request handler is not used: it waits
//! without a limit for the rest of a message and for room for a reply.

mod connection;
mod descriptors;
mod device;
mod listener;
mod memory;
mod message;
mod protocol;

pub(super) use listener::Listener;

use super::Refusal;

/// Why a connection ends.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The front-end has closed it, or does not read; or the port is closed.
    Closed,
    Refused(Refusal),
}

impl From<rustix::io::Errno> for End {
    fn from(_: rustix::io::Errno) -> Self {
        Self::Closed
    }
}
