//! Guests on vhost-user, honest and hostile.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod call;
mod dma;
mod hostile;
mod memory;
mod message_order;
mod qemu;
mod shapes;
mod socket;
#[path = "../support/mod.rs"]
mod support;
mod traffic;
