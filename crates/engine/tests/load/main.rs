//! Rules under load, one test at a time: a scan, and rule changes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod rule_updates;
mod scan;
#[path = "../support/mod.rs"]
mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// One test at a time: each keeps a core busy.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}
