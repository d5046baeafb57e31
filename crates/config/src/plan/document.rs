// SPDX-License-Identifier: Apache-2.0
//! A host as TOML, with every key. Plans compare hosts in this form, so that they use the keys of
//! the file.

use std::fmt::Write;

use netvm_model::Host;
use toml::{Table, Value};

use crate::syntax::table::write;

/// The tables of a host, in the order of the file.
pub(crate) fn document(host: &Host) -> Table {
    document_of(host, host.clone())
}

/// The tables of a part of a host, with the names of the host.
fn document_of(host: &Host, mut part: Host) -> Table {
    part.ports.retain(|port| !host.is_implied(port.id));
    part.nat.retain(|rule| !rule.is_implied());
    write(host, &mut part)
}

/// The host as a configuration file with every key, defaults included. [`crate::parse`] of it gives the same host
/// again, numbered in the order of the file.
#[must_use]
pub fn to_toml(host: &Host) -> String {
    to_toml_of(host, host.clone())
}

/// A `part` of a host as [`to_toml`] writes it: the host without some of its items, which the others may name.
#[must_use]
pub fn to_toml_of(host: &Host, part: Host) -> String {
    let mut text = String::new();
    for (key, value) in &document_of(host, part) {
        match value {
            Value::Array(items) => {
                items.iter().for_each(|item| write_table(&mut text, &format!("[[{key}]]"), item));
            }
            table => write_table(&mut text, &format!("[{key}]"), table),
        }
    }
    text
}

/// Appends a table with its header.
pub(crate) fn write_table(text: &mut String, header: &str, table: &Value) {
    let gap = if text.is_empty() { "" } else { "\n" };
    text.extend([gap, header, "\n"]);
    for (key, value) in table.as_table().into_iter().flatten() {
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "{key} = {value}");
    }
}
