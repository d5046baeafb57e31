// SPDX-License-Identifier: Apache-2.0
//! One owner among the workers for each connection, in both directions.
//!
//! ```text
//!  packet ──▶ its ends ──▶ symmetric RSS hash ──▶ owner, by the indirection table
//!                └──▶ exceptions: connections whose other direction has another hash
//! ```
//!
//! - The hash is the one that NICs compute for symmetric RSS. It is linear: `hash(a ^ b) == hash(a) ^ hash(b)`. So an
//!   end of a pool that has the hash of the end inside gives both directions one owner, whatever the other end is. NAT
//!   chooses such ports where it can ([`Hash`]).
//! - A connection whose directions have other hashes is in [`Exceptions`], which all workers read without a lock.
//! - The mappings of sources are one table for all workers, behind a lock that is taken when a translated connection
//!   begins or ends, and for packets that may begin one ([`Shared`]).

mod exceptions;
mod hash;
mod owners;
mod shared;

pub(crate) use exceptions::Exceptions;
pub(crate) use hash::Hash;
pub use owners::FlowOwners;
pub use shared::Shared;
