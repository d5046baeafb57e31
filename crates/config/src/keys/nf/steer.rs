// SPDX-License-Identifier: Apache-2.0
//! `steer` of an `[[nf]]`: where it may steer the rest of a flow.

use netvm_model::{Host, NfConfig, SteerTo};
use toml::Value;

use crate::keys::action::exactly_one;
use crate::syntax::finding::Kind;
use crate::syntax::form::{List, Nested, Optional, Spanned, ToChain, ToPort, ToRole, UnlessDefault};
use crate::syntax::table::{Form, Keys, Table, ValueLocation};

/// Destinations in a list.
const DESTINATIONS: &str =
    "a list of tables, such as [{ chain = \"scrub\" }, { role = \"scrubber\" }, { out = \"wan\" }]";

/// Passes `steer`; `flow_verdicts` has been passed.
pub(super) fn keys(nf: &mut NfConfig, table: &mut Table<'_>) {
    let given = table.key("steer", &mut nf.steer, UnlessDefault(List(Destination, DESTINATIONS)));
    if let Some(at) = given
        && nf.flow_verdicts == 0
        && !nf.steer.is_empty()
    {
        at.note(Kind::Conflict, "`steer` without `flow_verdicts`")
            .at(at.span.clone(), "it may give no verdicts on whole flows")
            .help("add `flow_verdicts`, the seconds after which an idle flow is no longer steered, or remove `steer`")
            .keep();
    }
}

/// A [`SteerTo`].
struct Destination;

impl Form<SteerTo> for Destination {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<SteerTo> {
        let DestinationKeys(to) = Nested("a destination").read(at, value)?;
        to
    }

    fn write(&self, host: &Host, item: &mut SteerTo) -> Option<Value> {
        Nested("a destination").write(host, &mut DestinationKeys(Some(*item)))
    }
}

#[derive(Default)]
struct DestinationKeys(Option<SteerTo>);

impl Keys for DestinationKeys {
    fn keys(&mut self, table: &mut Table<'_>) {
        let (mut chain, mut role, mut port) = match self.0 {
            Some(SteerTo::Chain(chain)) => (Some(chain), None, None),
            Some(SteerTo::Role(role)) => (None, Some(role), None),
            Some(SteerTo::Port(port)) => (None, None, Some(port)),
            None => (None, None, None),
        };
        table.key("chain", &mut chain, Optional(ToChain));
        table.key("role", &mut role, Optional(ToRole));
        table.key("out", &mut port, Optional(ToPort));
        exactly_one(table, &["chain", "role", "out"], "name a `chain`, a `role` or a port (`out`)");
        let chain = chain.map(SteerTo::Chain);
        self.0 = chain.or(role.map(SteerTo::Role)).or(port.map(SteerTo::Port));
    }
}
