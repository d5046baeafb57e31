// SPDX-License-Identifier: Apache-2.0
//! Why a configuration cannot be used.

use std::io;
use std::path::PathBuf;

use miette::Diagnostic;

use crate::syntax::finding::{Finding, Findings};

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {source}", netvm_text::line(&path.to_string_lossy()))]
    #[diagnostic(code("config::read"), help("name a TOML file that this user may read"))]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The file has errors.
    #[error("{} has {}", netvm_text::line(name), errors(*count))]
    #[diagnostic(code("config::invalid"))]
    Invalid {
        /// The name of the file.
        name: String,
        /// How many errors there are.
        count: usize,
        /// The findings, warnings too, in the order of the file; at most 50 of a kind.
        #[related]
        findings: Vec<Finding>,
    },
}

impl ConfigError {
    /// The findings in the file; empty when it could not be read.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        match self {
            Self::Read { .. } => &[],
            Self::Invalid { findings, .. } => findings,
        }
    }

    /// The error for a terminal: every finding with its lines, then their number.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        let mut text: String = self.findings().iter().map(|finding| finding.render(colour) + "\n").collect();
        text.push_str(&self.to_string());
        if let Self::Read { .. } = self {
            text.extend(self.help().map(|help| format!("\n  help: {help}")));
        }
        text.push('\n');
        text
    }
}

fn errors(count: usize) -> String {
    match count {
        1 => "an error".to_owned(),
        n => format!("{n} errors"),
    }
}

/// The result and the warnings, if there are no errors.
pub(crate) fn sound<T>(
    name: &str,
    findings: Findings,
    read: Option<T>,
) -> Result<(T, Vec<Finding>), ConfigError> {
    let count = findings.errors();
    match read {
        Some(read) if count == 0 => Ok((read, findings.into_sorted())),
        _ => {
            let findings = findings.into_sorted();
            let first = findings.iter().find(|finding| !finding.is_warning());
            let name = first.map_or(name, Finding::file).to_owned();
            Err(ConfigError::Invalid { name, count, findings })
        }
    }
}
