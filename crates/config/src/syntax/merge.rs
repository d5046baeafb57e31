// SPDX-License-Identifier: Apache-2.0
//! Parses texts, and makes one table of those of several. Lists of tables, such as `[[port]]`, are joined in the order
//! of the texts; tables are merged key by key. A key that two texts give different values is a contradiction.

use toml::de::{DeArray, DeString, DeTable, DeValue};

use crate::syntax::finding::{Findings, Kind, Span};
use crate::syntax::source::Part;
use crate::syntax::table::Spanned;

/// Most syntax errors to show: one unclosed quote may cause many.
const MAX_SYNTAX_ERRORS: usize = 3;

/// Parses TOML whose first byte has the place `start`; [`None`] if it is invalid.
pub(crate) fn toml<'a>(findings: &Findings, text: &'a str, start: usize) -> Option<DeTable<'a>> {
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in errors.iter().take(MAX_SYNTAX_ERRORS) {
        let span = error.span().unwrap_or(text.len()..text.len());
        findings
            .note(Kind::Syntax, format!("not TOML: {}", error.message()))
            .at(span.start + start..span.end + start, "here")
            .help("write strings in quotes, lists in brackets, and tables as [engine] or [[port]]")
            .keep();
    }
    let root = root.into_inner();
    errors.is_empty().then(|| if start == 0 { root } else { at(root, start) })
}

/// Moves a table's places, which begin with those of its text, to `start`.
fn at<'a>(table: DeTable<'a>, start: usize) -> DeTable<'a> {
    let moved = |span: Span| span.start + start..span.end + start;
    let entry = |(key, value): (toml::Spanned<_>, Spanned<'a>)| {
        let span = moved(key.span());
        (toml::Spanned::new(span, key.into_inner()), value_at(value, start))
    };
    table.into_iter().map(entry).collect()
}

fn value_at(value: Spanned<'_>, start: usize) -> Spanned<'_> {
    let Span { start: from, end } = value.span();
    let inner = match value.into_inner() {
        DeValue::Array(list) => DeValue::Array(list.into_iter().map(|item| value_at(item, start)).collect()),
        DeValue::Table(table) => DeValue::Table(at(table, start)),
        other => other,
    };
    toml::Spanned::new(from + start..end + start, inner)
}

/// The table of several texts; [`None`] if one of them is invalid.
pub(crate) fn all<'a>(findings: &Findings, parts: &[Part<'a>]) -> Option<DeTable<'a>> {
    let tables: Vec<Option<DeTable<'a>>> =
        (0..).zip(parts).map(|(number, part)| toml(findings, part.text, findings.start(number))).collect();
    tables.into_iter().try_fold(DeTable::default(), |all, part| Some(with(findings, all, part?)))
}

/// A table with the keys of another one.
pub(crate) fn with<'a>(findings: &Findings, mut all: DeTable<'a>, part: DeTable<'a>) -> DeTable<'a> {
    merge(findings, "the file", &mut all, part);
    all
}

/// Adds the keys of a table to another one of this title.
fn merge<'a>(findings: &Findings, title: &str, into: &mut DeTable<'a>, from: DeTable<'a>) {
    for (key, value) in from {
        let Some(known) = into.get_mut(key.get_ref().as_ref()) else {
            into.insert(key, value);
            continue;
        };
        let name = key.get_ref().as_ref();
        let (span, title_of_key) = (known.span(), nested(title, name));
        match (known.get_mut(), value) {
            (DeValue::Table(known), value) if value.get_ref().is_table() => {
                if let DeValue::Table(more) = value.into_inner() {
                    merge(findings, &title_of_key, known, more);
                }
            }
            (DeValue::Array(known), value)
                if is_tables(known) && value.get_ref().as_array().is_some_and(is_tables) =>
            {
                if let DeValue::Array(more) = value.into_inner() {
                    more.into_iter().for_each(|item| known.push(item));
                }
            }
            (value_before, value) => {
                let name = format!("`{name}` of {title}");
                contradiction(findings, &Known { name, value: value_before, span }, &value);
            }
        }
    }
}

fn nested(title: &str, key: &str) -> String {
    title.strip_suffix(']').map_or_else(|| format!("[{key}]"), |outer| format!("{outer}.{key}]"))
}

fn is_tables(list: &DeArray<'_>) -> bool {
    list.iter().all(|item| item.get_ref().is_table())
}

/// A value that is there already.
struct Known<'a> {
    /// Its key and table, in words.
    name: String,
    value: &'a DeValue<'a>,
    span: Span,
}

/// Reports two values of a key, unless they are the same.
fn contradiction(findings: &Findings, known: &Known<'_>, value: &Spanned<'_>) {
    if is_same(known.value, value.get_ref()) {
        return;
    }
    findings
        .note(Kind::Conflict, format!("two values for {}", known.name))
        .at(value.span(), "contradicts the other")
        .at(known.span.clone(), "given already")
        .help("keep one of them")
        .keep();
}

/// Whether two values are the same, wherever they are.
fn is_same(one: &DeValue<'_>, other: &DeValue<'_>) -> bool {
    match (one, other) {
        (DeValue::String(one), DeValue::String(other)) => one == other,
        (DeValue::Integer(one), DeValue::Integer(other)) => {
            (one.as_str(), one.radix()) == (other.as_str(), other.radix())
        }
        (DeValue::Float(one), DeValue::Float(other)) => one.as_str() == other.as_str(),
        (DeValue::Boolean(one), DeValue::Boolean(other)) => one == other,
        (DeValue::Datetime(one), DeValue::Datetime(other)) => one == other,
        (DeValue::Array(one), DeValue::Array(other)) => {
            let mut pairs = one.iter().zip(other.iter());
            one.len() == other.len() && pairs.all(|(one, other)| is_same(one.get_ref(), other.get_ref()))
        }
        (DeValue::Table(one), DeValue::Table(other)) => {
            let is_in = |(key, value): (&toml::Spanned<DeString<'_>>, &Spanned<'_>)| {
                other
                    .get(key.get_ref().as_ref())
                    .is_some_and(|other| is_same(value.get_ref(), other.get_ref()))
            };
            one.len() == other.len() && one.iter().all(is_in)
        }
        _ => false,
    }
}
