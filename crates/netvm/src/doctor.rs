//! What this machine can do for netvm. Looks at files of the kernel, opens a socket and a memfd, changes nothing.
//!
//! | level | means |
//! |---|---|
//! | `ok` | as good as it gets |
//! | `note` | netvm runs, and something is slower or not offered |
//! | `warn` | netvm runs, and is much slower than it should be, or a part of it needs more than this user has |

use serde::Serialize;

use crate::output::{Output, Tone};

mod cores;
mod devices;
mod kernel;
mod memory;
mod root;
mod vms;

use root::Root;

/// How good something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// As good as it gets.
    Ok,
    /// Could be better.
    Note,
    /// Should be better.
    Warn,
}

/// What was found out about one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The thing.
    pub name: &'static str,
    /// How good it is.
    pub level: Level,
    /// What is there.
    pub found: String,
    /// What that means for netvm.
    pub meaning: String,
    /// The command that would improve it.
    pub command: Option<String>,
}

impl Check {
    fn new(name: &'static str, level: Level, found: impl Into<String>, meaning: impl Into<String>) -> Self {
        Self { name, level, found: found.into(), meaning: meaning.into(), command: None }
    }

    fn ok(name: &'static str, found: impl Into<String>, meaning: impl Into<String>) -> Self {
        Self::new(name, Level::Ok, found, meaning)
    }

    fn note(name: &'static str, found: impl Into<String>, meaning: impl Into<String>) -> Self {
        Self::new(name, Level::Note, found, meaning)
    }

    fn warn(name: &'static str, found: impl Into<String>, meaning: impl Into<String>) -> Self {
        Self::new(name, Level::Warn, found, meaning)
    }

    fn command(mut self, command: impl Into<String>) -> Self {
        self.command = Some(command.into());
        self
    }
}

/// Everything that was found out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// In the order of their weight for packet rates.
    pub checks: Vec<Check>,
    /// The worst level.
    pub worst: Level,
}

/// Looks at this machine.
pub fn examine() -> Report {
    let root = Root::new("/");
    let mut checks = Vec::new();
    checks.extend(cores::check(&root));
    checks.extend(memory::check(&root));
    checks.extend(kernel::check(&root));
    checks.extend(devices::check(&root));
    checks.extend(vms::check(&root));
    let worst = checks.iter().map(|check| check.level).max().unwrap_or(Level::Ok);
    Report { checks, worst }
}

/// The report for people: a line for each thing, what it means, and what would help.
pub fn draw(report: &Report, output: &Output) -> String {
    let width = report.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for check in &report.checks {
        let (word, tone) = match check.level {
            Level::Ok => ("ok  ", Tone::Good),
            Level::Note => ("note", Tone::Doubtful),
            Level::Warn => ("warn", Tone::Bad),
        };
        let word = output.paint(word, tone);
        text.push_str(&format!("{word}  {:width$}  {}\n", check.name, check.found));
        let indent = " ".repeat(width + 8);
        text.push_str(&format!("{indent}{}\n", check.meaning));
        text.extend(check.command.iter().map(|command| format!("{indent}$ {command}\n")));
    }
    let count = |level| report.checks.iter().filter(|check| check.level == level).count();
    text.push_str(&format!(
        "\n{} ok, {} to note, {} to mend. None of it keeps netvm from running.\n",
        count(Level::Ok),
        count(Level::Note),
        count(Level::Warn)
    ));
    text
}
