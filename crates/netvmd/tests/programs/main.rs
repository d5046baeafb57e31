//! Programs that know nothing of netvm are hops of chains.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;
mod failures;
mod foreign;
mod instances;
mod page;
mod pass;
mod site;
