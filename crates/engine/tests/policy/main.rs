// SPDX-License-Identifier: Apache-2.0
//! Rules, switching and replicas in the whole engine.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod actions;
mod balance;
mod filter_sets;
mod loops;
mod prefilter;
mod sticky;
#[path = "../support/mod.rs"]
mod support;
mod switching;
mod traces;
