// SPDX-License-Identifier: Apache-2.0
//! `from` and `to` of a `[[rule]]`: ports by name, or by label.

use std::mem::take;

use netvm_model::{Ends, Host, Label, Selection};
use netvm_policy::{Match, PortId, Rule};
use toml::Value;
use toml::de::DeValue;

use crate::syntax::form::{OneOrMore, Spanned, Text, ToPort};
use crate::syntax::table::{Form, Keys, Reader, Table, ValueLocation};

/// One port, or all with a label.
#[derive(Clone)]
enum End {
    Port(PortId),
    Label(Label),
}

/// The ports of a match, which are all named.
pub(super) fn named(matches: &Match) -> Selection {
    let of = |ports: &[PortId]| Ends { ports: ports.to_vec(), labels: Vec::new() };
    Selection { from: of(&matches.from), to: of(&matches.to) }
}

/// The keys.
pub(super) fn keys(selection: &mut Selection, table: &mut Table<'_>) {
    for (key, ends) in [("from", &mut selection.from), ("to", &mut selection.to)] {
        let Ends { ports, labels } = take(ends);
        let mut all: Vec<End> =
            ports.into_iter().map(End::Port).chain(labels.into_iter().map(End::Label)).collect();
        table.key(key, &mut all, OneOrMore(PortOrLabel));
        for end in all {
            match end {
                End::Port(port) => ends.ports.push(port),
                End::Label(label) => ends.labels.push(label),
            }
        }
    }
}

/// Gives a rule the ports that its author named.
pub(super) fn set(rule: &mut Rule, selection: Selection) {
    if selection.from.labels.is_empty() && selection.to.labels.is_empty() {
        (rule.matches.from, rule.matches.to) = (selection.from.ports, selection.to.ports);
    } else {
        rule.set_selection(selection);
    }
}

/// The name of a port, or `{ label = "app=web" }`.
struct PortOrLabel;

impl Form<End> for PortOrLabel {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<End> {
        let DeValue::Table(table) = value.get_ref() else { return ToPort.read(at, value).map(End::Port) };
        let place = crate::syntax::file_table::FileTable::new(table, at.span.clone());
        let mut label = ByLabel(None);
        Reader::new(place, "the port by label", at.file).read(&mut label);
        label.0.map(End::Label)
    }

    fn write(&self, host: &Host, end: &mut End) -> Option<Value> {
        match end {
            End::Port(port) => ToPort.write(host, port),
            End::Label(label) => {
                let table = toml::Table::from_iter([("label".to_owned(), label.to_string().into())]);
                Some(Value::Table(table))
            }
        }
    }
}

/// The table that names ports by label.
struct ByLabel(Option<Label>);

impl Keys for ByLabel {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.require("label", "give the label, such as `{ label = \"app=web\" }`");
        let form = crate::syntax::form::Optional(Text(str::parse, ToString::to_string));
        table.key("label", &mut self.0, form);
    }
}
