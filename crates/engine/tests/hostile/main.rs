// SPDX-License-Identifier: Apache-2.0
//! NFs that attack: memory, descriptors, eventfds.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod eventfds;
mod nf;
#[path = "../support/mod.rs"]
mod support;
