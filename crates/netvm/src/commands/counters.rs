// SPDX-License-Identifier: Apache-2.0
//! Columns of counters. Their tables say which there are, in which order, and in which unit.

use comfy_table::Table;
use netvm_counters::{Column, Counted, Unit, Value};

use crate::format::{bytes, count};
use crate::output::Output;

/// The columns of counters, from left to right.
pub struct Columns {
    /// With the counter's position in its table.
    shown: Vec<(usize, Unit, Column)>,
    has_exact_bytes: bool,
}

impl Columns {
    /// The columns of the counters of these things. Those that none of the things has are left out.
    pub fn of<'a, T: Counted + 'a>(things: impl IntoIterator<Item = &'a T>) -> Self {
        let values: Vec<Vec<Option<Value>>> = things.into_iter().map(Counted::values).collect();
        let all = T::TABLE.counters.iter().enumerate();
        let had = all
            .filter(|(n, counter)| !counter.is_optional || values.iter().any(|values| values[*n].is_some()));
        let mut shown: Vec<_> =
            had.filter_map(|(n, counter)| Some((n, counter.unit, counter.column?))).collect();
        shown.sort_by_key(|(.., column)| column.place);
        Self { shown, has_exact_bytes: false }
    }

    /// An empty table with the columns `first`, as for [`Output::table`], and then those of counters.
    pub fn table(output: &Output, first: &[&str], counters: &[&Self]) -> Table {
        let shown = counters.iter().flat_map(|columns| &columns.shown);
        let titles: Vec<String> = shown.map(|(.., column)| format!(">{}", column.title)).collect();
        let all: Vec<&str> = first.iter().copied().chain(titles.iter().map(String::as_str)).collect();
        output.table(&all)
    }

    /// Shows bytes as a number without a prefix.
    pub fn with_exact_bytes(self) -> Self {
        Self { has_exact_bytes: true, ..self }
    }

    /// The cells of a thing.
    pub fn cells<T: Counted>(&self, thing: &T) -> Vec<String> {
        let values = thing.values();
        let cell = |(n, unit, _): &(usize, Unit, Column)| match values[*n] {
            None => "-".to_owned(),
            Some(Value::Whole(number)) if *unit == Unit::Bytes && !self.has_exact_bytes => bytes(number),
            Some(Value::Whole(number)) => count(number),
            Some(Value::Real(number)) => real(number, *unit),
        };
        self.shown.iter().map(cell).collect()
    }
}

fn real(number: f64, unit: Unit) -> String {
    match unit {
        Unit::Cycles => format!("{number:.0}"),
        Unit::Milliseconds => format!("{number:.1} ms"),
        Unit::Microseconds => format!("{number:.0} µs"),
        Unit::Percent => format!("{number:.0} %"),
        Unit::Packets | Unit::Bytes | Unit::Number | Unit::Seconds => format!("{number:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use netvm_api::{PortInfo, WorkerInfo};

    use super::*;

    fn titles(columns: &Columns) -> Vec<&'static str> {
        columns.shown.iter().map(|(.., column)| column.title).collect()
    }

    #[test]
    fn columns_are_in_their_places_and_those_that_no_thing_has_are_left_out() {
        let ports = [
            PortInfo { rx_coalesced: Some(7000), rx_bytes: 4096, spoofed: None, ..PortInfo::default() },
            PortInfo { policed: Some(9), ..PortInfo::default() },
        ];
        let columns = Columns::of(&ports);
        let always = ["RX PACKETS", "RX BYTES", "TX PACKETS", "TX BYTES", "RX DROPPED", "TX DROPPED"];
        assert_eq!(titles(&columns)[..8], [&always[..], &["POLICED", "RX COALESCED"]].concat());
        assert_eq!(columns.cells(&ports[0])[..8], ["0", "4 KiB", "0", "0 B", "0", "0", "-", "7,000"]);
        let columns = columns.with_exact_bytes();
        assert_eq!(columns.cells(&ports[1])[..8], ["0", "0", "0", "0", "0", "0", "9", "-"]);
        let columns = Columns::of::<PortInfo>([]);
        assert_eq!(titles(&columns)[..6], always);
        assert!(!titles(&columns).contains(&"SPOOFED"));
    }

    #[test]
    fn times_have_their_unit() {
        let worker = WorkerInfo { longest_turn_us: 55.4, copied_bytes: 2048, ..WorkerInfo::default() };
        assert_eq!(Columns::of([&worker]).cells(&worker)[..4], ["0", "0", "2 KiB", "55 µs"]);
    }
}
