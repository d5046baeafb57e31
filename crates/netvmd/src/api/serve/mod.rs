//! Where the API is served: on its Unix socket, and if configured on a loopback address, with a token, for reading and, if
//! that is configured, for captures.

mod follow;
mod guard;
mod listen;
mod page;

pub(crate) use follow::follow;
pub(super) use guard::{WebRights, local_origins, look_and_capture, web_only};
pub(super) use listen::{Io, Limits, Server};
pub(super) use page::{page, script};
