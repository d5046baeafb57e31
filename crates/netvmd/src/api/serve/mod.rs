//! Where the API is served: on its Unix socket, and if configured on a loopback address, read-only and with a token.

mod follow;
mod guard;
mod listen;
mod page;

pub(crate) use follow::follow;
pub(super) use guard::{Token, local_origins, look_and_capture, read_only};
pub(super) use listen::{Io, Limits, Server};
pub(super) use page::{page, script};
