// SPDX-License-Identifier: Apache-2.0
//! The demo's progress output, each line with the time since the start.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Interval between updates of the progress line.
const REDRAW: Duration = Duration::from_millis(100);

/// The progress output.
#[derive(Debug)]
pub struct ProgressLog {
    start: Instant,
    /// Write to standard error, as standard output gets JSON.
    to_stderr: bool,
    redrawn: Option<Instant>,
}

impl ProgressLog {
    /// Starts the clock.
    pub fn new(to_stderr: bool) -> Self {
        Self { start: Instant::now(), to_stderr, redrawn: None }
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Prints a line.
    pub fn say(&self, text: &str) {
        self.write(&format!("[{:4.1} s] {text}\n", self.elapsed().as_secs_f64()));
    }

    /// Prints a continuation of the previous line.
    pub fn add(&self, text: &str) {
        let lines: Vec<String> =
            text.lines().map(|line| format!("         {line}").trim_end().to_owned()).collect();
        self.write(&format!("{}\n", lines.join("\n")));
    }

    /// Updates the progress line on a terminal.
    pub fn progress(&mut self, text: impl FnOnce() -> String) {
        if self.is_terminal() && self.redrawn.is_none_or(|last| last.elapsed() >= REDRAW) {
            self.redrawn = Some(Instant::now());
            self.write(&format!("\r         {}", text()));
        }
    }

    /// Clears the progress line.
    pub fn end_progress(&mut self) {
        if self.redrawn.take().is_some() {
            self.write(&format!("\r{:60}\r", ""));
        }
    }

    fn is_terminal(&self) -> bool {
        if self.to_stderr { std::io::stderr().is_terminal() } else { std::io::stdout().is_terminal() }
    }

    fn write(&self, text: &str) {
        // Ignores a closed output, as after `| head`: everything must still be removed.
        let _ = if self.to_stderr {
            std::io::stderr().write_all(text.as_bytes())
        } else {
            let mut out = std::io::stdout();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        };
    }
}
