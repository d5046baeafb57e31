// SPDX-License-Identifier: Apache-2.0
//! Network address translation: chooses what connections are translated to, and rewrites their packets.
//!
//! A translated connection has a reply tuple that is not the original one reversed, so one look-up finds both
//! directions as their packets arrive. Source translation maps an end (address and port) to the same end of a pool for
//! all destinations (RFC 4787 REQ-1), keeps all connections of an address on one address of the pool (REQ-2), never
//! gives one end to two (REQ-3), and keeps the port if it is free. No pool gives away an end that leads to a service
//! ([`Reserved`]). A pool's [`Allocation`] says which ports an address inside may get.

mod blocks;
mod deterministic;
mod edit;
mod ends;
mod mappings;
mod pool;
mod reserved;
mod rewrite;

pub use blocks::BlockEvent;
pub(crate) use blocks::{Among, Blocks, Place};
pub use deterministic::deterministic_inside_of;
pub(crate) use deterministic::share_of;
pub(crate) use edit::Edit;
pub use edit::Half;
pub(crate) use ends::{End, Ends, Inside};
pub use mappings::ContactTable;
pub(crate) use mappings::{Contact, Mappings};
pub use pool::{Allocation, Pool, Target, Translation};
pub(crate) use pool::{Offer, can_be_translated, count, has_free_ports, offer};
pub use reserved::{Reserved, ServicePorts};
pub use rewrite::{Change, Incomplete, Rewrite};
