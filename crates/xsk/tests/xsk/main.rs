// SPDX-License-Identifier: Apache-2.0
//! AF_XDP sockets on veth pairs, each test in a network namespace of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod common;
mod errors;
mod lifecycle;
mod rings;
mod traffic;
mod veth;
