// SPDX-License-Identifier: Apache-2.0
//! Connection tracking: by protocol, against a model and the kernel, and when it is flooded.
#![allow(clippy::unwrap_used, reason = "tests")]

mod decided;
mod events;
mod flood;
mod kernel;
mod model;
mod nat;
mod nat64;
mod others;
mod rfc;
mod rig;
mod saved;
mod sctp;
mod syn_proxy;
mod tcp;
mod workers;
