//! Why a configuration cannot be used.

use std::io;
use std::path::PathBuf;

use miette::Diagnostic;

use crate::finding::Finding;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {source}", path.display())]
    #[diagnostic(code("config::read"), help("name a TOML file that this user may read"))]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Something in it is wrong.
    #[error("{name} has {}", errors(*count))]
    #[diagnostic(code("config::invalid"))]
    Invalid {
        /// The name of the file.
        name: String,
        /// How many errors there are.
        count: usize,
        /// What was found, warnings too, in the order of the file; at most 50 of a kind.
        #[related]
        findings: Vec<Finding>,
    },
}

impl ConfigError {
    /// What was found in the file; empty when it could not be read.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        match self {
            Self::Read { .. } => &[],
            Self::Invalid { findings, .. } => findings,
        }
    }

    /// The error drawn for a terminal: every finding with its lines, then how many there are.
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
