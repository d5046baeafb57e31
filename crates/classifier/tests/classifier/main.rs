// SPDX-License-Identifier: Apache-2.0
//! Compiled rules against a scan of all rules.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;
mod filter_sets;
mod prefilter;
mod random;
