// SPDX-License-Identifier: Apache-2.0
//! `netvm fleet status`.

use netvm_fleet::{HostState, HostStatus};
use serde::Serialize;

use super::contents::{Contents, KnownHost};
use crate::error::CliError;
use crate::output::{Output, StateColour, lines};

/// A host in JSON.
#[derive(Serialize)]
struct Shown<'a> {
    host: String,
    /// `null`: it does not report.
    status: Option<&'a HostStatus>,
    /// The revision with its configuration in etcd; 0: none.
    config: i64,
    /// Why it is held back.
    hold: Option<&'a str>,
}

/// Prints what each host runs.
pub(super) fn status(output: &Output, contents: &Contents) -> Result<(), CliError> {
    if output.json {
        let shown = contents.hosts.iter().map(|(host, known)| Shown {
            host: host.to_string(),
            status: known.status.as_ref(),
            config: known.config.as_ref().map_or(0, |(_, revision)| *revision),
            hold: known.hold.as_deref(),
        });
        return output.value(&shown.collect::<Vec<_>>());
    }
    if contents.hosts.is_empty() {
        return output.text("no hosts: `netvm fleet apply` writes their configurations to etcd\n");
    }
    let mut table = output.table(&["HOST", "STATE", ">WANTED", ">RUNNING", "SINCE", "VERSION", "PROBLEM"]);
    for (host, known) in &contents.hosts {
        let number = |revision: i64| if revision == 0 { String::new() } else { revision.to_string() };
        let cells = match &known.status {
            Some(status) => [
                state(output, status.state),
                number(status.wanted),
                number(status.running),
                status.since.clone(),
                status.version.clone(),
            ],
            None => [
                output.paint("absent", StateColour::Bad),
                number(known.config.as_ref().map_or(0, |(_, revision)| *revision)),
                String::new(),
                String::new(),
                String::new(),
            ],
        };
        table.add_row([host.to_string()].into_iter().chain(cells).chain([problem(known)]));
    }
    output.text(&lines(table))
}

fn state(output: &Output, state: HostState) -> String {
    let colour = match state {
        HostState::Running => StateColour::Good,
        HostState::Applying | HostState::Held | HostState::Unconfigured => StateColour::Warning,
        HostState::Refused | HostState::RolledBack | HostState::RestartNeeded => StateColour::Bad,
    };
    output.paint(state.word(), colour)
}

fn problem(known: &KnownHost) -> String {
    let Some(status) = &known.status else { return "it does not report".to_owned() };
    let error = status.error.as_ref().map(error);
    error
        .into_iter()
        .chain(status.problems.clone())
        .chain(status.clock_problem())
        .collect::<Vec<_>>()
        .join("; ")
}

/// An error with its place.
pub(super) fn error(error: &netvm_fleet::HostError) -> String {
    let message = &error.message;
    match (&error.file, error.line) {
        (Some(file), Some(line)) => format!("{file}:{line}: {message}"),
        _ => message.clone(),
    }
}
