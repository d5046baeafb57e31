// SPDX-License-Identifier: Apache-2.0
//! Output of a benchmark: one JSON object or a table.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::measure::stats::Summary;

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Million packets per second.
    #[serde(rename = "Mpps")]
    Mpps,
    /// Cycles of the time-stamp counter per packet.
    #[serde(rename = "cycles/packet")]
    CyclesPerPacket,
    /// Nanoseconds of CPU time per packet.
    #[serde(rename = "ns/packet")]
    NanosPerPacket,
    /// A count per packet.
    #[serde(rename = "/packet")]
    PerPacket,
    /// Cycles of the time-stamp counter.
    #[serde(rename = "cycles")]
    Cycles,
    /// A ratio.
    #[serde(rename = "ratio")]
    Ratio,
    /// Microseconds.
    #[serde(rename = "us")]
    Micros,
    /// Percent.
    #[serde(rename = "percent")]
    Percent,
    /// Billion bits per second of frames without FCS.
    #[serde(rename = "Gbit/s")]
    GigabitsPerSecond,
    /// A count.
    #[serde(rename = "count")]
    Count,
    /// Millions per second.
    #[serde(rename = "M/s")]
    MillionPerSecond,
    /// Bytes.
    #[serde(rename = "bytes")]
    Bytes,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Millis,
}

impl Unit {
    const fn name(self) -> &'static str {
        match self {
            Self::Mpps => "Mpps",
            Self::CyclesPerPacket => "cycles/packet",
            Self::NanosPerPacket => "ns/packet",
            Self::PerPacket => "/packet",
            Self::Cycles => "cycles",
            Self::Ratio => "ratio",
            Self::Micros => "us",
            Self::Percent => "percent",
            Self::GigabitsPerSecond => "Gbit/s",
            Self::Count => "count",
            Self::MillionPerSecond => "M/s",
            Self::Bytes => "bytes",
            Self::Millis => "ms",
        }
    }

    /// Whether higher is better; `None` if that depends on the case.
    pub const fn is_better_when_high(self) -> Option<bool> {
        match self {
            Self::Mpps | Self::GigabitsPerSecond | Self::MillionPerSecond => Some(true),
            Self::CyclesPerPacket | Self::NanosPerPacket | Self::Cycles | Self::Micros | Self::Millis => {
                Some(false)
            }
            Self::Ratio | Self::Percent | Self::Count | Self::Bytes | Self::PerPacket => None,
        }
    }
}

/// The summary of a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its name; `OURS/OTHER` for a comparison.
    pub case: String,
    /// Its unit.
    pub unit: Unit,
    /// Over all runs.
    #[serde(flatten)]
    pub summary: Summary,
}

/// The result of a benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The benchmark's name.
    pub bench: String,
    /// The machine.
    pub host: Machine,
    /// The cases in the order of measurement, then comparisons.
    pub results: Vec<Row>,
}

impl Report {
    /// One JSON object, on one line.
    ///
    /// # Errors
    /// None in practice: numbers and text can always be written as JSON.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// A table.
    pub fn to_table(&self) -> String {
        let m = &self.host;
        let mut text = format!(
            "{}: {}, {} cores, Linux {}, {}, {} huge pages, revision {}\n\n",
            self.bench, m.cpu, m.cores, m.kernel, m.dpdk, m.huge_pages, m.revision
        );
        let widest = self.results.iter().map(|row| row.case.len()).max().unwrap_or(0).max(4);
        let mut line = |case: &str, unit: &str, figures: [String; 4]| {
            let [median, min, max, runs] = figures;
            // Writing to a String cannot fail.
            let _ =
                writeln!(text, "{case:<widest$}  {unit:<13}  {median:>10}  {min:>10}  {max:>10}  {runs:>4}");
        };
        line("case", "unit", ["median", "min", "max", "runs"].map(str::to_owned));
        for Row { case, unit, summary: s } in &self.results {
            let figures = [figure(s.median), figure(s.min), figure(s.max), s.runs.to_string()];
            line(case, unit.name(), figures);
        }
        text
    }
}

fn figure(value: f64) -> String {
    format!("{value:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let host = Machine {
            cpu: "a CPU".into(),
            kernel: "6.1".into(),
            dpdk: "DPDK 22.11".into(),
            revision: "abc".into(),
            cores: 2,
            huge_pages: 0,
        };
        let row = |case: &str, unit, figures: &[f64]| Row {
            case: case.into(),
            unit,
            summary: Summary::of(figures).unwrap(),
        };
        let results = vec![row("hop", Unit::Mpps, &[40.0, 42.5, 41.0]), row("hop/peer", Unit::Ratio, &[2.0])];
        Report { bench: "hop".into(), host, results }
    }

    #[test]
    fn json_has_the_documented_form() {
        let json = report().to_json().unwrap();
        let expected = r#"{"bench":"hop","host":{"cpu":"a CPU","kernel":"6.1","dpdk":"DPDK 22.11","revision":"abc","cores":2,"huge_pages":0},"results":[{"case":"hop","unit":"Mpps","median":41.0,"min":40.0,"max":42.5,"runs":3},{"case":"hop/peer","unit":"ratio","median":2.0,"min":2.0,"max":2.0,"runs":1}]}"#;
        assert_eq!(json, expected);
    }

    #[test]
    fn the_table_has_a_line_for_each_case_and_straight_columns() {
        let table = report().to_table();
        let lines: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{table}");
        assert!(lines[1].starts_with("hop ") && lines[1].contains("41.000"), "{table}");
    }

    #[test]
    fn both_forms_name_units_alike() {
        let units = [
            Unit::Mpps,
            Unit::CyclesPerPacket,
            Unit::PerPacket,
            Unit::Ratio,
            Unit::Micros,
            Unit::Percent,
            Unit::GigabitsPerSecond,
            Unit::Count,
            Unit::MillionPerSecond,
            Unit::Bytes,
            Unit::Millis,
        ];
        for unit in units {
            assert_eq!(serde_json::to_string(&unit).unwrap(), format!("{:?}", unit.name()));
        }
    }
}
