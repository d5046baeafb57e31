// SPDX-License-Identifier: Apache-2.0
//! Tables of the file. An item lists its keys once ([`Keys::keys`]), each with the form of its value ([`Form`]); a
//! [`Table`] reads the item from the file by that list, or writes it.
//!
//! A value that cannot be read becomes a finding and leaves the item as it was. The host is used only when there are no
//! errors, so that nothing has to be undone.

use netvm_model::Host;
use netvm_model::words::nearest;
use toml::Value;
use toml::de::DeValue;

use crate::syntax::file_table::FileTable;
use crate::syntax::finding::{Findings, Kind, Note, Span};
use crate::syntax::names::Names;

/// Keys that had another name in an earlier version, with their new name.
const RENAMED: [(&str, &str); 2] = [("cells", "buffers"), ("cell_size", "buffer_size")];

/// An item of the configuration.
pub(crate) trait Keys {
    /// Passes every key of the item to the table, in the order in which they are written. The item has its defaults
    /// when it is read.
    fn keys(&mut self, table: &mut Table<'_>);
}

/// A value with its place.
pub(crate) type Spanned<'a> = toml::Spanned<DeValue<'a>>;

/// How values of a type are read and written.
pub(crate) trait Form<T> {
    /// Reads a value; what is wrong with it becomes a finding.
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<T>;
    /// Writes a value, unless it is left out.
    fn write(&self, host: &Host, item: &mut T) -> Option<Value>;
}

/// An item that has a number.
pub(crate) trait Numbered {
    /// The item of that number with its defaults.
    fn numbered(number: usize) -> Self;
}

/// What all tables of a file share.
pub(crate) struct File<'a> {
    pub(crate) findings: &'a Findings,
    pub(crate) names: &'a Names,
}

/// What an item passes its keys to.
pub(crate) enum Table<'a> {
    /// Sets the item from the file.
    Read(Reader<'a>),
    /// Collects values, with the names of that host.
    Write(&'a Host, toml::Table),
    /// Collects the keys only.
    List(Vec<&'static str>),
}

impl<'a> Table<'a> {
    /// A key with its value and the value's form. The result is the place of a value that has been read.
    pub(crate) fn key<T>(
        &mut self,
        key: &'static str,
        item: &mut T,
        form: impl Form<T>,
    ) -> Option<ValueLocation<'a>> {
        match self {
            Self::Read(reader) => {
                reader.known.push(key);
                let value = reader.place.value(key)?;
                let at = ValueLocation {
                    key,
                    span: value.span(),
                    in_list: false,
                    or_list: false,
                    file: reader.file,
                };
                *item = form.read(&at, value)?;
                Some(at)
            }
            Self::Write(host, table) => {
                table.extend(form.write(host, item).map(|value| (key.to_owned(), value)));
                None
            }
            Self::List(keys) => {
                keys.push(key);
                None
            }
        }
    }

    /// A required key; `help` tells what to write.
    pub(crate) fn required<T>(
        &mut self,
        key: &'static str,
        help: &str,
        item: &mut T,
        form: impl Form<T>,
    ) -> Option<ValueLocation<'a>> {
        self.require(key, help);
        self.key(key, item, form)
    }

    /// Reports a key that is missing; `help` tells what to write.
    pub(crate) fn require(&mut self, key: &'static str, help: &str) {
        if let Self::Read(reader) = self
            && !reader.has(key)
        {
            reader.missing(key, help);
        }
    }

    /// The item's own name.
    pub(crate) fn name(
        &mut self,
        key: &'static str,
        example: &str,
        name: &mut String,
        form: impl Form<String>,
    ) -> Option<ValueLocation<'a>> {
        self.required(key, &format!("give it one, such as `{key} = \"{example}\"`"), name, form)
    }

    /// The table of the file, if the item is being read.
    pub(crate) const fn reader(&mut self) -> Option<&mut Reader<'a>> {
        match self {
            Self::Read(reader) => Some(reader),
            _ => None,
        }
    }

    /// Whether the file has a key; `written` when no file is read.
    pub(crate) fn has(&self, key: &str, written: bool) -> bool {
        match self {
            Self::Read(reader) => reader.has(key),
            _ => written,
        }
    }

    /// Lists keys that belong to another form of the item, the one with `form`.
    pub(crate) fn others(&mut self, form: &str, keys: impl FnOnce(&mut Table<'_>)) {
        if let Self::Read(reader) = self {
            reader.others.extend(list(keys).into_iter().map(|key| (key, form.to_owned())));
        }
    }

    /// Lists keys to ignore without an error, because the form of the item is unknown.
    pub(crate) fn allow(&mut self, keys: impl FnOnce(&mut Table<'_>)) {
        if let Self::Read(reader) = self {
            reader.known.extend(list(keys));
        }
    }
}

/// A value that is being read: its key, its place, and where to report findings.
pub(crate) struct ValueLocation<'a> {
    pub(crate) key: &'static str,
    pub(crate) span: Span,
    /// Whether it is an element of the key's list.
    in_list: bool,
    /// Whether the key takes a list of such values, too.
    or_list: bool,
    pub(crate) file: &'a File<'a>,
}

impl<'a> ValueLocation<'a> {
    /// The same for an element of the list.
    pub(crate) const fn element(&self, span: Span) -> Self {
        Self { span, in_list: true, ..*self }
    }

    /// The value of a key that takes a list of such values, too.
    pub(crate) fn or_list(&self) -> Self {
        Self { span: self.span.clone(), or_list: true, ..*self }
    }

    /// A finding about it.
    pub(crate) fn note(&self, kind: Kind, message: impl Into<String>) -> Note<'a> {
        self.file.findings.note(kind, message)
    }

    /// A finding for an invalid value.
    pub(crate) fn bad_value(&self, what: &str) -> Note<'a> {
        self.note(Kind::BadValue, format!("`{}` {what}", self.key)).at(self.span.clone(), "invalid value")
    }

    /// A finding for an invalid text.
    pub(crate) fn bad_text(&self, text: &str) -> Note<'a> {
        let verb = if self.in_list { "contain" } else { "be" };
        self.bad_value(&format!("cannot {verb} `{text}`"))
    }

    /// Reports a value of the wrong type.
    pub(crate) fn wrong_type<T>(&self, value: &DeValue<'_>, expected: &str) -> Option<T> {
        let found = match value {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "a whole number",
            DeValue::Float(_) => "a fraction",
            DeValue::Boolean(_) => "`true` or `false`",
            DeValue::Datetime(_) => "a date or time",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        let or_list = if self.or_list { ", or a list of them" } else { "" };
        self.note(Kind::WrongType, format!("`{}` has the wrong type", self.key))
            .at(self.span.clone(), format!("this is {found}"))
            .help(format!("it takes {expected}{or_list}"))
            .keep();
        None
    }
}

/// A table that is being read.
pub(crate) struct Reader<'a> {
    pub(crate) place: FileTable<'a>,
    /// Its title in messages, such as `[[port]]`.
    title: &'static str,
    pub(crate) file: &'a File<'a>,
    known: Vec<&'static str>,
    /// Missing required keys, with the remedy.
    missing: Vec<(&'static str, String)>,
    /// Keys of other forms of the item, each with the form.
    others: Vec<(&'static str, String)>,
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(place: FileTable<'a>, title: &'static str, file: &'a File<'a>) -> Self {
        Self { place, title, file, known: Vec::new(), missing: Vec::new(), others: Vec::new() }
    }

    /// Reads an item from the table. Keys that the item does not have become findings.
    pub(crate) fn read(self, item: &mut impl Keys) {
        let mut table = Table::Read(self);
        item.keys(&mut table);
        if let Table::Read(reader) = table {
            reader.finish();
        }
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.place.value(key).is_some()
    }

    /// The keys of a list that the table has.
    pub(crate) fn given(&self, keys: &[&'static str]) -> Vec<&'static str> {
        keys.iter().copied().filter(|key| self.has(key)).collect()
    }

    /// Reports a missing key.
    pub(crate) fn missing(&mut self, key: &'static str, help: impl Into<String>) {
        self.missing.push((key, help.into()));
    }

    /// A finding about the table.
    pub(crate) fn note(&self, kind: Kind, message: impl Into<String>) -> Note<'a> {
        self.file.findings.note(kind, message)
    }

    /// A finding at two keys that exclude each other.
    pub(crate) fn conflict(&self, first: &str, second: &str) -> Note<'a> {
        self.note(Kind::Conflict, format!("`{second}` and `{first}` in one {}", self.title))
            .at(self.place.key(second).unwrap_or_default(), "excludes the other")
            .at(self.place.key(first).unwrap_or_default(), "given already")
    }

    /// Reports keys that the item does not have, then missing keys.
    fn finish(self) {
        let mut meant = Vec::new();
        for (key, span) in self.place.keys().filter(|(key, _)| !self.known.contains(key)) {
            let forms: Vec<&str> =
                self.others.iter().filter(|(name, _)| *name == key).map(|(_, form)| form.as_str()).collect();
            if forms.is_empty() {
                meant.extend(self.unknown(key, span));
                continue;
            }
            self.note(Kind::Conflict, format!("`{key}` does not belong here"))
                .at(span, format!("goes only with {}", forms.join(" or ")))
                .help("remove it")
                .keep();
        }
        for (key, help) in self.missing.iter().filter(|(key, _)| !meant.contains(key)) {
            self.note(Kind::MissingKey, format!("{} has no `{key}`", self.title))
                .at(self.place.header.clone(), format!("`{key}` is missing here"))
                .help(help)
                .keep();
        }
    }

    /// Reports an unknown key and returns the key that may be meant.
    fn unknown(&self, key: &str, span: Span) -> Option<&'static str> {
        let renamed = RENAMED.iter().find(|(old, new)| *old == key && self.known.contains(new));
        let near = || nearest(key, self.known.iter().copied().chain(self.others.iter().map(|(key, _)| *key)));
        let (meant, help) = match (renamed, near()) {
            (Some((_, new)), _) => (Some(*new), format!("it is called `{new}` now")),
            (None, Some(near)) => (Some(near), format!("did you mean `{near}`?")),
            (None, None) => {
                let all: Vec<String> = self.known.iter().map(|key| format!("`{key}`")).collect();
                (None, format!("keys of {} are {}", self.title, all.join(", ")))
            }
        };
        self.note(Kind::UnknownKey, format!("unknown key `{key}` in {}", self.title))
            .at(span, "unknown")
            .help(help)
            .keep();
        meant
    }
}

/// An item as a table.
pub(crate) fn write(host: &Host, item: &mut impl Keys) -> toml::Table {
    let mut table = Table::Write(host, toml::Table::new());
    item.keys(&mut table);
    match table {
        Table::Write(_, table) => table,
        _ => toml::Table::new(),
    }
}

/// The keys that a closure passes to its table.
fn list(keys: impl FnOnce(&mut Table<'_>)) -> Vec<&'static str> {
    let mut table = Table::List(Vec::new());
    keys(&mut table);
    match table {
        Table::List(list) => list,
        _ => Vec::new(),
    }
}
