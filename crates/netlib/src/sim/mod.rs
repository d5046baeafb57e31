// SPDX-License-Identifier: Apache-2.0
//! A simulator to test an NF without an engine: no daemon, no privileges, no DPDK.
//!
//! The NF runs on the same rings, memory and endpoint code as in production; the simulator replaces only the engine.
//! [`Simulator`] runs a [`crate::NetworkFunction`] in the test's own thread; [`Engine`] is its engine alone, for a loop
//! of your own. [`Process`] starts an NF's program, in any language, and speaks the engine's side of the attach
//! protocol with it.
//!
//! ```
//! use netlib::sim::Simulator;
//! use netlib::{NetworkFunction, Packet, PortId, Verdict};
//!
//! struct Hairpin;
//! impl NetworkFunction for Hairpin {
//!     fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
//!         packet.data_mut().swap(0, 6);
//!         Verdict::Port(packet.ingress())
//!     }
//! }
//!
//! let mut simulator = Simulator::new(&["lan", "wan"], &[])?;
//! let mut frame = [0u8; 60];
//! frame[6] = 2;
//! let outcome = simulator.inject(&mut Hairpin, PortId(1), &frame);
//! assert_eq!(outcome.verdict, Verdict::Port(PortId(1)));
//! assert_eq!(outcome.bytes[0], 2);
//! # Ok::<(), netlib::Error>(())
//! ```

pub mod clock;
mod host;
mod process;
mod simulator;

pub use process::{Process, ProcessError};
pub use simulator::{Engine, Simulator};

use std::time::Duration;

use crate::endpoint::Endpoint;
use crate::packet::Verdict;

/// The result of an NF's work on a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The NF's verdict.
    pub verdict: Verdict,
    /// The packet afterwards.
    pub bytes: Vec<u8>,
    /// The hash that would select a replica.
    pub hash: u8,
}

/// Sets the time that an endpoint's NF sees ([`crate::Outbox::now`]): for tests that have their own loop.
pub const fn set_time(endpoint: &mut Endpoint, time: Duration) {
    endpoint.set_time(time);
}

/// Longest packet that can be injected, in bytes.
pub const MAX_PACKET: usize = host::STRIDE as usize - host::HEADROOM as usize;
