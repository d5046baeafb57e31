// SPDX-License-Identifier: Apache-2.0
//! The keys for where packets go: `chain`, `out` and so on. Rules, `forward` of ports and `output` of chains
//! have them.

use netvm_model::Host;
use netvm_policy::Action;
use toml::Value;

use crate::syntax::form::{OnlyTrue, Plain, Spanned, ToChain, ToPort, ToRouter};
use crate::syntax::table::{Form, Table, ValueLocation};

/// Passes these keys to the table, which writes at most one. If the file has several, only the first is
/// resolved.
pub(super) fn keys(terminal: &mut Option<Action>, table: &mut Table<'_>, keys: &[&'static str]) {
    let written = *terminal;
    let first = table.reader().and_then(|reader| reader.given(keys).first().copied());
    for key in keys {
        let mut value = written;
        if first.is_some_and(|first| first != *key) {
            match *key {
                "chain" | "out" | "router" => table.key(key, &mut String::new(), Plain),
                _ => table.key(key, &mut false, OnlyTrue),
            };
        } else if table.key(key, &mut value, ByKey(key)).is_some() {
            *terminal = value;
        }
    }
}

/// Reports a table with none or several of these keys. `help` tells the possible ones.
pub(super) fn exactly_one(table: &mut Table<'_>, keys: &[&'static str], help: &str) {
    let Some(reader) = table.reader() else { return };
    match (reader.given(keys).as_slice(), keys) {
        ([], [first, ..]) => reader.missing(first, help),
        ([first, second, ..], _) => reader.conflict(first, second).help("keep one of them").keep(),
        _ => {}
    }
}

/// The value of one of these keys.
struct ByKey(&'static str);

impl Form<Option<Action>> for ByKey {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<Option<Action>> {
        let yes = |terminal| OnlyTrue.read(at, value)?.then_some(terminal);
        Some(match self.0 {
            "chain" => Some(Action::Chain(ToChain.read(at, value)?)),
            "out" => Some(Action::Port(ToPort.read(at, value)?)),
            "router" => Some(Action::Router(ToRouter.read(at, value)?)),
            "drop" => yes(Action::Drop),
            "reject" => yes(Action::Reject),
            "allow" => yes(Action::Allow),
            _ => yes(Action::Normal),
        })
    }

    fn write(&self, host: &Host, terminal: &mut Option<Action>) -> Option<Value> {
        match ((*terminal)?, self.0) {
            (Action::Chain(mut id), "chain") => ToChain.write(host, &mut id),
            (Action::Port(mut id), "out") => ToPort.write(host, &mut id),
            (Action::Router(mut id), "router") => ToRouter.write(host, &mut id),
            (Action::Drop, "drop")
            | (Action::Reject, "reject")
            | (Action::Allow, "allow")
            | (Action::Normal, "normal") => Some(Value::Boolean(true)),
            _ => None,
        }
    }
}
