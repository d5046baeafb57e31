//! Serves the API on its Unix socket and, if configured, on a loopback address, where a token allows reads and, if
//! configured, captures.

mod body;
mod follow;
mod guard;
mod listen;
mod page;
mod slots;

pub(crate) use follow::follow;
pub(super) use guard::{WebRights, local_origins, look_and_capture, web_only};
pub(super) use listen::{Io, Server};
pub(super) use page::{page, script};
pub(super) use slots::{Limits, Peer};
