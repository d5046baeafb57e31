// SPDX-License-Identifier: Apache-2.0
//! Serves the API on its Unix socket and, if configured, on sockets of groups, on a loopback address, where a token
//! allows reads and, if configured, captures, and on an address for other machines.

mod body;
mod caller;
mod follow;
mod guard;
mod listen;
mod page;
mod record;
mod remote;
mod slots;

pub(super) use caller::{LOGIN, LOGOUT, LocalClients, require_role};
pub(crate) use follow::follow;
pub(super) use guard::{WebRights, local_origins, with_token};
pub(super) use listen::{Io, Listening, Server};
pub(super) use page::{page, script};
pub(super) use record::record;
pub(super) use remote::{Logins, Rates, limit_requests, login, logout, own_origin, with_session};
pub(super) use slots::{Limits, Peer};
