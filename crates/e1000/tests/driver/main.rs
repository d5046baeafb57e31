// SPDX-License-Identifier: Apache-2.0
//! The card as a client and a driver see it: over its socket, with guest memory in a memfd.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod announce;
mod card;
mod client;
mod hostile;
mod msix;
mod random;
mod restart;
mod traffic;
