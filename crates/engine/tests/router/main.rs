// SPDX-License-Identifier: Apache-2.0
//! Virtual routers between captures.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod changes;
mod forwarding;
mod many;
mod plan;
mod ports;
mod punt;
#[path = "../support/mod.rs"]
mod support;
mod traces;
mod urpf;
