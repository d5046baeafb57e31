// SPDX-License-Identifier: Apache-2.0
//! Shared-memory packet interfaces (memif, protocol 2.0) with programs of DPDK, VPP, grout and others.
//!
//! Two processes exchange packets through rings in memory that one of them makes. The **server** listens on a Unix
//! socket; the **client** connects, makes memory, rings and buffers, and passes them. This crate is either.
//!
//! ```text
//!  client ── HELLO ◀── INIT ──▶ ADD_REGION ──▶ ADD_RING ──▶ CONNECT ──▶ CONNECTED ◀── server     (protocol, session)
//!
//!  client's memory:   ring, client to server:  head ▶ client writes, descriptors with packets    (memory, link)
//!                                              tail ▶ server writes, descriptors that it has read
//!                     ring, server to client:  head ▶ client writes, descriptors with free buffers
//!                                              tail ▶ server writes, buffers that it has filled
//!                     buffers
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `protocol` | messages, and the socket that carries them |
//! | `memory` | regions, rings and descriptors, as offsets and atomic words |
//! | `link` | both directions of a connection, for workers |
//! | `session` | how a connection begins, as server and as client |
//! | `queue` | the worker's side of a port: follows connections that come and go |
//! | `options`, `port`, `thread` | what to serve; the port, and its thread, which has the socket |
//! | `status` | why peers were refused or disconnected |
//!
//! Everything that the peer writes is hostile. Its memory must be a file that cannot shrink; indexes and descriptors
//! are copied, then checked; packets are copied. A peer that breaks a rule of the rings is disconnected. So the worst
//! that it can do is to lose its own packets.
//!
//! The format is libmemif's (`memif.h`); only its Ethernet mode is supported.

mod link;
mod memory;
mod options;
mod port;
mod protocol;
mod queue;
mod session;
mod status;
mod thread;

pub use link::{Link, NotTaken, Received, Sending};
pub use options::{Options, Role};
pub use port::{OpenError, Port};
pub use protocol::{MESSAGE_BYTES, Message};
pub use queue::Queue;
pub use session::{Session, Step};
pub use status::{Fault, Status};

/// Most descriptors of a ring, as a power of two.
pub const MAX_LOG2_RING_SIZE: u8 = 14;
/// Most bytes of a packet.
pub const MAX_PACKET: usize = 65_535;
/// Most characters of a secret.
pub const MAX_SECRET: usize = 24;
