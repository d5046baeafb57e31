//! From a file to a [`Host`]: read, then names resolved, then checked as a whole. A later step is taken only when the
//! ones before found nothing wrong, so that nobody is told of what follows from an error already shown.

use std::fs;
use std::path::Path;

use toml::Spanned;
use toml::de::DeTable;

use crate::check;
use crate::error::ConfigError;
use crate::finding::{Finding, Findings, Kind};
use crate::model::{Host, Rule};
use crate::raw::RawHost;
use crate::read::Reader;
use crate::resolve::{resolve, resolve_rules};

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
    let host = read(&findings, text);
    let (host, warnings) = sound(name, findings, host)?;
    Ok(Loaded { host, warnings })
}

/// Reads rules that are to be added to a host, whose names they use: `[[rule]]` tables, or the lines of one rule without
/// a header. They are numbered from 0; [`crate::assign_ids`] gives them numbers once they are in the host.
///
/// # Errors
/// [`ConfigError::Invalid`] with everything that is wrong in them.
pub fn parse_rules(name: &str, text: &str, host: &Host) -> Result<Vec<Rule>, ConfigError> {
    let findings = Findings::new(name, text);
    let rules = toml(&findings, text).map(|root| {
        let raw = RawHost::read_rules(&Reader::new(root.get_ref(), "[[rule]]", 0..0, &findings));
        resolve_rules(&findings, &raw, host)
    });
    sound(name, findings, rules).map(|(rules, _)| rules)
}

/// What was read and the warnings, if there is no error.
fn sound<T>(name: &str, findings: Findings, read: Option<T>) -> Result<(T, Vec<Finding>), ConfigError> {
    let count = findings.errors();
    match read {
        Some(read) if count == 0 => Ok((read, findings.into_sorted())),
        _ => Err(ConfigError::Invalid { name: name.to_owned(), count, findings: findings.into_sorted() }),
    }
}

/// Parses TOML; [`None`] if it is not.
fn toml<'a>(findings: &Findings, text: &'a str) -> Option<Spanned<DeTable<'a>>> {
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in errors.iter().take(MAX_SYNTAX_ERRORS) {
        findings
            .note(Kind::Syntax, format!("not TOML: {}", error.message()))
            .at(error.span().unwrap_or(text.len()..text.len()), "here")
            .help("write texts in quotes, lists in brackets, and tables as [engine] or [[port]]")
            .keep();
    }
    errors.is_empty().then_some(root)
}

fn read(findings: &Findings, text: &str) -> Option<Host> {
    let root = toml(findings, text)?;
    let raw = RawHost::read(&Reader::new(root.get_ref(), "the file", 0..0, findings));
    let host = resolve(findings, &raw);
    if findings.has_errors() {
        return None;
    }
    check::all(findings, &raw, &host);
    Some(host)
}
