// SPDX-License-Identifier: Apache-2.0
//! From a file to a [`Host`] in three steps: the names are read, then the items, then the host is checked as a whole.
//! The checks run only if the file has no error so far, as other errors would follow from those.

use std::fs;
use std::path::Path;

use netvm_model::{Group, Host, RouterConfig, Rule, StaticRoute};
use toml::de::DeTable;

use crate::check;
use crate::document::{self, Document};
use crate::error::{ConfigError, sound};
use crate::keys::{Routes, Rules};
use crate::missing::Missing;
use crate::syntax::file_table::FileTable;
use crate::syntax::finding::{Finding, Findings};
use crate::syntax::merge::{self, toml};
use crate::syntax::names::{Names, read_rules};
use crate::syntax::source::Part;
use crate::syntax::table::{File, Numbered, Reader};

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
    let root = merge::all(&findings, parts);
    let host = root.and_then(|root| read(&findings, &root, look_up));
    let name = parts.first().map_or("", |part| part.name);
    let (host, warnings) = sound(name, findings, host)?;
    Ok(Loaded { host, warnings })
}

/// As [`parse_on`], of a file and its fragments. An error is called by the name of the text that it is in, also if it
/// is about something that the machine lacks.
///
/// # Errors
/// [`ConfigError::Invalid`] with everything that is wrong in them.
pub fn parse_document(
    document: &Document,
    look_up: impl FnOnce(&Host) -> Vec<Missing>,
) -> Result<Loaded, ConfigError> {
    let findings = Findings::of_parts(&document.parts());
    let root = document::read(&findings, document);
    let host = root.and_then(|root| read(&findings, &root, look_up));
    let (host, warnings) = sound(&document.name, findings, host)?;
    Ok(Loaded { host, warnings })
}

/// Reads rules to add to a host, and resolves names by that host: `[[rule]]` tables, or the lines of one rule without a
/// header. They are numbered from 0; [`netvm_model::assign_ids`] numbers them once they are in the host.
///
/// # Errors
/// [`ConfigError::Invalid`] with everything that is wrong in them.
pub fn parse_rules(name: &str, text: &str, host: &Host) -> Result<Vec<Rule>, ConfigError> {
    let findings = Findings::new(name, text);
    let rules = toml(&findings, text, 0).map(|root| {
        let place = FileTable::new(&root, 0..0);
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
    let routes = toml(&findings, text, 0).map(|root| {
        let place = FileTable::new(&root, 0..0);
        let (names, mut routes) = (Names::of(host), Routes { of: router, routes: Vec::new() });
        Reader::new(place, "the routes", &File { findings: &findings, names: &names }).read(&mut routes);
        routes.routes
    });
    sound(name, findings, routes).map(|(routes, _)| routes)
}

fn read<'a>(
    findings: &Findings,
    root: &'a DeTable<'a>,
    look_up: impl FnOnce(&Host) -> Vec<Missing>,
) -> Option<Host> {
    let place = FileTable::new(root, 0..0);
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
