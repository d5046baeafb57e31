// SPDX-License-Identifier: Apache-2.0
//! TAP devices with addresses and routes, in this network namespace and in others, and the events of interfaces there.

mod addressing;
mod announce;
pub mod container;
pub mod host;
mod link_events;
mod listening;
pub mod pair;
mod stale;

pub use addressing::{Addressing, LinkState, ManagedInterface};
pub use link_events::{LinkEvent, LinkEvents};
pub use listening::ListeningInterface;
