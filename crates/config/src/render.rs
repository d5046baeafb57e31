//! A host as TOML text, and as whatever else serde writes.

use std::fmt::Write;

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::document::{Document, Item};
use crate::model::Host;

impl Host {
    /// The host as a configuration file with every key, defaults included. [`crate::parse`] of it gives the same host
    /// again, numbered in the order of the file.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let document = Document::new(self);
        let mut text = String::new();
        for (key, item) in document.tables() {
            let gap = if text.is_empty() { "" } else { "\n" };
            text.extend([gap, "[", key, "]\n"]);
            write_fields(&mut text, item);
        }
        for (key, items) in document.sections() {
            for item in items {
                text.push_str("\n[[");
                text.push_str(key);
                text.push_str("]]\n");
                write_fields(&mut text, item);
            }
        }
        text
    }
}

fn write_fields(text: &mut String, item: &Item) {
    for (key, value) in &item.fields {
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "{key} = {value}");
    }
}

/// Keys and values as in the TOML form.
impl Serialize for Host {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let document = Document::new(self);
        let mut map = serializer.serialize_map(None)?;
        for (key, item) in document.tables() {
            map.serialize_entry(key, item)?;
        }
        for (key, items) in document.sections() {
            map.serialize_entry(key, items)?;
        }
        map.end()
    }
}

impl Serialize for Item {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.fields.iter().map(|(key, value)| (key, value)))
    }
}
