//! The keys that say where packets go: `chain`, `out` and so on. Rules, `forward` of ports and `output` of chains have them.

use netvm_policy::Action;
use toml::Value;

use super::Host;
use crate::form::{Form, Spanned, ToChain, ToPort, ToRouter, Yes};
use crate::table::Table;

/// Passes these keys to the table. One of them at most is written; if the file has several, none is read.
pub(super) fn keys(terminal: &mut Option<Action>, table: &mut Table<'_>, keys: &[&'static str]) {
    if table.reader().is_some_and(|reader| reader.given(keys).len() > 1) {
        return table.allow(|table| self::keys(terminal, table, keys));
    }
    let written = *terminal;
    for key in keys {
        let mut value = written;
        if table.key(key, &mut value, ByKey(key)).is_some() {
            *terminal = value;
        }
    }
}

/// Notes when none of these keys is there, or more than one. `help` says what can be written.
pub(super) fn exactly_one(table: &mut Table<'_>, keys: &[&'static str], help: &str) {
    let Some(reader) = table.reader() else { return };
    match (reader.given(keys).as_slice(), keys) {
        ([], [.., last]) => reader.missing(last, help),
        ([first, second, ..], _) => reader.conflict(first, second).help("keep one of them").keep(),
        _ => {}
    }
}

/// The value of that key.
struct ByKey(&'static str);

impl Form<Option<Action>> for ByKey {
    fn read<'a>(&self, at: &crate::table::At<'a>, value: &'a Spanned<'a>) -> Option<Option<Action>> {
        let yes = |terminal| Yes.read(at, value)?.then_some(terminal);
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
