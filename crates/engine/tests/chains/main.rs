//! Chains of real NF processes: forwarding, failures, groups, verdicts, statistics.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod apply;
mod crash;
mod flow_verdicts;
mod forward;
mod groups;
mod hang;
mod order;
mod stamps;
mod standby;
#[path = "../support/mod.rs"]
mod support;
mod view;
