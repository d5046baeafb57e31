// SPDX-License-Identifier: Apache-2.0
//! `replicas` of an `[[nf]]`: a number, or bounds between which it follows their load.

use netvm_model::{Balance, Host, MAX_REPLICAS, NfConfig, NfStart, Scale};
use toml::Value;

use crate::syntax::finding::Kind;
use crate::syntax::form::{Nested, Number, Spanned};
use crate::syntax::table::{Form, Keys, Reader, Table, ValueLocation};

/// Most seconds of `for` and `drain`.
const MAX_SECONDS: u64 = 3600;

/// Passes `replicas`.
pub(super) fn replicas(fewest: &mut u16, scale: &mut Option<Scale>, table: &mut Table<'_>) {
    let mut both = (*fewest, *scale);
    table.key("replicas", &mut both, Replicas);
    (*fewest, *scale) = both;
}

/// What bounds need besides.
pub(super) fn check(nf: &NfConfig, reader: &Reader<'_>) {
    let NfStart::Managed { scale: Some(_), standby, .. } = &nf.start else { return };
    let at = reader.place.of("replicas");
    if nf.balance != Balance::Sticky {
        reader
            .note(
                Kind::Conflict,
                format!("replicas of {} come and go, but flows have no replica of their own", nf.role),
            )
            .at(at.clone(), "would move live flows to other replicas")
            .help("add `balance = \"sticky\"`, or give `replicas` as a number")
            .keep();
    }
    if *standby > 0 {
        reader
            .note(Kind::Conflict, format!("`standby` of {}, whose replicas come and go", nf.role))
            .at(reader.place.of("standby"), "excludes the other")
            .at(at, "has bounds")
            .help("remove `standby`: while a replica starts again, the others have its packets")
            .keep();
    }
}

/// A number of replicas, or bounds.
struct Replicas;

impl Form<(u16, Option<Scale>)> for Replicas {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<(u16, Option<Scale>)> {
        if !value.get_ref().is_table() {
            return Number(1..=MAX_REPLICAS as u64).read(at, value).map(|count| (count, None));
        }
        let ScaleKeys { fewest, scale } = Nested("replicas").read(at, value)?;
        let conflict = |message: String, help: &str| {
            at.note(Kind::Conflict, message).at(at.span.clone(), "never changes").help(help).keep();
        };
        if scale.most <= fewest {
            conflict(
                format!("`max` is {}, `min` is {fewest}", scale.most),
                "raise `max`, or give `replicas` as a number",
            );
        }
        if scale.shrink_below >= scale.grow_above {
            conflict(
                format!("`shrink_below` is {}, `grow_above` is {}", scale.shrink_below, scale.grow_above),
                "keep a distance between them, or replicas start and end all the time",
            );
        }
        Some((fewest, Some(scale)))
    }

    fn write(&self, host: &Host, item: &mut (u16, Option<Scale>)) -> Option<Value> {
        let (mut fewest, scale) = *item;
        match scale {
            None => Number(1..=MAX_REPLICAS as u64).write(host, &mut fewest),
            Some(scale) => Nested("replicas").write(host, &mut ScaleKeys { fewest, scale }),
        }
    }
}

struct ScaleKeys {
    fewest: u16,
    scale: Scale,
}

impl Default for ScaleKeys {
    fn default() -> Self {
        let scale = Scale { most: 0, grow_above: 60, shrink_below: 20, seconds: 5, drain: 60 };
        Self { fewest: 1, scale }
    }
}

impl Keys for ScaleKeys {
    fn keys(&mut self, table: &mut Table<'_>) {
        let Scale { most, grow_above, shrink_below, seconds, drain } = &mut self.scale;
        let count = || Number(1..=MAX_REPLICAS as u64);
        table.key("min", &mut self.fewest, count());
        table.required("max", "say how many there may be, such as `max = 4`", most, count());
        table.key("grow_above", grow_above, Number(1..=99));
        table.key("shrink_below", shrink_below, Number(1..=99));
        table.key("for", seconds, Number(1..=MAX_SECONDS));
        table.key("drain", drain, Number(0..=MAX_SECONDS));
    }
}
