// SPDX-License-Identifier: Apache-2.0
//! vhost-user: what a guest's front-end sends, checked. In: bytes and descriptors from a socket. Out: messages that a
//! conforming front-end may send at this time, and the memory that it shares, mapped.
//!
//! A guest's peer may send anything, or half of a message, or read no reply. [`message`] reads a message without
//! waiting for its rest without a limit, [`protocol`] allows it at this time and checks that its descriptors cannot
//! block netvm; only then the caller applies it. [`memory`] maps what the guest shares. Nothing here knows rings'
//! contents or DPDK.
//!
//! Numbers and structures of messages are those of rust-vmm's `vhost` crate. Its request handler is not used: it waits
//! without a limit for the rest of a message and for room for a reply.

mod descriptors;
pub mod memory;
pub mod message;
pub mod payload;
pub mod peer;
pub mod protocol;
pub mod request;

/// Why a guest was disconnected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its messages violate the protocol.
    Protocol,
    /// It shared memory from a file whose pages come from another process or a disk.
    ServedMemory {
        /// The kernel's name of its file system; `None` if it has none, or none that is mounted for this process.
        file_system: Option<String>,
    },
    /// Its kick or call descriptor is not an eventfd.
    NotAnEventfd,
}

/// Why a connection ends.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The front-end has closed it, or does not read; or the port is closed.
    Closed,
    /// The front-end is disconnected.
    Refused(Refusal),
}

impl From<rustix::io::Errno> for End {
    fn from(_: rustix::io::Errno) -> Self {
        Self::Closed
    }
}
