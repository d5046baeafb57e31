// SPDX-License-Identifier: Apache-2.0
//! Flow monitoring without DPDK: which addresses exchange how much, under which names.
//!
//! ```text
//!  frames ──▶ Meter (packet thread) ──ring of records──▶ Exporter (its own thread) ──▶ IPFIX, eve lines, top talkers
//!              FlowTable: Null, DLeft, Tagged
//! ```
//!
//! - [`Meter`] counts bursts of frames into a [`FlowTable`] and makes a [`Record`] of each flow that ends or goes on
//!   for long. It allocates nothing and waits for nothing.
//! - [`export`] sends records as IPFIX messages (RFC 7011), both directions in one record (RFC 5103), and writes them
//!   as JSON lines like Suricata's.
//! - [`SpaceSaving`] finds heavy hitters within a known error.
//! - [`names`] reads DNS questions and TLS server names.
//!
//! Addresses are hostile: tables hash with random keys ([`netvm_wire::FlowHasher`]) and are bounded.

#![forbid(unsafe_code)]

mod any;
mod entry;
pub mod export;
mod key;
mod meter;
pub mod names;
mod sampler;
pub mod table;
#[cfg(test)]
mod testing;
mod top;

pub use any::{AnyMeter, TableKind};
pub use entry::{Amount, Decided, EndReason, Entry, Name, NameKind, Record, Sample, Verdict};
pub use key::{Endpoints, Key, Kind};
pub use meter::{Counts, Front, Meter, Settings};
pub use table::{DLeft, FlowTable, Null, SlotLookup, Slots, Tagged};
pub use top::{Hitter, SpaceSaving};
