// SPDX-License-Identifier: Apache-2.0
//! Guests on vhost-user, honest and hostile.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod buffers;
mod dirty_log;
mod dma;
mod hostile {
    mod call;
    mod memory;
    mod message_order;
    mod random;
    mod socket;
}
mod moved;
mod qemu;
mod sent;
mod shapes;
#[path = "../support/mod.rs"]
mod support;
mod traffic;
