// SPDX-License-Identifier: Apache-2.0
//! The counters that users see. Each is one entry of a table, and all that shows it is made of the entry: the word in
//! which a worker counts, the manager's sums and views, the field of the API's JSON, the metric, the column of the
//! command line, `netvm explain` and `docs/reference/counters.md`. So a new counter is an entry here, and the code that
//! counts.
//!
//! A table is a macro that passes its entries to another macro, which makes something of them:
//!
//! ```text
//! netvm_counters::port! { words! { pub words PortCounters: Counter { … } pub counts PortCounts; } }
//!                 │       │        └ what to make
//!                 │       └ words!, fields!, filled!, shown! or summed! of this crate, or a macro of the caller
//!                 └ port, share, queue, chain, nf, thread, worker, monitor, connections, group, router, interface,
//!                   target, punt
//! ```
//!
//! An entry; the lines `metric` and `column` may be missing:
//!
//! ```text
//! {
//!     #[serde(default)]                                  attributes of the JSON field
//!     rx_odd: u64, Packets, "Odd packets received.";     name, JSON type, unit, text
//!     metric Counter "netvm_port_rx_odd_packets";        kind, name; then `: "…"` if the text is not its help
//!     column 10 "RX ODD";                                place, title; then `: "…"` if the text does not explain it
//! }
//! ```
//!
//! Entries have the order of the JSON fields, and are grouped by who counts:
//!
//! - `netlib`: the NF, in memory that it shares with the engine. A line `netlib` has the variant and number in
//!   `NfCounter`. A new one changes the layout of that memory, and so `LAYOUT_VERSION`.
//! - `counted`: a worker, in a word of its own.
//! - `derived`: nobody. netvmd reads them from a device, the kernel or other counters when somebody asks.
//!
//! A new JSON field has `#[serde(default)]`, so that a client understands an older netvmd. A column whose title several
//! tables share is explained in `explain/columns.rs` of the API.
#![forbid(unsafe_code)]

mod drops;
mod entry;
#[macro_use]
mod make;
#[macro_use]
mod nf;
#[macro_use]
mod port;
#[macro_use]
mod router;
#[macro_use]
mod worker;

pub use drops::{DropReason, Explained, Violation};
pub use entry::{Column, Count, Counted, Counter, Exported, Metric, MetricKind, Table, Unit, Value};

port! { listed! { PORT: "What is counted at a port." } }
share! { listed! { SHARE: "A port's share of its worker." } }
queue! { listed! { QUEUE: "What is counted at a queue of a port's shaper." } }
chain! { listed! { CHAIN: "What is counted of a chain." } }
nf! { listed! { NF: "What NF threads did with packets." } }
thread! { listed! { THREAD: "What else is counted of an NF thread." } }
worker! { listed! { WORKER: "What is counted of a worker." } }
monitor! { listed! { MONITOR: "What the flow monitor counts." } }
connections! { listed! { CONNECTIONS: "What is counted of tracked connections." } }
group! { listed! { GROUP: "What is counted of a trust group." } }
router! { listed! { ROUTER: "What is counted of a virtual router." } }
interface! { listed! { INTERFACE: "What is counted at an interface of a virtual router." } }
target! { listed! { TARGET: "What is counted of a target of NAT rules that is checked." } }
punt! { listed! { PUNT: "Packets for a router's kernel, by interface and reason." } }

/// All tables.
pub const TABLES: [&Table; 14] = [
    &PORT,
    &SHARE,
    &QUEUE,
    &CHAIN,
    &NF,
    &THREAD,
    &WORKER,
    &MONITOR,
    &CONNECTIONS,
    &GROUP,
    &ROUTER,
    &INTERFACE,
    &TARGET,
    &PUNT,
];

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn all() -> impl Iterator<Item = &'static Counter> {
        TABLES.into_iter().flat_map(|table| table.counters)
    }

    #[test]
    fn a_metrics_name_ends_with_its_unit() {
        for counter in all() {
            let Some(Exported { metric, .. }) = counter.metric else { continue };
            let unit = match counter.unit {
                Unit::Packets => "_packets",
                Unit::Bytes => "_bytes",
                Unit::Number => "",
                Unit::Cycles => "_cycles",
                Unit::Seconds | Unit::Milliseconds | Unit::Microseconds => "_seconds",
                Unit::Percent => "_ratio",
            };
            assert!(metric.name.starts_with("netvm_") && metric.name.ends_with(unit), "{metric:?}");
        }
    }

    #[test]
    fn counters_of_one_metric_have_labels_that_tell_them_apart() {
        let mut seen = BTreeMap::<&str, BTreeSet<Option<&str>>>::new();
        for Exported { metric, label } in all().filter_map(|counter| counter.metric) {
            assert!(seen.entry(metric.name).or_default().insert(label), "{} twice", metric.name);
        }
        assert!(seen.values().all(|labels| labels.len() == 1 || !labels.contains(&None)), "{seen:?}");
    }

    #[test]
    fn names_and_columns_of_a_table_differ() {
        for table in TABLES {
            let names: BTreeSet<&str> = table.counters.iter().map(|counter| counter.name).collect();
            assert_eq!(names.len(), table.counters.len(), "{}: {names:?}", table.of);
            let columns: Vec<Column> = table.counters.iter().filter_map(|counter| counter.column).collect();
            let places: BTreeSet<u8> = columns.iter().map(|column| column.place).collect();
            let titles: BTreeSet<&str> = columns.iter().map(|column| column.title).collect();
            assert_eq!(
                (places.len(), titles.len()),
                (columns.len(), columns.len()),
                "{}: {columns:?}",
                table.of
            );
        }
    }
}
