// SPDX-License-Identifier: Apache-2.0
//! Forms of lists.

use std::collections::BTreeMap;

use netvm_model::{Host, InterfaceAddress, MAX_SET};
use toml::Value;
use toml::de::DeValue;

use super::Text;
use crate::syntax::file_table::FileTable;
use crate::syntax::finding::Kind;
use crate::syntax::table::{Form, Keys, Numbered, Reader, Spanned, ValueLocation, write};

/// Texts in a list.
pub(crate) const TEXTS: &str = "a list of strings, such as [\"a\", \"b\"]";
/// Numbers in a list.
pub(crate) const NUMBERS: &str = "a list of whole numbers, such as [0, 1]";

/// A list, with a description of its elements. One bad element makes the whole list invalid.
pub(crate) struct List<F>(pub(crate) F, pub(crate) &'static str);

impl<T, F: Form<T>> Form<Vec<T>> for List<F> {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<Vec<T>> {
        let DeValue::Array(list) = value.get_ref() else {
            return at.wrong_type(value.get_ref(), self.1);
        };
        let items: Vec<_> = list.iter().map(|item| self.0.read(&at.element(item.span()), item)).collect();
        items.into_iter().collect()
    }

    fn write(&self, host: &Host, items: &mut Vec<T>) -> Option<Value> {
        Some(Value::Array(items.iter_mut().filter_map(|item| self.0.write(host, item)).collect()))
    }
}

/// Addresses of an interface, each once.
pub(crate) struct Addresses;

impl Form<Vec<InterfaceAddress>> for Addresses {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<Vec<InterfaceAddress>> {
        let texts = List(Text(str::parse, ToString::to_string), TEXTS);
        let addresses: Vec<InterfaceAddress> = texts.read(at, value)?;
        let written = value.get_ref().as_array().into_iter().flatten().map(toml::Spanned::span);
        let mut seen = BTreeMap::new();
        for (InterfaceAddress { address, .. }, place) in addresses.iter().zip(written) {
            let first = seen.entry(address).or_insert_with(|| place.clone());
            if *first != place {
                at.note(Kind::Duplicate, format!("an interface has the address {address} twice"))
                    .at(place, "again")
                    .at(first.clone(), "first here")
                    .help("remove one of them")
                    .keep();
            }
        }
        Some(addresses)
    }

    fn write(&self, host: &Host, item: &mut Vec<InterfaceAddress>) -> Option<Value> {
        List(Text(str::parse::<InterfaceAddress>, ToString::to_string), TEXTS).write(host, item)
    }
}

/// One value, or a list of at least one; absent if there is none.
pub(crate) struct OneOrMore<F>(pub(crate) F);

impl<T, F: Form<T>> Form<Vec<T>> for OneOrMore<F> {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<Vec<T>> {
        let DeValue::Array(list) = value.get_ref() else {
            return self.0.read(&at.or_list(), value).map(|item| vec![item]);
        };
        if list.is_empty() {
            at.bad_value("is an empty list, which nothing can match")
                .help("give at least one value, or leave it out")
                .keep();
        }
        if let Some(extra) = list.get(MAX_SET) {
            at.note(Kind::TooMany, format!("{} elements of `{}`", list.len(), at.key))
                .at(extra.span(), "exceeds the limit")
                .help(format!("a list has at most {MAX_SET} elements here: write several rules instead"))
                .keep();
        }
        List(&self.0, "").read(at, value)
    }

    fn write(&self, host: &Host, items: &mut Vec<T>) -> Option<Value> {
        match &mut items[..] {
            [] => None,
            [item] => self.0.write(host, item),
            _ => List(&self.0, "").write(host, items),
        }
    }
}

/// An array of tables, with the title of each. Items are numbered in their order.
pub(crate) struct Items(pub(crate) &'static str);

impl<T: Keys + Numbered> Form<Vec<T>> for Items {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<Vec<T>> {
        let title = self.0;
        let list = match value.get_ref() {
            DeValue::Array(list) => list,
            DeValue::Table(_) => {
                at.note(Kind::WrongType, format!("`[{}]` is one table, but there can be several", at.key))
                    .at(at.span.clone(), "")
                    .help(format!("write {title}, with two brackets"))
                    .keep();
                return None;
            }
            other => return at.wrong_type(other, &format!("an array of tables: {title}")),
        };
        let read = |(number, item): (usize, &'a Spanned<'a>)| match item.get_ref() {
            DeValue::Table(table) => {
                let mut read = T::numbered(number);
                Reader::new(FileTable::new(table, item.span()), title, at.file).read(&mut read);
                Some(read)
            }
            other => at.element(item.span()).wrong_type(other, &format!("a table: {title}")),
        };
        Some(list.iter().enumerate().filter_map(read).collect())
    }

    fn write(&self, host: &Host, items: &mut Vec<T>) -> Option<Value> {
        Some(Value::Array(items.iter_mut().map(|item| Value::Table(write(host, item))).collect()))
    }
}
