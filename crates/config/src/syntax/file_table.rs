// SPDX-License-Identifier: Apache-2.0
//! Places in the parsed file. The model holds no places: an error that needs one looks it up here, by key.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::syntax::finding::Span;

/// A table of the file, and its header.
#[derive(Clone)]
pub(crate) struct FileTable<'a> {
    table: &'a DeTable<'a>,
    pub(crate) header: Span,
}

impl<'a> FileTable<'a> {
    pub(crate) const fn new(table: &'a DeTable<'a>, header: Span) -> Self {
        Self { table, header }
    }

    /// The value of a key.
    pub(crate) fn value(&self, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.table.get(key)
    }

    /// All keys.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&'a str, Span)> + use<'a> {
        self.table.keys().map(|key| (key.get_ref().as_ref(), key.span()))
    }

    /// The place of a key, without its value.
    pub(crate) fn key(&self, key: &str) -> Option<Span> {
        self.table.get_key_value(key).map(|(key, _)| key.span())
    }

    /// The place of a key's value; of the header if the table does not have the key.
    pub(crate) fn of(&self, key: &str) -> Span {
        self.value(key).map_or_else(|| self.header.clone(), Spanned::span)
    }

    /// The place of an item as a whole: its name; its header if it has none.
    pub(crate) fn item(&self) -> Span {
        let name = ["name", "role"].into_iter().find_map(|key| self.value(key));
        name.map_or_else(|| self.header.clone(), Spanned::span)
    }

    /// The place of an element of a list, or of the value if it is no list.
    pub(crate) fn element(&self, key: &str, index: usize) -> Span {
        let list = self.value(key).and_then(|value| value.get_ref().as_array());
        list.and_then(|list| list.get(index)).map_or_else(|| self.of(key), Spanned::span)
    }

    /// The tables of an array of tables.
    pub(crate) fn items(&self, key: &str) -> Vec<Self> {
        let list = self.value(key).and_then(|value| value.get_ref().as_array()).into_iter().flatten();
        list.filter_map(|item| Some(Self::new(item.get_ref().as_table()?, item.span()))).collect()
    }

    /// A table in this one.
    pub(crate) fn table(&self, key: &str) -> Option<Self> {
        let value = self.value(key)?;
        Some(Self::new(value.get_ref().as_table()?, value.span()))
    }
}
