//! From a file to a [`Host`]: read, then names resolved, then checked as a whole. A later step is taken only when the
//! ones before found nothing wrong, so that nobody is told of what follows from an error already shown.

use std::fs;
use std::path::Path;

use toml::de::DeTable;

use crate::check;
use crate::error::ConfigError;
use crate::finding::{Finding, Findings, Kind};
use crate::model::Host;
use crate::raw::RawHost;
use crate::read::Reader;
use crate::resolve::resolve;

/// Most syntax errors that are shown: one unclosed quote may cause many.
const MAX_SYNTAX_ERRORS: usize = 3;

/// A configuration that can be used.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What should be.
    pub host: Host,
    /// What is doubtful in it, in the order of the file.
    pub warnings: Vec<Finding>,
}

/// Reads a configuration file.
///
/// # Errors
/// [`ConfigError::Read`] when there is no such file or it is not for this user, [`ConfigError::Invalid`] with everything
/// that is wrong in it otherwise.
pub fn load(path: &Path) -> Result<Loaded, ConfigError> {
    let text =
        fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    parse(&path.display().to_string(), &text)
}

/// Reads a configuration from its text; `name` stands for the file in what is said about it.
///
/// # Errors
/// [`ConfigError::Invalid`] with everything that is wrong in it.
pub fn parse(name: &str, text: &str) -> Result<Loaded, ConfigError> {
    let findings = Findings::new(name, text);
    match read(&findings, text) {
        Some(host) if !findings.has_errors() => Ok(Loaded { host, warnings: findings.into_sorted() }),
        _ => Err(ConfigError::Invalid { name: name.to_owned(), findings: findings.into_sorted() }),
    }
}

fn read(findings: &Findings, text: &str) -> Option<Host> {
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in errors.iter().take(MAX_SYNTAX_ERRORS) {
        findings
            .note(Kind::Syntax, format!("not TOML: {}", error.message()))
            .at(error.span().unwrap_or(text.len()..text.len()), "here")
            .help("write texts in quotes, lists in brackets, and tables as [engine] or [[port]]")
            .keep();
    }
    if !errors.is_empty() {
        return None;
    }
    let raw = RawHost::read(&Reader::new(root.get_ref(), "the file", 0..0, findings));
    let host = resolve(findings, &raw);
    if findings.has_errors() {
        return None;
    }
    check::all(findings, &raw, &host);
    Some(host)
}
