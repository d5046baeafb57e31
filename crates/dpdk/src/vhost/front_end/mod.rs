// SPDX-License-Identifier: Apache-2.0
//! The vhost-user front end of guests' devices: from a socket to started rings.
//!
//! ```text
//!   listener ── connection ──▶ connection ── message ──▶ device ── memory, rings ──▶ guests
//!   (one thread a port)        (one thread a guest)                                  (what workers use)
//! ```
//!
//! A guest's peer may send anything, and closing a descriptor that it sent may take arbitrarily long. So each
//! connection has a thread of its own, which waits only for its own guest. `netvm_vhost_user` reads messages, checks
//! them, and maps what the guest shares; `device` applies what it allows.

mod connection;
mod device;
mod listener;

pub(super) use listener::{Listener, StartError};
