//! The keys that say where packets go: `chain`, `out` and so on. Rules, `forward` of ports and `output` of chains have them.

use netvm_policy::Verdict;
use toml::Value;

use super::Host;
use crate::form::{Form, Spanned, ToChain, ToPort, ToRouter, Yes};
use crate::table::Table;

/// Passes these keys to the table. One of them at most is written; if the file has several, none is read.
pub(super) fn keys(verdict: &mut Option<Verdict>, table: &mut Table<'_>, keys: &[&'static str]) {
    if table.reader().is_some_and(|reader| reader.given(keys).len() > 1) {
        return table.allow(|table| self::keys(verdict, table, keys));
    }
    let written = *verdict;
    for key in keys {
        let mut value = written;
        if table.key(key, &mut value, ByKey(key)).is_some() {
            *verdict = value;
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

impl Form<Option<Verdict>> for ByKey {
    fn read<'a>(&self, at: &crate::table::At<'a>, value: &'a Spanned<'a>) -> Option<Option<Verdict>> {
        let yes = |verdict| Yes.read(at, value)?.then_some(verdict);
        Some(match self.0 {
            "chain" => Some(Verdict::Chain(ToChain.read(at, value)?)),
            "out" => Some(Verdict::Port(ToPort.read(at, value)?)),
            "router" => Some(Verdict::Router(ToRouter.read(at, value)?)),
            "drop" => yes(Verdict::Drop),
            "reject" => yes(Verdict::Reject),
            "allow" => yes(Verdict::Allow),
            _ => yes(Verdict::Normal),
        })
    }

    fn write(&self, host: &Host, verdict: &mut Option<Verdict>) -> Option<Value> {
        match ((*verdict)?, self.0) {
            (Verdict::Chain(mut id), "chain") => ToChain.write(host, &mut id),
            (Verdict::Port(mut id), "out") => ToPort.write(host, &mut id),
            (Verdict::Router(mut id), "router") => ToRouter.write(host, &mut id),
            (Verdict::Drop, "drop")
            | (Verdict::Reject, "reject")
            | (Verdict::Allow, "allow")
            | (Verdict::Normal, "normal") => Some(Value::Boolean(true)),
            _ => None,
        }
    }
}
