// SPDX-License-Identifier: Apache-2.0
//! Headers are read, rewritten and made into keys.
#![allow(clippy::unwrap_used, reason = "tests")]

mod against_etherparse;
#[path = "../common/mod.rs"]
mod common;
mod key_hash;
mod keys;
mod parsing;
mod rewriting;
