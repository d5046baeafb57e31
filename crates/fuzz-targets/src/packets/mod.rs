// SPDX-License-Identifier: Apache-2.0
//! What senders of packets can do.

mod connections;
mod frames;
mod multicast;
mod nat64;
mod neighbours;
mod vxlan;

pub use connections::connections;
pub use frames::{flow_names, wire_parse};
pub use multicast::multicast;
pub use nat64::nat64;
pub use neighbours::neighbours;
pub use vxlan::vxlan;
