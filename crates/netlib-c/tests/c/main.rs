// SPDX-License-Identifier: Apache-2.0
//! The functions of libnetlib, called as C would.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod abi;
mod sim;
