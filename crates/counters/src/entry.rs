// SPDX-License-Identifier: Apache-2.0
//! What the tables consist of.

/// The counters of one kind of thing: a port, a chain, a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// The command that shows them.
    pub of: &'static str,
    /// In the order of the JSON fields.
    pub counters: &'static [Counter],
}

/// A counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Its name in JSON.
    pub name: &'static str,
    /// What it counts in.
    pub unit: Unit,
    /// What it counts.
    pub text: &'static str,
    /// Some things do not have it.
    pub is_optional: bool,
    /// Its metric.
    pub metric: Option<Exported>,
    /// Its column.
    pub column: Option<Column>,
}

/// A counter as a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// The metric.
    pub metric: Metric,
    /// The value of the last label, if it tells counters of one metric apart. The labels before it name the thing.
    pub label: Option<&'static str>,
}

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name, without the `_total` that exposition adds to counters.
    pub name: &'static str,
    /// Whether it only rises.
    pub kind: MetricKind,
    /// Its labels, in order.
    pub labels: &'static [&'static str],
    /// What it shows.
    pub text: &'static str,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only rises; it starts again when what it counts is removed or netvmd restarts.
    Counter,
    /// It rises and falls.
    Gauge,
}

impl MetricKind {
    /// As exposition calls it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

/// A counter as a column of [`Table::of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its place among the columns of the table's counters.
    pub place: u8,
    /// Its title.
    pub title: &'static str,
    /// What it shows, unless it shares its title with other tables.
    pub text: &'static str,
}

/// What a counter counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Packets.
    Packets,
    /// Bytes.
    Bytes,
    /// Anything else that is counted; the text names it.
    Number,
    /// Cycles of the processor's clock.
    Cycles,
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// Microseconds.
    Microseconds,
    /// Hundredths.
    Percent,
}

impl Unit {
    /// How many make one of the unit that metrics have: a second, or the whole of what a share is of.
    #[must_use]
    pub const fn per_base_unit(self) -> f64 {
        match self {
            Self::Packets | Self::Bytes | Self::Number | Self::Cycles | Self::Seconds => 1.0,
            Self::Percent => 1e2,
            Self::Milliseconds => 1e3,
            Self::Microseconds => 1e6,
        }
    }
}

/// The value of a counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A whole number.
    Whole(u64),
    /// A measure.
    Real(f64),
}

impl Value {
    /// As a floating-point number, which is exact up to 2^53.
    #[must_use]
    pub const fn as_f64(self) -> f64 {
        match self {
            Self::Whole(number) => number as f64,
            Self::Real(number) => number,
        }
    }
}

/// The types of counters in JSON.
pub trait Count: Copy {
    /// Some things do not have the counter.
    const IS_OPTIONAL: bool = false;

    /// The value; `None`: the thing does not have the counter.
    fn value(self) -> Option<Value>;
}

impl Count for u64 {
    fn value(self) -> Option<Value> {
        Some(Value::Whole(self))
    }
}

impl Count for u32 {
    fn value(self) -> Option<Value> {
        Some(Value::Whole(self.into()))
    }
}

impl Count for f64 {
    fn value(self) -> Option<Value> {
        Some(Value::Real(self))
    }
}

impl Count for Option<u64> {
    const IS_OPTIONAL: bool = true;

    fn value(self) -> Option<Value> {
        self.map(Value::Whole)
    }
}

/// Something with counters, as the API describes it.
pub trait Counted {
    /// Its counters.
    const TABLE: &'static Table;

    /// Their values, in the order of the table; `None`: this thing does not have the counter.
    fn values(&self) -> Vec<Option<Value>>;
}
