// SPDX-License-Identifier: Apache-2.0
//! `load` of a `[[rule]]`: the load of a role at which the rule applies.

use netvm_model::{Bound, Host, LoadLimit, RoleId};
use toml::Value;

use crate::keys::action::exactly_one;
use crate::syntax::finding::Kind;
use crate::syntax::form::{Nested, Number, OnlyIf, Optional, Spanned, ToRole};
use crate::syntax::table::{Form, Keys, Table, ValueLocation};

/// Most seconds of `for`.
const MAX_SECONDS: u64 = 3600;

/// A [`LoadLimit`].
pub(super) struct Load;

impl Form<LoadLimit> for Load {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<LoadLimit> {
        Nested("load").read(at, value).map(|LoadKeys(limit)| limit)
    }

    fn write(&self, host: &Host, item: &mut LoadLimit) -> Option<Value> {
        Nested("load").write(host, &mut LoadKeys(*item))
    }
}

struct LoadKeys(LoadLimit);

impl Default for LoadKeys {
    fn default() -> Self {
        Self(LoadLimit { role: RoleId(0), bound: Bound::Above(0), until: 0, seconds: 1 })
    }
}

impl Keys for LoadKeys {
    fn keys(&mut self, table: &mut Table<'_>) {
        let Self(LoadLimit { role, bound, until, seconds }) = self;
        let (mut above, mut below) = match *bound {
            Bound::Above(percent) => (Some(percent), None),
            Bound::Below(percent) => (None, Some(percent)),
        };
        table.required("role", "name the role whose load it is", role, ToRole);
        table.key("above", &mut above, Optional(Number(0..=99)));
        table.key("below", &mut below, Optional(Number(1..=100)));
        exactly_one(
            table,
            &["above", "below"],
            "write `above` or `below`, in percent of the room in its rings",
        );
        // `above` of the default, unless the file has it.
        *bound = match (above, below) {
            (_, Some(percent)) => Bound::Below(percent),
            (percent, None) => Bound::Above(percent.unwrap_or_default()),
        };
        if table.reader().is_some() {
            *until = bound.usual_end();
        }
        let is_given = *until != bound.usual_end();
        let given = table.key("until", until, OnlyIf(is_given, Number(0..=100)));
        if let Some(at) = given {
            let (is_wrong, what) = match *bound {
                Bound::Above(percent) => (*until > percent, "at most `above`"),
                Bound::Below(percent) => (*until < percent, "at least `below`"),
            };
            if is_wrong {
                at.note(Kind::Conflict, format!("`until` is {until}, beyond its bound"))
                    .at(at.span.clone(), "the rule would switch to and fro")
                    .help(format!("`until` is where it stops: write {what}, or leave it out"))
                    .keep();
            }
        }
        table.key("for", seconds, Number(0..=MAX_SECONDS));
    }
}
