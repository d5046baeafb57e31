// SPDX-License-Identifier: Apache-2.0
//! Prints the counters at intervals.

use std::io::{self, Write};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde::Serialize;

use crate::counters::Counters;

const INTERVAL: Duration = Duration::from_millis(100);

/// A line of output. Counters start at 0 when the program starts.
#[derive(Debug, Serialize)]
pub struct Report {
    received: u64,
    bytes: u64,
    flows: u64,
    dropped: u64,
}

/// Starts a thread that prints a line every [`INTERVAL`] once the receiving thread is ready.
///
/// # Errors
/// The thread cannot be started.
pub fn start(counters: Arc<Counters>) -> io::Result<()> {
    let report = move || {
        loop {
            thread::sleep(INTERVAL);
            // An error means that the reader has ended.
            if counters.ready.get() > 0 && print(&counters).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("report".to_owned()).spawn(report).map(drop)
}

fn print(counters: &Counters) -> io::Result<()> {
    let report = Report {
        received: counters.received.get(),
        bytes: counters.bytes.get(),
        flows: counters.flows.get(),
        dropped: counters.dropped.get(),
    };
    let mut line = serde_json::to_string(&report).map_err(io::Error::other)?;
    line.push('\n');
    // A single write, so that a guest's kernel log cannot interrupt the line on the console.
    io::stdout().lock().write_all(line.as_bytes())
}
