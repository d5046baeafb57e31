//! Virtual routers between captures.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod forwarding;
mod plan;
#[path = "../support/mod.rs"]
mod support;
