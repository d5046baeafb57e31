// SPDX-License-Identifier: Apache-2.0
//! What to serve, and as which side.

use std::path::PathBuf;

/// Who makes what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The port creates the socket, and its peer the memory.
    Server,
    /// The port connects to its peer's socket, and creates the memory.
    Client,
}

/// What to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The socket.
    pub path: PathBuf,
    /// Which side this is.
    pub role: Role,
    /// The interface's number on the socket.
    pub id: u32,
    /// What a client must know, or tells its server; at most [`crate::MAX_SECRET`] bytes.
    pub secret: Option<String>,
    /// Descriptors of a ring, as a power of two: the most that a client may have, or what this client wants. At most
    /// [`crate::MAX_LOG2_RING_SIZE`].
    pub log2_ring_size: u8,
    /// Bytes of a buffer that a client makes.
    pub buffer_size: u32,
    /// Queues, at least one.
    pub queues: u16,
    /// What the peer gets to know as the interface's name.
    pub name: String,
}
