// SPDX-License-Identifier: Apache-2.0
//! A port that is added to a running host, and the rules that come with it.

use toml::{Table, Value};

use crate::error::ConfigError;
use crate::plan::write_table;
use crate::syntax::finding::{Findings, Kind};

/// The keys of the tables that a fragment may have.
const TABLES: [&str; 2] = ["port", "rule"];

/// One `[[port]]` and any number of `[[rule]]`, as the text that [`crate::parse_parts`] reads beside others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The name of the port.
    pub port: String,
    /// The names of the rules, in their order.
    pub rules: Vec<String>,
    /// The tables, each with its header.
    pub toml: String,
}

/// Reads a fragment: a `[[port]]` table and `[[rule]]` tables, or the lines of one port without a header. Rules without
/// a name are called `PREFIX.1`, `PREFIX.2`. What the tables say is not checked here, but beside the others.
///
/// # Errors
/// [`ConfigError::Invalid`] if it is not TOML, has other tables, or not one port with a name.
pub fn fragment(name: &str, text: &str, prefix: &str) -> Result<Fragment, ConfigError> {
    let findings = Findings::new(name, text);
    match read(&findings, text, prefix) {
        Some(fragment) => Ok(fragment),
        None => {
            let (name, count) = (name.to_owned(), findings.errors());
            Err(ConfigError::Invalid { name, count, findings: findings.into_sorted() })
        }
    }
}

/// The fragment; on `None` there is a finding.
fn read(findings: &Findings, text: &str, prefix: &str) -> Option<Fragment> {
    let refuse = |kind, message: String, help: &str| {
        findings.note(kind, message).at(0..text.len().min(1), "").help(help).keep();
        None
    };
    let root: Table = match text.parse() {
        Ok(root) => root,
        Err(error) => {
            let message = format!("not TOML: {}", error.message());
            let place = error.span().unwrap_or(0..0);
            let help = "write strings in quotes, lists in brackets, and tables as [[port]] or [[rule]]";
            findings.note(Kind::Syntax, message).at(place, "here").help(help).keep();
            return None;
        }
    };
    let is_port_alone = !TABLES.iter().any(|table| root.get(*table).is_some_and(Value::is_array));
    let (ports, rules) = if is_port_alone {
        (vec![Value::Table(root)], Vec::new())
    } else {
        let help = "give one [[port]] and its [[rule]] tables; all else is the configuration file's";
        if let Some(other) = root.keys().find(|key| !TABLES.contains(&key.as_str())) {
            return refuse(Kind::UnknownKey, format!("`{other}` cannot be added with a port"), help);
        }
        let list = |key| root.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
        (list("port"), list("rule"))
    };
    let [Value::Table(port)] = &ports[..] else {
        let help = "add ports one by one: each is kept and removed by itself";
        return refuse(Kind::TooMany, format!("{} ports instead of one", ports.len()), help);
    };
    let Some(own) = port.get("name").and_then(Value::as_str) else {
        let help = "give it one, such as `name = \"web\"`";
        return refuse(Kind::MissingKey, "the port has no `name`".to_owned(), help);
    };
    let own = own.to_owned();
    let (mut names, mut toml) = (Vec::new(), String::new());
    write_table(&mut toml, "[[port]]", &Value::Table(port.clone()));
    for (number, rule) in (1..).zip(rules) {
        let Value::Table(mut rule) = rule else {
            return refuse(Kind::WrongType, "`rule` is not a list of tables".to_owned(), "write [[rule]]");
        };
        let named = rule.get("name").and_then(Value::as_str).map(str::to_owned);
        let called = named.unwrap_or_else(|| format!("{prefix}.{number}"));
        rule.insert("name".to_owned(), Value::String(called.clone()));
        names.push(called);
        write_table(&mut toml, "[[rule]]", &Value::Table(rule));
    }
    Some(Fragment { port: own, rules: names, toml })
}
