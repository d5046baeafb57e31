//! What the demo says while it goes, each line with the time since the start.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Time between two updates of a line that shows progress.
const REDRAW: Duration = Duration::from_millis(100);

/// The narrator.
#[derive(Debug)]
pub struct Story {
    start: Instant,
    /// Standard output is one JSON object: the story goes to standard error.
    aside: bool,
    redrawn: Option<Instant>,
}

impl Story {
    /// Starts now.
    pub fn new(aside: bool) -> Self {
        Self { start: Instant::now(), aside, redrawn: None }
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// One line of the story.
    pub fn say(&self, text: &str) {
        self.write(&format!("[{:4.1} s] {text}\n", self.elapsed().as_secs_f64()));
    }

    /// What belongs to the line before.
    pub fn add(&self, text: &str) {
        let lines: Vec<String> =
            text.lines().map(|line| format!("         {line}").trim_end().to_owned()).collect();
        self.write(&format!("{}\n", lines.join("\n")));
    }

    /// A line that is written over, where there is a terminal.
    pub fn progress(&mut self, text: impl FnOnce() -> String) {
        if self.is_terminal() && self.redrawn.is_none_or(|last| last.elapsed() >= REDRAW) {
            self.redrawn = Some(Instant::now());
            self.write(&format!("\r         {}", text()));
        }
    }

    /// Takes the line of progress away.
    pub fn end_progress(&mut self) {
        if self.redrawn.take().is_some() {
            self.write(&format!("\r{:60}\r", ""));
        }
    }

    fn is_terminal(&self) -> bool {
        if self.aside { std::io::stderr().is_terminal() } else { std::io::stdout().is_terminal() }
    }

    fn write(&self, text: &str) {
        // Nobody listens any more, as after `| head`: what was made has to be removed all the same.
        let _ = if self.aside {
            std::io::stderr().write_all(text.as_bytes())
        } else {
            let mut out = std::io::stdout();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        };
    }
}
