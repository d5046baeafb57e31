// SPDX-License-Identifier: Apache-2.0
//! Write a network function (NF) for netvm.
//!
//! An NF is a process (or the same program in a VM) that takes packets from rings in shared memory, reads and changes
//! them in place, and returns a [`Verdict`] for each. It needs no DPDK and copies nothing: a packet's bytes stay in the
//! memory region of the NF's trust group from the first hop to the last.
//!
//! ```no_run
//! use netlib::{NetworkFunction, Packet, Verdict};
//!
//! /// Drops packets that are not longer than a limit.
//! struct LongOnly(usize);
//!
//! impl NetworkFunction for LongOnly {
//!     fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
//!         if packet.data().len() > self.0 { Verdict::Next } else { Verdict::Drop }
//!     }
//! }
//!
//! fn main() -> Result<(), netlib::Error> {
//!     netlib::run(&netlib::Options::new("long-only"), |_thread| LongOnly(100))
//! }
//! ```
//!
//! There are three ways to use it: [`run`] with a [`NetworkFunction`] (callback per packet or per burst); [`attach`]
//! and [`Endpoint::receive`] for programs with their own loop; and [`sim`] to test an NF without an engine: its code
//! with [`sim::Simulator`], its program with [`sim::Process`].

mod attach;
mod endpoint;
mod function;
mod ivshmem;
mod packet;
mod rx_rings;
mod shared;
pub mod sim;
mod tx_rings;

pub use attach::{Attachment, Error, Options, attach};
pub use endpoint::{BURST, Burst, Endpoint, Outbox, OwnedPacket, ThreadContext};
pub use function::{NetworkFunction, run, run_attached};
pub use ivshmem::IvshmemError;
pub use netvm_attach::messages::{MAX_PAYLOAD, Message};
pub use netvm_attach::{FD_VARIABLE, PATH_VARIABLE, ROLE_VARIABLE, THREADS_VARIABLE};
pub use netvm_ids::{ChainId, MAX_THREADS, PortId, RoleId};
pub use netvm_region::MAX_COUNTERS;
pub use packet::{Idle, Packet, Steer, Verdict};
pub use shared::messages::{MessageError, Outgoing};
pub use shared::{Stop, Waiting};
pub use sim::clock;
