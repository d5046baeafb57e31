// SPDX-License-Identifier: Apache-2.0
//! Compares a benchmark of this build and of another build in alternation: `netvm-bench compare PROGRAM NAME`.
//!
//! Each round runs `NAME --json --runs 1` once with either program and gives one ratio for each case that both report.
//! A ratio above 1 means that this build is better: more packets, or fewer cycles.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;

use crate::error::BenchError;
use crate::measure::report::{Report, Row, Unit};
use crate::measure::stats::Summary;

/// Options of `compare`.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct CompareArgs {
    /// `netvm-bench` of the other build
    pub program: PathBuf,
    /// The benchmark
    pub name: String,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// Rounds; each runs both programs once
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// Fail if the median ratio of a case is lower than this
    #[arg(long)]
    pub least: Option<f64>,
    /// Options of the benchmark, after `--`, such as `--seconds 0.5 --flows 1`
    #[arg(last = true)]
    pub options: Vec<String>,
}

/// The ratios of one case, one for each round.
struct Ratios {
    case: String,
    figures: Vec<f64>,
}

/// Runs both programs in turns; one row for each case that both of them report.
///
/// # Errors
/// [`BenchError::Build`] if a program fails or prints something else; [`BenchError::Slower`] if a median is below
/// [`CompareArgs::least`].
pub fn measure(args: &CompareArgs) -> Result<Vec<Row>, BenchError> {
    let this = crate::machine::own_program()?;
    let mut all: Vec<Ratios> = Vec::new();
    for round in 0..args.rounds {
        // The order alternates, so that neither build always runs on the warmer machine.
        let (before, now) = if round % 2 == 0 {
            let before = run(&args.program, args)?;
            (before, run(this, args)?)
        } else {
            let now = run(this, args)?;
            (run(&args.program, args)?, now)
        };
        for (case, ratio) in ratios(&before, &now) {
            eprintln!("round {}/{}: {case}: {ratio:.3}", round + 1, args.rounds);
            match all.iter_mut().find(|ratios| ratios.case == case) {
                Some(ratios) => ratios.figures.push(ratio),
                None => all.push(Ratios { case, figures: vec![ratio] }),
            }
        }
    }
    let rows: Vec<Row> = all
        .into_iter()
        .filter_map(|Ratios { case, figures }| {
            Some(Row { case, unit: Unit::Ratio, summary: Summary::of(&figures)? })
        })
        .collect();
    if rows.is_empty() {
        let problem = "the two builds have no case in common".to_owned();
        return Err(BenchError::Build { program: args.program.clone(), problem });
    }
    Ok(rows)
}

/// Refuses rows whose median is below [`CompareArgs::least`].
///
/// # Errors
/// [`BenchError::Slower`], which names the worst case.
pub fn check(args: &CompareArgs, rows: &[Row]) -> Result<(), BenchError> {
    let worst = rows.iter().min_by(|a, b| a.summary.median.total_cmp(&b.summary.median));
    match (args.least, worst) {
        (Some(least), Some(row)) if row.summary.median < least => {
            Err(BenchError::Slower { case: row.case.clone(), ratio: row.summary.median, least })
        }
        _ => Ok(()),
    }
}

fn run(program: &Path, args: &CompareArgs) -> Result<Vec<Row>, BenchError> {
    let failed = |problem: String| BenchError::Build { program: program.to_owned(), problem };
    let output = Command::new(program)
        .arg(&args.name)
        .args(["--json", "--skip-peers", "--runs", "1"])
        .args(&args.options)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(format!("it ended with {}", output.status)));
    }
    let report: Report = serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))?;
    Ok(report.results)
}

/// The ratio of each case that both builds report in a unit of which more, or less, is better.
fn ratios(before: &[Row], now: &[Row]) -> Vec<(String, f64)> {
    let pair = |row: &Row| {
        let other = before.iter().find(|other| other.case == row.case && other.unit == row.unit)?;
        let (before, now) = (other.summary.median, row.summary.median);
        let ratio = if row.unit.is_better_when_high()? { now / before } else { before / now };
        ratio.is_finite().then(|| (row.case.clone(), ratio))
    };
    now.iter().filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(case: &str, unit: Unit, figure: f64) -> Row {
        Row { case: case.to_owned(), unit, summary: Summary::of(&[figure]).unwrap() }
    }

    #[test]
    fn a_ratio_above_one_means_more_packets_or_fewer_cycles() {
        let before = [
            row("hop", Unit::Mpps, 40.0),
            row("stage", Unit::CyclesPerPacket, 12.0),
            row("hop/peer", Unit::Ratio, 1.0),
            row("gone", Unit::Mpps, 1.0),
        ];
        let now = [
            row("hop", Unit::Mpps, 50.0),
            row("stage", Unit::CyclesPerPacket, 10.0),
            row("hop/peer", Unit::Ratio, 2.0),
            row("new", Unit::Mpps, 1.0),
        ];
        assert_eq!(ratios(&before, &now), [("hop".to_owned(), 1.25), ("stage".to_owned(), 1.2)]);
    }

    #[test]
    fn the_worst_case_decides() {
        let args = |least| CompareArgs {
            program: "other".into(),
            name: "hop".to_owned(),
            json: false,
            rounds: 1,
            least,
            options: Vec::new(),
        };
        let rows = [row("a", Unit::Ratio, 1.1), row("b", Unit::Ratio, 0.9)];
        assert!(check(&args(None), &rows).is_ok() && check(&args(Some(0.9)), &rows).is_ok());
        assert!(
            matches!(check(&args(Some(0.97)), &rows), Err(BenchError::Slower { case, .. }) if case == "b")
        );
    }

    #[test]
    fn a_program_that_prints_no_report_is_named() {
        let args = CompareArgs {
            program: "/bin/true".into(),
            name: "hop".to_owned(),
            json: false,
            rounds: 1,
            least: None,
            options: Vec::new(),
        };
        let error = run(&args.program, &args).unwrap_err().to_string();
        assert!(error.starts_with("/bin/true: "), "{error}");
    }
}
