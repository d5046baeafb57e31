// SPDX-License-Identifier: Apache-2.0
//! Chains of real NF processes: forwarding, failures, groups, verdicts, statistics.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod apply;
mod failover;
mod flows;
mod forward;
mod gro;
mod groups;
mod order;
mod packets;
mod stamps;
#[path = "../support/mod.rs"]
mod support;
mod view;
