// SPDX-License-Identifier: Apache-2.0
//! The flow cache against a model, with real captures, and when it is full.
#![allow(clippy::unwrap_used, reason = "tests")]

mod captures;
mod eviction;
mod model;
