// SPDX-License-Identifier: Apache-2.0
//! Memory that a peer shares and can write at any time: rings, control memory, tables, and packets of an NF.

mod memory;
mod nf;
mod ring;

pub use memory::{control_header, table};
pub use nf::nf_descriptors;
pub use ring::ring_peer;
