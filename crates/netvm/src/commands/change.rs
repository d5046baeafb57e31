//! `netvm plan`, `apply`, `check` and `config show`.

use std::fs;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;

use netvm_api::{Client, Diagnostic, Plan, Severity};
use netvm_config::{ConfigError, Finding, Loaded};
use serde::Serialize;

use crate::daemon;
use crate::error::CliError;
use crate::format::plural;
use crate::output::Output;

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
    output.text(&reply.plan.to_string())
}

/// Prints what a file changes and applies it.
pub async fn apply(client: &Client, output: &Output, path: &Path, yes: bool) -> Result<(), CliError> {
    let file = read(path)?;
    if output.json {
        return output.value(&client.apply(&file.name, &file.text).await?);
    }
    output.warnings(&file.warnings);
    let plan = client.plan(&file.name, &file.text).await?.plan;
    output.text(&plan.to_string())?;
    if plan.is_empty() {
        return Ok(());
    }
    if plan.needs_restart() {
        return Err(CliError::NeedsRestart);
    }
    if !yes && io::stdin().is_terminal() && !confirm(output, "apply?")? {
        return Err(CliError::Declined);
    }
    let reply = client.apply(&file.name, &file.text).await?;
    output.text(&applied(&plan, &reply.plan, reply.took_ms))
}

/// The result of an apply. Another client may have applied something since the plan was shown.
fn applied(shown: &Plan, done: &Plan, took_ms: f64) -> String {
    let notice = if shown == done {
        String::new()
    } else {
        format!("the configuration changed in the meantime; netvmd applied:\n{done}")
    };
    format!("{notice}applied in {took_ms:.0} ms\n")
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
    if output.json { output.value(&reply.config) } else { output.text(&reply.toml) }
}

/// Output of `check --json`.
#[derive(Serialize)]
struct Checked {
    /// Whether the file is valid.
    ok: bool,
    diagnostics: Vec<Diagnostic>,
}

/// Checks a file, and unless `offline` also looks up on this machine what it names.
pub fn check(output: &Output, path: &Path, offline: bool) -> Result<(), CliError> {
    let loaded = netvm_config::load(path);
    let missing = match &loaded {
        Ok(_) if !offline => daemon::check(path)?,
        _ => Vec::new(),
    };
    let missing: Vec<Diagnostic> =
        missing.into_iter().filter(|diagnostic| diagnostic.severity == Severity::Error).collect();
    let is_missing = !missing.is_empty();
    if output.json && !matches!(loaded, Err(ConfigError::Read { .. })) {
        let findings = match &loaded {
            Ok(loaded) => &loaded.warnings[..],
            Err(error) => error.findings(),
        };
        let diagnostics = findings.iter().map(Diagnostic::from).chain(missing.iter().cloned());
        let ok = loaded.is_ok() && !is_missing;
        output.value(&Checked { ok, diagnostics: diagnostics.collect() })?;
    }
    let loaded = loaded?;
    if !output.json {
        output.warnings(&loaded.warnings);
    }
    if is_missing {
        return Err(CliError::Missing { file: path.display().to_string(), diagnostics: missing });
    }
    if output.json { Ok(()) } else { output.text(&valid(path, &loaded)) }
}

/// The counts of a valid file's items.
fn valid(path: &Path, loaded: &Loaded) -> String {
    let host = &loaded.host;
    let parts = [
        plural(host.groups.len(), "group"),
        plural(host.ports.len(), "port"),
        plural(host.nfs.len(), "NF"),
        plural(host.chains.len(), "chain"),
        plural(host.rules.len(), "rule"),
    ];
    let warnings = match loaded.warnings.len() {
        0 => String::new(),
        n => format!("; {}", plural(n, "warning")),
    };
    format!("{} is valid: {}{warnings}\n", path.display(), parts.join(", "))
}
