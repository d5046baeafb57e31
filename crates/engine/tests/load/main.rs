// SPDX-License-Identifier: Apache-2.0
//! Load, one test at a time: a scan and rule changes, ports that close, cores that change, and connections over several
//! workers.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod closing;
mod cores;
mod kernel_queues;
mod moves;
mod namespace;
mod rule_updates;
mod scan;
#[path = "../support/mod.rs"]
mod support;
mod two_workers;
mod workers;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// One test at a time: each keeps a core busy.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}
