//! Virtual routers between captures.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod changes;
mod forwarding;
mod many;
mod plan;
mod punt;
mod shared;
#[path = "../support/mod.rs"]
mod support;
mod urpf;
mod without_device;
