// SPDX-License-Identifier: Apache-2.0
//! What tables are made into. Each macro takes what to make, and then the entries.

/// Structs of what workers count: one of words, each with one writer, and one of numbers. The word needs `get`.
///
/// `words! { pub words Words: Word { further fields } pub counts Counts; }`
#[macro_export]
macro_rules! words {
    (
        {
            $(#[$words_attr:meta])*
            $vis:vis words $words:ident: $word:ident { $($more:tt)* }
            $(#[$counts_attr:meta])*
            $counts_vis:vis counts $counts:ident;
        }
        table $about:tt
        netlib $netlib:tt
        counted { $({
            $(#[$json:meta])*
            $field:ident: $type:ty, $unit:ident, $text:literal;
            $($how:tt)*
        })* }
        derived $derived:tt
    ) => {
        $(#[$words_attr])*
        $vis struct $words {
            $(#[doc = $text] $vis $field: $word,)*
            $($more)*
        }

        impl $words {
            /// The numbers now.
            #[must_use]
            $counts_vis fn counts(&self) -> $counts {
                $counts { $($field: self.$field.get(),)* }
            }
        }

        $(#[$counts_attr])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $counts_vis struct $counts {
            $(#[doc = $text] $counts_vis $field: u64,)*
        }

        impl ::core::ops::Add for $counts {
            type Output = Self;

            fn add(self, other: Self) -> Self {
                Self { $($field: self.$field + other.$field,)* }
            }
        }

        impl ::core::ops::Sub for $counts {
            type Output = Self;

            fn sub(self, before: Self) -> Self {
                Self { $($field: self.$field - before.$field,)* }
            }
        }

        impl ::core::iter::Sum for $counts {
            fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
                parts.fold(Self::default(), |sum, part| sum + part)
            }
        }
    };
}

/// A struct with a number for each counter of a worker, and further fields.
///
/// `fields! { pub struct View { further fields } }`
#[macro_export]
macro_rules! fields {
    (
        { $(#[$attr:meta])* $vis:vis struct $name:ident { $($more:tt)* } }
        table $about:tt
        netlib $netlib:tt
        counted { $({
            $(#[$json:meta])*
            $field:ident: $type:ty, $unit:ident, $text:literal;
            $($how:tt)*
        })* }
        derived $derived:tt
    ) => {
        $(#[$attr])*
        $vis struct $name {
            $(#[doc = $text] $vis $field: u64,)*
            $($more)*
        }
    };
}

/// A value of a struct whose counters of workers are those of `counts`.
///
/// `filled! { View from counts { further fields } }`
#[macro_export]
macro_rules! filled {
    (
        { $name:ident from $counts:ident { $($more:tt)* } }
        table $about:tt
        netlib $netlib:tt
        counted { $({
            $(#[$json:meta])*
            $field:ident: $type:ty, $unit:ident, $text:literal;
            $($how:tt)*
        })* }
        derived $derived:tt
    ) => {
        $name { $($field: $counts.$field.into(),)* $($more)* }
    };
}

/// A struct as the API shows it, with a field for each entry between further fields.
///
/// `shown! { pub struct Info: TABLE { fields before } { fields after } }`, where `TABLE` is the same table as a
/// constant.
#[macro_export]
macro_rules! shown {
    (
        @ {
            $(#[$attr:meta])*
            pub struct $name:ident: $table:ident { $($before:tt)* } { $($after:tt)* }
        }
        $({
            $(#[$json:meta])*
            $field:ident: $type:ty, $unit:ident, $text:literal;
            $($how:tt)*
        })*
    ) => {
        $(#[$attr])*
        pub struct $name {
            $($before)*
            $(#[doc = $text] $(#[$json])* pub $field: $type,)*
            $($after)*
        }

        impl $crate::Counted for $name {
            const TABLE: &'static $crate::Table = &$table;

            fn values(&self) -> Vec<Option<$crate::Value>> {
                vec![$($crate::Count::value(self.$field),)*]
            }
        }
    };
    (
        $what:tt
        table $about:tt
        netlib { $($netlib:tt)* }
        counted { $($counted:tt)* }
        derived { $($derived:tt)* }
    ) => {
        $crate::shown! { @ $what $($netlib)* $($counted)* $($derived)* }
    };
}

/// Sums of a struct that [`shown!`] made of the table alone.
///
/// `summed! { Info }`
#[macro_export]
macro_rules! summed {
    (
        @ { $name:ident }
        $({
            $(#[$json:meta])*
            $field:ident: $type:ty, $unit:ident, $text:literal;
            $($how:tt)*
        })*
    ) => {
        impl ::core::iter::Sum for $name {
            fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
                parts.fold(Self::default(), |sum, part| Self { $($field: sum.$field + part.$field,)* })
            }
        }
    };
    (
        $what:tt
        table $about:tt
        netlib { $($netlib:tt)* }
        counted { $($counted:tt)* }
        derived { $($derived:tt)* }
    ) => {
        $crate::summed! { @ $what $($netlib)* $($counted)* $($derived)* }
    };
}

/// The table as a [`Table`](crate::Table).
macro_rules! listed {
    (
        @ { $name:ident: $about:literal } { $of:literal $labels:tt }
        $({
            $(#[$json:meta])*
            $field:ident: $type:ty, $unit:ident, $text:literal;
            $(netlib $variant:ident = $index:literal;)?
            $(metric $kind:ident $metric:literal $([$label:literal = $value:literal])? $(: $help:literal)?;)?
            $(column $place:literal $title:literal $(: $shown:literal)?;)?
        })*
    ) => {
        #[doc = $about]
        pub const $name: $crate::Table = $crate::Table {
            of: $of,
            counters: &[$($crate::Counter {
                name: stringify!($field),
                unit: $crate::Unit::$unit,
                text: $text,
                is_optional: <$type as $crate::Count>::IS_OPTIONAL,
                metric: optional!($($crate::Exported {
                    metric: $crate::Metric {
                        name: $metric,
                        kind: $crate::MetricKind::$kind,
                        labels: labels!($labels $($label)?),
                        text: first!($($help)? $text),
                    },
                    label: optional!($($value)?),
                })?),
                column: optional!($($crate::Column {
                    place: $place,
                    title: $title,
                    text: first!($($shown)? $text),
                })?),
            },)*],
        };
    };
    (
        $what:tt
        table $about:tt
        netlib { $($netlib:tt)* }
        counted { $($counted:tt)* }
        derived { $($derived:tt)* }
    ) => {
        listed! { @ $what $about $($netlib)* $($counted)* $($derived)* }
    };
}

/// `Some` of what there is, else `None`.
macro_rules! optional {
    () => {
        None
    };
    ($some:expr) => {
        Some($some)
    };
}

/// The first of one or two texts.
macro_rules! first {
    ($first:literal $($second:literal)?) => {
        $first
    };
}

/// The labels of a table, and one more.
macro_rules! labels {
    ([$($label:literal)*] $($more:literal)?) => {
        &[$($label,)* $($more)?]
    };
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use serde::{Deserialize, Serialize};
    use serde_json::{from_str, json, to_value};

    use crate::{Column, Counted, Counter, Exported, Metric, MetricKind, Unit, Value};

    /// A table with a counter of each group.
    macro_rules! dummy {
        ($with:ident! $what:tt) => {
            $with! {
                $what
                table { "netvm dummy" ["name"] }
                netlib {
                    {
                        even: u64, Packets, "Even packets.";
                        netlib Even = 0;
                    }
                }
                counted {
                    {
                        #[serde(default)]
                        odd: u64, Packets, "Odd packets.";
                        metric Counter "netvm_dummy_odd_packets";
                        column 1 "ODD";
                    }
                    {
                        #[serde(default, skip_serializing_if = "Option::is_none")]
                        prime: Option<u64>, Packets, "Prime packets.";
                        metric Gauge "netvm_dummy_prime_packets" ["kind" = "all"]: "Prime packets, by kind.";
                        column 2 "PRIME": "Packets that are prime.";
                    }
                }
                derived {
                    {
                        half_s: f64, Seconds, "Half a second.";
                    }
                }
            }
        };
    }

    #[derive(Default)]
    struct Word(Cell<u64>);

    impl Word {
        fn get(&self) -> u64 {
            self.0.get()
        }
    }

    dummy! { listed! { DUMMY: "A table." } }

    dummy! { words! {
        #[derive(Default)]
        words Words: Word { further: u8 }
        counts Counts;
    } }

    dummy! { fields! {
        #[derive(Debug, PartialEq)]
        struct View { name: &'static str }
    } }

    dummy! { shown! {
        #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
        pub struct Info: DUMMY { pub id: u8, } { pub is_up: bool, }
    } }

    const ODD: Counter = Counter {
        name: "odd",
        unit: Unit::Packets,
        text: "Odd packets.",
        is_optional: false,
        metric: Some(Exported {
            metric: Metric {
                name: "netvm_dummy_odd_packets",
                kind: MetricKind::Counter,
                labels: &["name"],
                text: "Odd packets.",
            },
            label: None,
        }),
        column: Some(Column { place: 1, title: "ODD", text: "Odd packets." }),
    };

    #[test]
    fn workers_words_become_sums_and_views() {
        let words = Words { further: 1, ..Words::default() };
        words.odd.0.set(5);
        words.prime.0.set(u64::from(words.further) + 2);
        let twice: Counts = [words.counts(), words.counts()].into_iter().sum();
        assert_eq!(twice, Counts { odd: 10, prime: 6 });
        let since = twice - words.counts();
        let view = dummy! { filled! { View from since { name: "a" } } };
        assert_eq!(view, View { odd: 5, prime: 3, name: "a" });
        let info = dummy! { filled! { Info from view { id: 7, even: 4, half_s: 0.5, is_up: true } } };
        assert_eq!(info, Info { id: 7, even: 4, odd: 5, prime: Some(3), half_s: 0.5, is_up: true });
    }

    #[test]
    fn entries_become_fields_of_json_between_those_before_and_after() {
        let info = Info { id: 7, odd: 5, is_up: true, ..Info::default() };
        assert_eq!(
            serde_json::to_string(&info).unwrap(),
            r#"{"id":7,"even":0,"odd":5,"half_s":0.0,"is_up":true}"#
        );
        assert_eq!(to_value(Info { prime: Some(3), ..info }).unwrap()["prime"], json!(3));
        // From an older netvmd.
        let old: Info = from_str(r#"{"id":7,"even":0,"half_s":0.0,"is_up":true}"#).unwrap();
        assert_eq!(old, Info { odd: 0, ..info });
        assert_eq!(
            Info { prime: Some(3), ..info }.values(),
            [Value::Whole(0), Value::Whole(5), Value::Whole(3), Value::Real(0.0)].map(Some)
        );
        assert_eq!(info.values()[2], None);
    }

    #[test]
    fn entries_become_metrics_and_columns() {
        assert_eq!(Info::TABLE.of, "netvm dummy");
        let [even, odd, prime, half] = Info::TABLE.counters else { panic!("{:?}", Info::TABLE) };
        assert_eq!((even.name, even.metric, even.column), ("even", None, None));
        assert_eq!(*odd, ODD);
        let Exported { metric, label } = prime.metric.unwrap();
        assert_eq!(
            (metric.kind, metric.labels, label),
            (MetricKind::Gauge, &["name", "kind"][..], Some("all"))
        );
        assert_eq!(metric.text, "Prime packets, by kind.");
        assert_eq!(prime.column.unwrap().text, "Packets that are prime.");
        assert!(prime.is_optional);
        assert_eq!((half.name, half.unit), ("half_s", Unit::Seconds));
    }
}
