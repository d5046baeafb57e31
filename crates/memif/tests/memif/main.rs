// SPDX-License-Identifier: Apache-2.0
//! Ports against each other, and against peers that break rules.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod hostile;
mod pair;
mod raw;
mod support;
