// SPDX-License-Identifier: Apache-2.0
//! Memory that client and server share: regions, and the rings in them.
//!
//! ```text
//!  a ring:   0  cookie (4)   flags (2)   head (2)      flags bit 0: do not interrupt me, by the receiver
//!           64  tail (2)
//!          128  descriptors, 16 bytes each:
//!               flags (2)   region (2)   length (4)   offset (4)   metadata (4)      flags bit 0: the packet goes on
//! ```
//!
//! Numbers are in the order of the machine. Head and tail count descriptors, and wrap at 65,536.

mod own;
mod region;
mod ring;

pub(crate) use own::{Buffers, Own, Shape};
pub(crate) use region::{Region, Regions};
pub(crate) use ring::{Descriptor, Ring};
