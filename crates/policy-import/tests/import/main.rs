// SPDX-License-Identifier: Apache-2.0
//! Rule sets are read, and mean what their own programs say.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod classbench;
mod filter_sets;
mod kubernetes;
mod programs;
