// SPDX-License-Identifier: Apache-2.0
//! `netvm doctor`: checks this machine's readiness. It reads kernel files, the files of the API for other machines, and
//! what etcd and a running netvmd say; it opens a socket and a memfd, and changes nothing.
//!
//! | level | meaning |
//! |---|---|
//! | `ok` | nothing to improve |
//! | `note` | netvm runs, but something is slower or unavailable |
//! | `warn` | netvm runs, but much slower than possible, or this user lacks privileges for a part of it |

use std::time::Duration;

use netvm_api::ServerArgs;
use serde::Serialize;

use crate::cli::DoctorArgs;
use crate::error::CliError;
use crate::output::{Output, StateColour};

mod cores;
mod devices;
mod etcd;
mod kernel;
mod listener;
mod memory;
mod remote;
mod root;
mod vms;

use root::Root;

/// Time limit for netvmd's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Nothing to improve.
    Ok,
    /// Something is slower or unavailable.
    Note,
    /// Something is much slower than possible, or needs more privileges.
    Warn,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was checked.
    pub name: &'static str,
    /// The result.
    pub level: Level,
    /// What the check found.
    pub found: String,
    /// The consequence for netvm.
    pub meaning: String,
    /// A command that improves it.
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

/// The findings of all checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Most important for packet rates first.
    pub checks: Vec<Check>,
    /// The worst level.
    pub worst: Level,
}

/// Checks this machine and prints the report.
pub async fn doctor(output: &Output, arguments: &DoctorArgs, server: &ServerArgs) -> Result<(), CliError> {
    let report = examine(arguments, server).await;
    if output.json { output.value(&report) } else { output.text(&draw(&report, output)) }
}

async fn examine(arguments: &DoctorArgs, server: &ServerArgs) -> Report {
    let DoctorArgs { config, etcd } = arguments;
    let root = Root::new("/");
    let mut checks = Vec::new();
    checks.extend(cores::check(&root));
    checks.extend(memory::check(&root));
    checks.extend(kernel::check(&root));
    checks.extend(devices::check(&root));
    checks.extend(vms::check(&root));
    checks.extend(remote::check(&root, config, !etcd.urls().is_empty()));
    checks.extend(etcd::check(etcd).await);
    checks.extend(running(server).await);
    let worst = checks.iter().map(|check| check.level).max().unwrap_or(Level::Ok);
    Report { checks, worst }
}

/// What a netvmd that runs on this machine lists as problems.
async fn running(server: &ServerArgs) -> Vec<Check> {
    let local = ServerArgs { host: None, ..server.clone() };
    let client = local.client().ok().filter(|client| client.socket().is_some());
    let Some(client) = client.map(|client| client.with_timeouts(ANSWER_TIMEOUT, ANSWER_TIMEOUT)) else {
        return Vec::new();
    };
    let problems = client.status().await.map(|status| status.problems).unwrap_or_default();
    let check = |problem: String| {
        Check::warn("netvmd's problem", netvm_text::line(&problem), "netvmd found it; it runs despite this")
            .command("netvm status")
    };
    problems.into_iter().map(check).collect()
}

/// The report as text: per check a line, its meaning, and a command that helps.
fn draw(report: &Report, output: &Output) -> String {
    let width = report.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for check in &report.checks {
        let (word, colour) = match check.level {
            Level::Ok => ("ok  ", StateColour::Good),
            Level::Note => ("note", StateColour::Warning),
            Level::Warn => ("warn", StateColour::Bad),
        };
        let word = output.paint(word, colour);
        text.push_str(&format!("{word}  {:width$}  {}\n", check.name, check.found));
        let indent = " ".repeat(width + 8);
        text.push_str(&format!("{indent}{}\n", check.meaning));
        text.extend(check.command.iter().map(|command| format!("{indent}$ {command}\n")));
    }
    let count = |level| report.checks.iter().filter(|check| check.level == level).count();
    text.push_str(&format!(
        "\n{} ok, {} notes, {} warnings. netvm runs despite these.\n",
        count(Level::Ok),
        count(Level::Note),
        count(Level::Warn)
    ));
    text
}
