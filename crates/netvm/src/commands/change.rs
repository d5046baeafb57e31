// SPDX-License-Identifier: Apache-2.0
//! `netvm plan`, `apply`, `check` and `config`.

use std::fs;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;
use std::time::SystemTime;

use netvm_api::{ApplyHow, ApplyReply, Client, Diagnostic, Plan, RevisionInfo, Severity, Status};
use netvm_config::{ConfigError, Finding, Kind, Loaded};
use serde::Serialize;

use crate::cli::ApplyArgs;
use crate::daemon;
use crate::error::CliError;
use crate::format::{duration, plural};
use crate::output::{Output, lines};

/// A configuration file that passed the checks that need no netvmd.
struct File {
    name: String,
    text: String,
    warnings: Vec<Finding>,
}

fn read(path: &Path) -> Result<File, CliError> {
    let name = path.display().to_string();
    let text =
        fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    let warnings = netvm_config::parse(&name, &text)?.warnings;
    Ok(File { name, text, warnings })
}

/// Prints what applying a file would change.
pub async fn plan(client: &Client, output: &Output, path: &Path) -> Result<(), CliError> {
    let file = read(path)?;
    let reply = client.plan(&file.name, &file.text).await?;
    if output.json {
        return output.value(&reply);
    }
    output.warnings(&file.warnings);
    output.of_machine(reply.warnings.iter().filter(|warning| is_of_machine(warning)));
    output.text(&reply.plan.to_string())?;
    output.text(&kept(&reply.live))
}

/// The ports beside the configuration file, which no file changes.
fn kept(live: &[String]) -> String {
    match live {
        [] => String::new(),
        _ => format!("stays, as its owner has added it beside the file: {}\n", live.join(", ")),
    }
}

/// Whether a warning is about this machine: the file alone does not show it.
fn is_of_machine(warning: &Diagnostic) -> bool {
    [Kind::Absent, Kind::SharedInterface].iter().any(|kind| kind.code() == warning.code)
}

/// Prints what a file changes and applies it.
pub async fn apply(client: &Client, output: &Output, path: &Path, how: ApplyArgs) -> Result<(), CliError> {
    let file = read(path)?;
    if !output.json {
        output.warnings(&file.warnings);
    }
    apply_file(client, output, &file, how).await
}

async fn apply_file(client: &Client, output: &Output, file: &File, how: ApplyArgs) -> Result<(), CliError> {
    let (File { name, text, .. }, ApplyArgs { yes, save, confirm: within }) = (file, how);
    let how = ApplyHow { save, confirm: within };
    if output.json {
        return output.value(&client.apply(name, text, how).await?);
    }
    let reply = client.plan(name, text).await?;
    output.of_machine(reply.warnings.iter().filter(|warning| is_of_machine(warning)));
    let plan = reply.plan;
    output.text(&plan.to_string())?;
    output.text(&kept(&reply.live))?;
    if plan.is_empty() && !save {
        // What the file asks for may not work now. This is only a hint.
        let status = client.status().await;
        return output.text(&status.map_or_else(|_| String::new(), |status| problems_of(&status)));
    }
    if plan.needs_restart() {
        return Err(CliError::NeedsRestart);
    }
    if !yes && io::stdin().is_terminal() && !confirm(output, "apply?")? {
        return Err(CliError::Declined);
    }
    let reply = client.apply(name, text, how).await?;
    output.text(&applied(&plan, &reply))
}

/// Prints the configurations that netvmd has applied.
pub async fn history(client: &Client, output: &Output) -> Result<(), CliError> {
    let history = client.history().await?;
    if output.json {
        return output.value(&history);
    }
    let mut table = output.table(&[">NUMBER", ">AGE", "HOW", "SOURCE"]);
    for revision in &history {
        table.add_row([
            revision.number.to_string(),
            age(revision),
            revision.how.clone(),
            revision.source.clone(),
        ]);
    }
    output.text(&lines(table))
}

/// How long ago netvmd applied a revision.
pub(super) fn age(revision: &RevisionInfo) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    duration(now.saturating_sub(revision.applied_at) as f64)
}

/// The problems that netvmd lists; empty if there are none.
pub(super) fn problems_of(status: &Status) -> String {
    if status.problems.is_empty() {
        return String::new();
    }
    let lines = status.problems.iter().map(|problem| format!("  {problem}\n"));
    std::iter::once("problems:\n".to_owned()).chain(lines).collect()
}

/// Applies a configuration from the history again.
pub async fn rollback(
    client: &Client,
    output: &Output,
    number: Option<u64>,
    how: ApplyArgs,
) -> Result<(), CliError> {
    let number = match number {
        Some(number) => number,
        None => client.history().await?.get(1).ok_or(CliError::NoRevision)?.number,
    };
    let revision = client.revision(number).await?;
    let source = &revision.info.source;
    let origin = source.strip_prefix("revision ").and_then(|rest| rest.split_once(" of "));
    let name = format!("revision {number} of {}", origin.map_or(source.as_str(), |(_, origin)| origin));
    let file = File { name, text: revision.toml, warnings: Vec::new() };
    apply_file(client, output, &file, how).await
}

/// The result of an apply. Another client may have applied something since the plan was shown.
fn applied(shown: &Plan, reply: &ApplyReply) -> String {
    let notice = if *shown == reply.plan {
        String::new()
    } else {
        format!("the configuration changed in the meantime; netvmd applied:\n{}", reply.plan)
    };
    let next = match (reply.confirm_within_s, &reply.saved) {
        (Some(seconds), _) => {
            format!("; netvmd goes back in {seconds} s unless you confirm: netvm config confirm")
        }
        (None, Some(path)) => format!(" and saved in {}", path.display()),
        (None, None) => String::new(),
    };
    format!("{notice}applied in {:.0} ms{next}\n", reply.took_ms)
}

/// Asks a question on the terminal.
pub(super) fn confirm(output: &Output, question: &str) -> Result<bool, CliError> {
    output.text(&format!("{question} [y/N] "))?;
    io::stdout().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Prints the running configuration.
pub async fn show_config(client: &Client, output: &Output) -> Result<(), CliError> {
    let reply = client.config().await?;
    match output {
        Output { json: true, .. } => output.value(&reply.config),
        Output { terminal: true, .. } => output.text(&reply.toml),
        // A file gets the text as it is.
        _ => output.raw(reply.toml.as_bytes()),
    }
}

/// Output of `check --json`.
#[derive(Serialize)]
struct Checked {
    /// Whether the file is valid.
    ok: bool,
    diagnostics: Vec<Diagnostic>,
}

/// Checks a file and, unless `offline`, that this machine has what it names.
pub fn check(output: &Output, path: &Path, offline: bool) -> Result<(), CliError> {
    let loaded = netvm_config::load(path);
    let missing = match &loaded {
        Ok(_) if !offline => daemon::check(path)?,
        _ => Vec::new(),
    };
    let (missing, others): (Vec<Diagnostic>, Vec<Diagnostic>) =
        missing.into_iter().partition(|diagnostic| diagnostic.severity == Severity::Error);
    let warnings: Vec<Diagnostic> = others.into_iter().filter(is_of_machine).collect();
    let is_missing = !missing.is_empty();
    if output.json && !matches!(loaded, Err(ConfigError::Read { .. })) {
        let findings = match &loaded {
            Ok(loaded) => &loaded.warnings[..],
            Err(error) => error.findings(),
        };
        let of_machine = warnings.iter().chain(&missing).cloned();
        let diagnostics = findings.iter().map(Diagnostic::from).chain(of_machine);
        let ok = loaded.is_ok() && !is_missing;
        output.value(&Checked { ok, diagnostics: diagnostics.collect() })?;
    }
    let loaded = loaded?;
    if !output.json {
        output.warnings(&loaded.warnings);
        output.of_machine(&warnings);
    }
    if is_missing {
        return Err(CliError::Missing { file: path.display().to_string(), diagnostics: missing });
    }
    if output.json { Ok(()) } else { output.text(&valid(path, &loaded, warnings.len())) }
}

/// The counts of a valid file's items.
fn valid(path: &Path, loaded: &Loaded, of_machine: usize) -> String {
    let host = &loaded.host;
    let parts = [
        plural(host.groups.len(), "group"),
        plural(host.ports.len(), "port"),
        plural(host.nfs.len(), "NF"),
        plural(host.chains.len(), "chain"),
        plural(host.rules.len(), "rule"),
    ];
    let warnings = match loaded.warnings.len() + of_machine {
        0 => String::new(),
        n => format!("; {}", plural(n, "warning")),
    };
    format!("{} is valid: {}{warnings}\n", path.display(), parts.join(", "))
}
