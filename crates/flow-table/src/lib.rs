// SPDX-License-Identifier: Apache-2.0
//! The parts of bounded tables of flows: [`Table`] and [`Array`], memory that is set aside once, and [`Tags`], which
//! tell in 16 bytes where a key may be.
//!
//! The flow cache and the flow monitor's table are made of them. These tables differ in where a key may be (one set of
//! eight, or the emptier of two), and in what they evict when there is no room (a cold flow by CLOCK, or the flow that
//! was silent for longest, of which a record is written). A second set costs the cache a line for each packet, and a
//! single one costs the monitor records, so neither can be the other.
//!
//! Three more tables of netvm age and are bounded, and share nothing with these: in the forwarding database and the
//! table of sticky balancing, an entry is a word that threads change by compare-and-swap; NFs' tables keep the exact
//! order of use, for keys of any type.

mod memory;
mod table;
mod tags;

pub use memory::NoMemory;
pub use table::{Array, Table};
pub use tags::{Tags, WAYS};
