// SPDX-License-Identifier: Apache-2.0
//! Plans, changes and errors.

use std::path::PathBuf;

use netvm_config::{Finding, Plan};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The running configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ConfigReply {
    /// As a TOML file with all keys, defaults included.
    pub toml: String,
    /// The same as JSON, keys as in the TOML form.
    #[schema(value_type = Object)]
    pub config: serde_json::Value,
}

/// The plan for a configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlanReply {
    /// The changes.
    #[schema(value_type = Object)]
    pub plan: Plan,
    /// Warnings about the new configuration.
    pub warnings: Vec<Diagnostic>,
    /// The ports beside the configuration file, which stay, with their owners.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub live: Vec<String>,
}

/// The changes that were applied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApplyReply {
    /// The changes.
    #[schema(value_type = Object)]
    pub plan: Plan,
    /// Warnings about the new configuration.
    pub warnings: Vec<Diagnostic>,
    /// How long it took, in milliseconds.
    pub took_ms: f64,
    /// The configuration file, if it was saved there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub saved: Option<PathBuf>,
    /// Seconds after which netvmd goes back unless the change is confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_within_s: Option<u64>,
}

/// How a configuration is applied: the query of the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApplyHow {
    /// Also write it to netvmd's configuration file: at once, or when it is confirmed.
    #[serde(default)]
    pub save: bool,
    /// Go back after this many seconds unless the change is confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm: Option<u64>,
}

/// A configuration that was in force, or is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevisionInfo {
    /// Its number.
    pub number: u64,
    /// The file that it came from.
    pub source: String,
    /// Why it came into force: `start`, `apply`, `reload` or `not confirmed`.
    pub how: String,
    /// When, in seconds since 1970.
    pub applied_at: u64,
}

/// A configuration that was in force, with its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Revision {
    /// What it is.
    #[serde(flatten)]
    pub info: RevisionInfo,
    /// The file.
    pub toml: String,
}

/// How the configuration file differs from what runs.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Drift {
    /// It does not.
    #[default]
    None,
    /// Applying it would change something.
    Changes {
        /// How many items.
        changes: u64,
    },
    /// It cannot be read, or is wrong.
    Unreadable {
        /// The reason.
        reason: String,
    },
}

/// The answer to a request that returns no data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Done {
    /// What netvmd did, in one sentence.
    pub message: String,
}

/// Whether a diagnostic prevents the use of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// It does.
    Error,
    /// It does not.
    Warning,
}

/// A finding in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Diagnostic {
    /// Whether it prevents the use of the configuration.
    pub severity: Severity,
    /// The kind of finding, such as `config::unknown_key`.
    pub code: String,
    /// The file.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// The message.
    pub message: String,
    /// What would help.
    pub help: Option<String>,
    /// The finding as drawn for a terminal, without colours.
    pub rendered: String,
}

impl From<&Finding> for Diagnostic {
    fn from(finding: &Finding) -> Self {
        let (line, column) = finding.position();
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Self {
            severity: if finding.is_warning() { Severity::Warning } else { Severity::Error },
            code: finding.kind().code().to_owned(),
            file: finding.file().to_owned(),
            line: number(line),
            column: number(column),
            message: finding.message().to_owned(),
            help: finding.remedy().map(str::to_owned),
            rendered: finding.render(false),
        }
    }
}

/// Why a request failed. The running configuration is unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiError {
    /// The error and its remedy.
    pub message: String,
    /// The errors in the configuration, if those are the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub diagnostics: Vec<Diagnostic>,
}

impl ApiError {
    /// An error without diagnostics.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), diagnostics: Vec::new() }
    }

    /// An error in a configuration.
    #[must_use]
    pub fn of_config(error: &netvm_config::ConfigError) -> Self {
        Self {
            message: error.to_string(),
            diagnostics: error.findings().iter().map(Diagnostic::from).collect(),
        }
    }
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

/// How netvmd is stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StopDaemon {
    /// Also remove what the next netvmd would take over: the namespaces of virtual routers.
    #[serde(default)]
    pub purge: bool,
}
