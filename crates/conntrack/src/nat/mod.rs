//! Network address translation: chooses what connections are translated to, and rewrites their packets.
//!
//! A translated connection has a reply tuple that is not the original one reversed, so one look-up finds both
//! directions as their packets arrive. Source translation maps an end (address and port) to the same end of a pool for
//! all destinations (RFC 4787 REQ-1), keeps all connections of an address on one address of the pool (REQ-2), never
//! gives one end to two (REQ-3), and keeps the port if it is free.

mod edit;
mod mappings;
mod pool;
mod rewrite;

pub use edit::Half;
pub(crate) use mappings::{End, Inside, Mappings};
pub use pool::{Pool, Target, Translation};
pub(crate) use pool::{address_of, can_be_translated, has_free_ports};
pub use rewrite::{Incomplete, Rewrite};
