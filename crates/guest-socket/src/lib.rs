// SPDX-License-Identifier: Apache-2.0
//! Sockets of guests' network cards (vhost-user, vfio-user) and of programs' memifs. In: a path. Out: connections,
//! each with its peer.
//!
//! | module | contents |
//! |---|---|
//! | `listener` | listens in place of a socket that nothing serves; accepts without spinning when no descriptor is free |
//! | `peer` | the process at the other end, as the kernel knows it |
//! | `rights` | who may connect: owner and mode |
//! | `refused_peers` | peers that were refused, because another one has the socket |
//! | `served_port` | what ports with a socket and a thread share: errors, state, end |

#![forbid(unsafe_code)]

mod listener;
mod peer;
mod refused_peers;
mod rights;
mod served_port;

pub use listener::{Accepted, BindError, Listener, RETRY_INTERVAL, refused_for_files};
pub use peer::{Peer, is_gone};
pub use refused_peers::{RefusedPeer, RefusedPeers};
pub use rights::Rights;
pub use served_port::{Reports, ServeError, ServedPort};
