// SPDX-License-Identifier: Apache-2.0
//! A configuration of one file, or of a host's file and the shared fragments that it names.

use netvm_model::Host;
use toml::de::{DeTable, DeValue};

use crate::error::{ConfigError, sound};
use crate::syntax::finding::{Findings, Kind, Span};
use crate::syntax::merge::{toml, with};
use crate::syntax::names;
use crate::syntax::source::Part;
use crate::to_toml;

/// The key of a host's file that names fragments.
const FRAGMENTS: &str = "fragments";
/// Most fragments of a host.
const MAX_FRAGMENTS: usize = 64;
/// Largest sum of the lengths of a host's file and its fragments.
const MAX_BYTES: usize = 16 << 20;

/// A fragment that a file names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedFragment {
    /// The name by which the file knows it.
    pub key: String,
    /// What errors call it.
    pub name: String,
    /// Its text; `None`: there is no such fragment.
    pub text: Option<String>,
}

/// A configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// What errors call the host's own file.
    pub name: String,
    /// Its text.
    pub text: String,
    /// The fragments that it names, in its order; `None`: it may name none.
    pub fragments: Option<Vec<SharedFragment>>,
}

impl Document {
    /// A single file.
    #[must_use]
    pub fn file(name: &str, text: &str) -> Self {
        Self { name: name.to_owned(), text: text.to_owned(), fragments: None }
    }

    /// The configuration as the text of a single file.
    #[must_use]
    pub fn single(&self, host: &Host) -> String {
        match self.fragments.as_deref() {
            None | Some([]) => self.text.clone(),
            Some(fragments) => {
                let names: Vec<&str> = fragments.iter().map(|fragment| &*fragment.name).collect();
                format!("# {} with {}\n{}", self.name, names.join(", "), to_toml(host))
            }
        }
    }

    /// All texts, the host's own first.
    pub(crate) fn parts(&self) -> Vec<Part<'_>> {
        let own = Part { name: &self.name, text: &self.text };
        let fragments = self.fragments.iter().flatten();
        let fragments = fragments.map(|fragment| Part {
            name: &fragment.name,
            text: fragment.text.as_deref().unwrap_or_default(),
        });
        std::iter::once(own).chain(fragments).collect()
    }
}

/// The fragments that a host's file names.
///
/// # Errors
/// [`ConfigError::Invalid`] if they cannot be read.
pub fn fragment_names(name: &str, text: &str) -> Result<Vec<String>, ConfigError> {
    let findings = Findings::new(name, text);
    let mut root = toml(&findings, text, 0);
    let names = root.as_mut().map(|root| take_names(&findings, root));
    let names = names.map(|names| names.into_iter().map(|(name, _)| name).collect());
    sound(name, findings, names).map(|(names, _)| names)
}

/// One table of all files: fragments in their order, then the host's own. `None` if a file is no TOML.
pub(crate) fn read<'a>(findings: &Findings, document: &'a Document) -> Option<DeTable<'a>> {
    let bytes: usize = document.parts().iter().map(|part| part.text.len()).sum();
    if document.fragments.is_some() && bytes > MAX_BYTES {
        let message = format!("{bytes} bytes, and a configuration has at most {MAX_BYTES}");
        findings
            .note(Kind::TooMany, message)
            .at(0..0, "this and its fragments")
            .help("make it shorter")
            .keep();
        return None;
    }
    let mut own = toml(findings, &document.text, 0);
    let Some(fragments) = &document.fragments else { return own };
    let places = own.as_mut().map(|root| take_names(findings, root)).unwrap_or_default();
    let mut all = Some(DeTable::default());
    for (number, fragment) in fragments.iter().enumerate() {
        let place = places.iter().find(|(name, _)| *name == fragment.key).map(|(_, place)| place.clone());
        let Some(text) = &fragment.text else {
            findings
                .note(Kind::UnknownName, format!("no fragment `{}`", fragment.key))
                .at(place.unwrap_or_default(), "not in etcd")
                .help(format!("write it to {}, or remove it here", fragment.name))
                .keep();
            // Other errors would follow from this one.
            all = None;
            continue;
        };
        let mut part = toml(findings, text, findings.start(number + 1));
        if let Some((key, _)) = part.as_mut().and_then(|part| part.remove_entry(FRAGMENTS)) {
            findings
                .note(Kind::UnknownKey, "a fragment names no other fragments")
                .at(key.span(), "unknown here")
                .help("name them in the files of hosts")
                .keep();
        }
        all = all.zip(part).map(|(all, part)| with(findings, all, part));
    }
    all.zip(own).map(|(all, own)| with(findings, all, own))
}

/// Takes the names of fragments out of a host's file, each with its place.
fn take_names(findings: &Findings, root: &mut DeTable<'_>) -> Vec<(String, Span)> {
    let Some((_, list)) = root.remove_entry(FRAGMENTS) else { return Vec::new() };
    let bad = |kind, message: String, place: Span| {
        let help =
            "write `fragments = [\"base\"]`, with names of at most 64 of the characters A-Z a-z 0-9 _ - .";
        findings.note(kind, message).at(place, "invalid value").help(help).keep();
    };
    let DeValue::Array(items) = list.get_ref() else {
        bad(Kind::WrongType, "`fragments` has the wrong type".to_owned(), list.span());
        return Vec::new();
    };
    if items.is_empty() || items.len() > MAX_FRAGMENTS {
        bad(Kind::BadValue, format!("`fragments` has 1 to {MAX_FRAGMENTS} names"), list.span());
        return Vec::new();
    }
    let mut found: Vec<(String, Span)> = Vec::new();
    for item in items.iter() {
        match item.get_ref().as_str().filter(|text| names::any(text).is_ok()) {
            Some(name) if found.iter().any(|(known, _)| known == name) => {
                bad(Kind::Duplicate, format!("`fragments` names `{name}` twice"), item.span());
            }
            Some(name) => found.push((name.to_owned(), item.span())),
            None => bad(Kind::BadName, "`fragments` has what is no name".to_owned(), item.span()),
        }
    }
    found
}
