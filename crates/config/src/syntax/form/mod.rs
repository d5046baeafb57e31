// SPDX-License-Identifier: Apache-2.0
//! Forms of values: how a value of the model is read from TOML, and how it is written.

mod list;

use std::fmt::Display;
use std::ops::RangeInclusive;

use netvm_model::words::{Words, did_you_mean};
use netvm_model::{GroupId, Host, RoleId};
use netvm_policy::{ChainId, PortId, RouterId};
use netvm_wire::VlanId;
use toml::Value;
use toml::de::DeValue;

use crate::syntax::file_table::FileTable;
use crate::syntax::finding::Kind;
use crate::syntax::names::{BadName, Check};
use crate::syntax::table::{Form, Keys, Reader, ValueLocation, write};

pub(crate) use crate::syntax::table::Spanned;
pub(crate) use list::{Addresses, Items, List, NUMBERS, OneOrMore, TEXTS};

/// A boolean.
pub(crate) struct Flag;

impl Form<bool> for Flag {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<bool> {
        let flag = value.get_ref().as_bool();
        flag.or_else(|| at.wrong_type(value.get_ref(), "`true` or `false`"))
    }

    fn write(&self, _: &Host, item: &mut bool) -> Option<Value> {
        Some(Value::Boolean(*item))
    }
}

/// A key whose only value is `true`.
pub(crate) struct OnlyTrue;

impl Form<bool> for OnlyTrue {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<bool> {
        let flag = Flag.read(at, value)?;
        if !flag {
            at.bad_value("is `false`, which has no effect")
                .help(format!("write `{} = true`, or leave it out", at.key))
                .keep();
        }
        Some(flag)
    }

    fn write(&self, host: &Host, item: &mut bool) -> Option<Value> {
        UnlessDefault(Flag).write(host, item)
    }
}

/// A whole number within a range.
pub(crate) struct Number(pub(crate) RangeInclusive<u64>);

impl<T: Copy + TryFrom<u64> + Into<u64>> Form<T> for Number {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<T> {
        let DeValue::Integer(integer) = value.get_ref() else {
            return at.wrong_type(value.get_ref(), "a whole number");
        };
        let number = u64::from_str_radix(integer.as_str(), integer.radix()).ok();
        let number =
            number.filter(|number| self.0.contains(number)).and_then(|number| T::try_from(number).ok());
        if number.is_none() {
            at.bad_value(&format!("is {integer}"))
                .help(format!("must be from {} to {}", self.0.start(), self.0.end()))
                .keep();
        }
        number
    }

    /// TOML's integers end at 2^63 - 1, and so do the ranges.
    fn write(&self, _: &Host, item: &mut T) -> Option<Value> {
        Some(Value::Integer(i64::try_from((*item).into()).unwrap_or(i64::MAX)))
    }
}

/// A power of two within a range.
pub(crate) struct PowerOfTwo(pub(crate) RangeInclusive<u64>);

impl Form<u32> for PowerOfTwo {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<u32> {
        let number: u32 = Number(self.0.clone()).read(at, value)?;
        if !number.is_power_of_two() {
            let (below, above) = (1u32 << number.ilog2(), number.next_power_of_two());
            at.bad_value(&format!("is {number}, which is no power of two"))
                .help(format!("give {below} or {above}"))
                .keep();
            return None;
        }
        Some(number)
    }

    fn write(&self, _: &Host, item: &mut u32) -> Option<Value> {
        Some(Value::Integer((*item).into()))
    }
}

/// A VLAN by its number.
pub(crate) struct Vlan;

impl Form<VlanId> for Vlan {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<VlanId> {
        VlanId::new(Number(1..=VlanId::MAX.into()).read(at, value)?).ok()
    }

    fn write(&self, _: &Host, item: &mut VlanId) -> Option<Value> {
        Some(Value::Integer(item.get().into()))
    }
}

/// One of an enum's words.
pub(crate) struct Word;

impl<T: Words> Form<T> for Word {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<T> {
        one_of(at, text(at, value)?, T::WORDS.iter().copied())
    }

    fn write(&self, _: &Host, item: &mut T) -> Option<Value> {
        Some(item.word().into())
    }
}

/// The value of one of some words.
pub(crate) fn one_of<T>(
    at: &ValueLocation<'_>,
    text: &str,
    words: impl Iterator<Item = (&'static str, T)> + Clone,
) -> Option<T> {
    let found = words.clone().find(|(word, _)| *word == text).map(|(_, value)| value);
    if found.is_none() {
        let known: Vec<&str> = words.map(|(word, _)| word).collect();
        at.bad_text(text).maybe_help(did_you_mean(text, known, "possible values")).keep();
    }
    found
}

/// A text in quotes.
pub(crate) fn text<'a>(at: &ValueLocation<'_>, value: &'a Spanned<'a>) -> Option<&'a str> {
    let text = value.get_ref().as_str();
    text.or_else(|| at.wrong_type(value.get_ref(), "a string in quotes"))
}

/// Any text.
pub(crate) struct Plain;

impl Form<String> for Plain {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<String> {
        text(at, value).map(str::to_owned)
    }

    fn write(&self, _: &Host, item: &mut String) -> Option<Value> {
        Some(item.as_str().into())
    }
}

/// A text, by the function that reads it and the one that writes it.
pub(crate) struct Text<P, S>(pub(crate) P, pub(crate) S);

impl<T, E: Display, P: Fn(&str) -> Result<T, E>, S: Fn(&T) -> String> Form<T> for Text<P, S> {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<T> {
        parse(at, text(at, value)?, &self.0)
    }

    fn write(&self, _: &Host, item: &mut T) -> Option<Value> {
        Some((self.1)(item).into())
    }
}

/// A string that can also be a number: an address, a range of numbers.
pub(crate) struct Scalar<P, S>(pub(crate) P, pub(crate) S);

impl<T, E: Display, P: Fn(&str) -> Result<T, E>, S: Fn(&T) -> String> Form<T> for Scalar<P, S> {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<T> {
        match value.get_ref() {
            DeValue::String(text) => parse(at, text, &self.0),
            DeValue::Integer(integer) => match u64::from_str_radix(integer.as_str(), integer.radix()) {
                Ok(number) => parse(at, &number.to_string(), &self.0),
                Err(_) => parse(at, integer.as_str(), &self.0),
            },
            other => at.wrong_type(other, "a string in quotes, or a number"),
        }
    }

    fn write(&self, _: &Host, item: &mut T) -> Option<Value> {
        let text = (self.1)(item);
        Some(text.parse().map_or_else(|_| Value::String(text), Value::Integer))
    }
}

fn parse<T, E: Display>(
    at: &ValueLocation<'_>,
    text: &str,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Option<T> {
    parse(text).map_err(|error| at.bad_text(text).help(error.to_string()).keep()).ok()
}

/// A name.
pub(crate) struct Name(pub(crate) Check);

impl Form<String> for Name {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<String> {
        let text = text(at, value)?;
        if let Err(BadName { label, help }) = (self.0)(text) {
            at.note(Kind::BadName, format!("`{}` cannot be `{text}`", at.key))
                .at(at.span.clone(), label)
                .help(help)
                .keep();
            return None;
        }
        Some(text.to_owned())
    }

    fn write(&self, host: &Host, item: &mut String) -> Option<Value> {
        Plain.write(host, item)
    }
}

macro_rules! reference {
    ($($doc:literal $form:ident: $id:ident, $names:ident, $find:ident, $name:ident;)*) => {$(
        #[doc = $doc]
        pub(crate) struct $form;

        impl Form<$id> for $form {
            fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<$id> {
                let name = text(at, value)?;
                at.file.names.$names.find(at.file.findings, name, at.span.clone()).map($id)
            }

            fn write(&self, host: &Host, item: &mut $id) -> Option<Value> {
                host.$find(*item).map(|item| item.$name.as_str().into())
            }
        }
    )*};
}

reference! {
    "The name of a trust group." InGroup: GroupId, groups, group, name;
    "The name of a port." ToPort: PortId, ports, port, name;
    "The name of a role." ToRole: RoleId, roles, nf, role;
    "The name of a chain." ToChain: ChainId, chains, chain, name;
    "The name of a router." ToRouter: RouterId, routers, router, name;
}

/// A value that may be absent.
pub(crate) struct Optional<F>(pub(crate) F);

impl<T, F: Form<T>> Form<Option<T>> for Optional<F> {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<Option<T>> {
        self.0.read(at, value).map(Some)
    }

    fn write(&self, host: &Host, item: &mut Option<T>) -> Option<Value> {
        item.as_mut().and_then(|item| self.0.write(host, item))
    }
}

/// A value that is not written when it is the default.
pub(crate) struct UnlessDefault<F>(pub(crate) F);

impl<T: Default + PartialEq, F: Form<T>> Form<T> for UnlessDefault<F> {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<T> {
        self.0.read(at, value)
    }

    fn write(&self, host: &Host, item: &mut T) -> Option<Value> {
        if *item == T::default() { None } else { self.0.write(host, item) }
    }
}

/// A value that is written only under a condition.
pub(crate) struct OnlyIf<F>(pub(crate) bool, pub(crate) F);

impl<T, F: Form<T>> Form<T> for OnlyIf<F> {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<T> {
        self.1.read(at, value)
    }

    fn write(&self, host: &Host, item: &mut T) -> Option<Value> {
        if self.0 { self.1.write(host, item) } else { None }
    }
}

impl<T, F: Form<T>> Form<T> for &F {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<T> {
        (**self).read(at, value)
    }

    fn write(&self, host: &Host, item: &mut T) -> Option<Value> {
        (**self).write(host, item)
    }
}

/// A table in the item's table, with its title.
pub(crate) struct Nested(pub(crate) &'static str);

impl<T: Keys + Default> Form<T> for Nested {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<T> {
        let DeValue::Table(table) = value.get_ref() else {
            return at.wrong_type(value.get_ref(), &format!("a table: {}", self.0));
        };
        let mut item = T::default();
        Reader::new(FileTable::new(table, at.span.clone()), self.0, at.file).read(&mut item);
        Some(item)
    }

    fn write(&self, host: &Host, item: &mut T) -> Option<Value> {
        Some(Value::Table(write(host, item)))
    }
}
