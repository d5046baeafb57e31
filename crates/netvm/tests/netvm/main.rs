// SPDX-License-Identifier: Apache-2.0
//! netvm, with a server of canned answers where it needs netvmd.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod alone;
mod answers;
#[path = "../common/mod.rs"]
mod common;
mod connections;
mod follow;
mod imports;
mod remote;
mod router;
mod served;
mod vm;
