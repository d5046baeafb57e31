//! From a file to a [`Host`] in three steps: the names are read, then the items, then the host is checked as a whole.
//! The checks run only if the file has no error so far, as other errors would follow from those.

use std::path::{Path, PathBuf};
use std::{fs, io};

use miette::Diagnostic;
use netvm_model::{Group, Host, RouterConfig, Rule, StaticRoute};
use toml::Spanned;
use toml::de::DeTable;

use crate::check;
use crate::keys::{Routes, Rules};
use crate::missing::Missing;
use crate::syntax::file_table::FileTable;
use crate::syntax::finding::{Finding, Findings, Kind};
use crate::syntax::names::{Names, read_rules};
use crate::syntax::source::Part;
use crate::syntax::table::{File, Numbered, Reader};

/// Most syntax errors to show: one unclosed quote may cause many.
const MAX_SYNTAX_ERRORS: usize = 3;

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

/// A valid configuration, with its warnings.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The host that it describes.
    pub host: Host,
    /// Warnings, in the order of the file.
    pub warnings: Vec<Finding>,
}

/// Reads a configuration file.
///
/// # Errors
/// [`ConfigError::Read`] when this user cannot read the file, [`ConfigError::Invalid`] with everything that is wrong in
/// it.
pub fn load(path: &Path) -> Result<Loaded, ConfigError> {
    let text =
        fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    parse(&path.display().to_string(), &text)
}

/// Reads a configuration from its text; errors call the file `name`.
///
/// # Errors
/// [`ConfigError::Invalid`] with everything that is wrong in it.
pub fn parse(name: &str, text: &str) -> Result<Loaded, ConfigError> {
    parse_on(name, text, |_| Vec::new())
}

/// As [`parse`], for one machine: if the text is valid, `look_up` returns the things that it names and the
/// machine lacks; these are errors, too.
///
/// # Errors
/// As for [`parse`].
pub fn parse_on(
    name: &str,
    text: &str,
    look_up: impl FnOnce(&Host) -> Vec<Missing>,
) -> Result<Loaded, ConfigError> {
    parse_parts(&[Part { name, text }], look_up)
}

/// As [`parse_on`], for several texts that are one configuration: the items of each follow those of the texts before.
/// An error is called by the name of the text that it is in; if it is about two, of the later one.
///
/// # Errors
/// As for [`parse`].
pub fn parse_parts(
    parts: &[Part<'_>],
    look_up: impl FnOnce(&Host) -> Vec<Missing>,
) -> Result<Loaded, ConfigError> {
    let findings = Findings::of_parts(parts);
    let texts: Vec<&str> = parts.iter().map(|part| part.text).collect();
    let host = read(&findings, &texts.join("\n"), look_up);
    let name = parts.first().map_or("", |part| part.name);
    let (host, warnings) = sound(name, findings, host)?;
    Ok(Loaded { host, warnings })
}

/// Reads rules to add to a host, and resolves names by that host: `[[rule]]` tables, or the lines of one rule without a
/// header. They are numbered from 0; [`netvm_model::assign_ids`] numbers them once they are in the host.
///
/// # Errors
/// [`ConfigError::Invalid`] with everything that is wrong in them.
pub fn parse_rules(name: &str, text: &str, host: &Host) -> Result<Vec<Rule>, ConfigError> {
    let findings = Findings::new(name, text);
    let rules = toml(&findings, text).map(|root| {
        let place = FileTable::new(root.get_ref(), 0..0);
        read_rules(&findings, &place);
        let (names, mut rules) = (Names::of(host), Rules(vec![Rule::numbered(0)]));
        let file = File { findings: &findings, names: &names };
        match (place.key("rule"), &mut rules.0[..]) {
            (None, [rule]) => Reader::new(place, "[[rule]]", &file).read(rule),
            _ => Reader::new(place, "the file", &file).read(&mut rules),
        }
        let mut labelled = Host { ports: host.ports.clone(), rules: rules.0, ..Host::default() };
        labelled.select_labels();
        labelled.rules
    });
    sound(name, findings, rules).map(|(rules, _)| rules)
}

/// Reads static routes to add to a router of a host: `routes`, as in its `[[router]]`.
///
/// # Errors
/// [`ConfigError::Invalid`] with everything that is wrong in them.
pub fn parse_routes(
    name: &str,
    text: &str,
    host: &Host,
    router: &RouterConfig,
) -> Result<Vec<StaticRoute>, ConfigError> {
    let findings = Findings::new(name, text);
    let routes = toml(&findings, text).map(|root| {
        let place = FileTable::new(root.get_ref(), 0..0);
        let (names, mut routes) = (Names::of(host), Routes { of: router, routes: Vec::new() });
        Reader::new(place, "the routes", &File { findings: &findings, names: &names }).read(&mut routes);
        routes.routes
    });
    sound(name, findings, routes).map(|(routes, _)| routes)
}

/// The result and the warnings, if there are no errors.
fn sound<T>(name: &str, findings: Findings, read: Option<T>) -> Result<(T, Vec<Finding>), ConfigError> {
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

/// Parses TOML; [`None`] if it is invalid.
fn toml<'a>(findings: &Findings, text: &'a str) -> Option<Spanned<DeTable<'a>>> {
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in errors.iter().take(MAX_SYNTAX_ERRORS) {
        findings
            .note(Kind::Syntax, format!("not TOML: {}", error.message()))
            .at(error.span().unwrap_or(text.len()..text.len()), "here")
            .help("write strings in quotes, lists in brackets, and tables as [engine] or [[port]]")
            .keep();
    }
    errors.is_empty().then_some(root)
}

fn read(findings: &Findings, text: &str, look_up: impl FnOnce(&Host) -> Vec<Missing>) -> Option<Host> {
    let root = toml(findings, text)?;
    let place = FileTable::new(root.get_ref(), 0..0);
    let names = Names::read(findings, &place);
    let mut host = Host::default();
    Reader::new(place.clone(), "the file", &File { findings, names: &names }).read(&mut host);
    if host.groups.is_empty() {
        host.groups.push(Group::default());
    }
    if findings.has_errors() {
        return None;
    }
    host.select_labels();
    host.add_punt_ports();
    host.add_pair_ports();
    host.add_implied_nat();
    check::all(findings, &place, &host);
    if !findings.has_errors() {
        look_up(&host).into_iter().for_each(|missing| missing.note(findings, &place));
    }
    Some(host)
}
