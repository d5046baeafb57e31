// SPDX-License-Identifier: Apache-2.0
//! Captures are read and written, damaged ones too.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;
mod damaged;
mod round_trip;
mod whole_files;
