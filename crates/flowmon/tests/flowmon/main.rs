// SPDX-License-Identifier: Apache-2.0
//! Meters against a model, and their records in a collector.
#![allow(clippy::unwrap_used, reason = "tests")]

mod collector;
mod common;
mod frames;
mod model;
mod nat;
