// SPDX-License-Identifier: Apache-2.0
//! Takes figures in rotation, A B C A B C ..., so that disturbances affect all cases alike.

use std::time::{Duration, Instant};

use crate::error::BenchError;
use crate::measure::report::{Row, Unit};
use crate::measure::stats::Summary;

/// Number and duration of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Figures per case.
    pub runs: usize,
    /// Time before each measurement for caches, rings and the processor's clock to settle.
    pub warm_up: Duration,
    /// Duration of each measurement.
    pub window: Duration,
    /// No further run begins that would end after this time, though fewer than `runs` were made; but one is made in any
    /// case.
    pub limit: Option<Duration>,
}

impl Plan {
    /// Whether a window ends after `elapsed` of wall-clock time and `cpu_time` of the measured thread. If another
    /// process uses the core, the window continues until the thread had half of the planned CPU time, up to a limit.
    pub fn is_over(&self, elapsed: Duration, cpu_time: Duration) -> bool {
        elapsed >= self.window * 10 || elapsed >= self.window && cpu_time >= self.window / 2
    }
}

/// A figure of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Its case.
    pub case: String,
    /// Its unit.
    pub unit: Unit,
    /// The number.
    pub value: f64,
}

impl Figure {
    /// A figure of a case.
    pub fn new(case: impl Into<String>, unit: Unit, value: f64) -> Self {
        Self { case: case.into(), unit, value }
    }
}

/// The figures of a measurement.
pub type Measured = Result<Vec<Figure>, BenchError>;

/// What can be set up, measured and torn down repeatedly. One measurement may give figures of several cases.
pub struct Subject<'a> {
    name: String,
    measure: Box<dyn FnMut(&Plan) -> Measured + 'a>,
}

impl<'a> Subject<'a> {
    /// A subject with its measurement.
    pub fn new(name: impl Into<String>, measure: impl FnMut(&Plan) -> Measured + 'a) -> Self {
        Self { name: name.into(), measure: Box::new(measure) }
    }

    /// Whether it is to be measured: all are if none is named.
    pub fn is_chosen(&self, only: &[String]) -> bool {
        only.is_empty() || only.contains(&self.name)
    }
}

/// The ratio of two cases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// The dividend.
    pub ours: String,
    /// The divisor.
    pub other: String,
}

impl Comparison {
    /// `ours` divided by `other`.
    pub fn new(ours: impl Into<String>, other: impl Into<String>) -> Self {
        Self { ours: ours.into(), other: other.into() }
    }
}

/// A property of the machine that changes by itself. Figures are comparable only if it was similar for both.
pub struct Condition<'a> {
    /// The case under which it is reported.
    pub case: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// Measures it.
    pub measure: Box<dyn FnMut() -> Result<f64, BenchError> + 'a>,
}

/// Figures are comparable if the condition around them differs by less than this factor.
const COMPARABLE_WITHIN: f64 = 2.0;
/// Limit for rounds in search of comparable figures, as a multiple of the planned runs.
const MAX_ROUNDS: usize = 3;

/// Figures of a case with the numbers of their measurements.
struct Series {
    case: String,
    unit: Unit,
    figures: Vec<(usize, f64)>,
}

/// The measurements so far.
#[derive(Default)]
struct Record {
    series: Vec<Series>,
    measurements: usize,
    /// Values of the condition, if there is one: before the first measurement and after each.
    conditions: Vec<f64>,
}

impl Record {
    fn add(&mut self, figures: Vec<Figure>) {
        for Figure { case, unit, value } in figures {
            let figure = (self.measurements, value);
            match self.series.iter_mut().find(|series| series.case == case) {
                Some(series) => series.figures.push(figure),
                None => self.series.push(Series { case, unit, figures: vec![figure] }),
            }
        }
        self.measurements += 1;
    }

    /// The ratios of runs whose figures are comparable; `None` if a case was not measured.
    fn ratios(&self, comparison: &Comparison) -> Option<Vec<f64>> {
        let find = |case: &str| self.series.iter().find(|series| series.case == case);
        let (ours, other) = (find(&comparison.ours)?, find(&comparison.other)?);
        let pairs = ours.figures.iter().zip(&other.figures);
        let like = pairs.filter(|((n, _), (m, _))| are_comparable(self.around(*n).chain(self.around(*m))));
        Some(like.map(|((_, ours), (_, other))| ours / other).collect())
    }

    /// The condition before and after a measurement.
    fn around(&self, measurement: usize) -> impl Iterator<Item = f64> {
        self.conditions.iter().skip(measurement).take(2).copied()
    }
}

fn are_comparable(conditions: impl Iterator<Item = f64>) -> bool {
    let (least, most) = conditions.fold((f64::INFINITY, 0.0_f64), |(a, b), c| (a.min(c), b.max(c)));
    most < least * COMPARABLE_WITHIN
}

/// Measures all subjects in rotation, `plan.runs` times, and summarises. Comparisons use figures of the same run; those
/// with a skipped peer are omitted.
///
/// # Errors
/// The first error of a subject: partial results would mislead.
pub fn alternate(
    plan: &Plan,
    subjects: &mut [Subject<'_>],
    comparisons: &[Comparison],
) -> Result<Vec<Row>, BenchError> {
    alternate_under(None, plan, subjects, comparisons)
}

/// As [`alternate`]. With a condition, compares only figures taken under similar conditions, and continues until each
/// comparison has `plan.runs` ratios, for at most three times as many rounds. A comparison without any ratio is
/// omitted, with a line on standard error.
///
/// # Errors
/// As [`alternate`]; [`BenchError::Unsteady`] if no comparison has a ratio.
pub fn alternate_under(
    mut condition: Option<Condition<'_>>,
    plan: &Plan,
    subjects: &mut [Subject<'_>],
    comparisons: &[Comparison],
) -> Result<Vec<Row>, BenchError> {
    let mut measure_condition = || condition.as_mut().map(|condition| (condition.measure)()).transpose();
    let (started, mut longest) = (Instant::now(), Duration::ZERO);
    let mut record = Record { conditions: measure_condition()?.into_iter().collect(), ..Record::default() };
    for run in 1..=plan.runs * MAX_ROUNDS {
        let mut ratios = comparisons.iter().filter_map(|comparison| record.ratios(comparison));
        if run > plan.runs && ratios.all(|ratios| ratios.len() >= plan.runs) {
            break;
        }
        let begun = started.elapsed();
        if let Some(limit) = plan.limit
            && run > 1
            && begun + longest > limit
        {
            eprintln!(
                "{} of {} runs: another would take longer than {} s in all; --runs {} makes them",
                run - 1,
                plan.runs,
                limit.as_secs(),
                plan.runs
            );
            break;
        }
        for subject in &mut *subjects {
            let figures = (subject.measure)(plan)?;
            eprintln!("run {run}/{}: {}: {}", plan.runs, subject.name, brief(&figures));
            record.add(figures);
            record.conditions.extend(measure_condition()?);
        }
        longest = longest.max(started.elapsed().saturating_sub(begun));
    }
    let row = |case: &str, unit, figures: &[f64]| {
        Some(Row { case: case.to_owned(), unit, summary: Summary::of(figures)? })
    };
    let mut rows = Vec::new();
    for Series { case, unit, figures } in &record.series {
        let figures: Vec<f64> = figures.iter().map(|(_, figure)| *figure).collect();
        rows.extend(row(case, *unit, &figures));
    }
    if let Some(Condition { case, unit, .. }) = condition {
        rows.extend(row(case, unit, &record.conditions));
    }
    let (mut compared, mut unsteady) = (Vec::new(), Vec::new());
    for comparison in comparisons {
        if let Some(ratios) = record.ratios(comparison) {
            let case = format!("{}/{}", comparison.ours, comparison.other);
            match row(&case, Unit::Ratio, &ratios) {
                Some(row) => compared.push(row),
                None => unsteady.push(BenchError::Unsteady { case }),
            }
        }
    }
    if compared.is_empty() && !unsteady.is_empty() {
        return Err(unsteady.remove(0));
    }
    unsteady.iter().for_each(|left_out| eprintln!("omitted: {left_out}"));
    rows.extend(compared);
    Ok(rows)
}

fn brief(figures: &[Figure]) -> String {
    let each = figures.iter().map(|figure| format!("{} {:.2}", figure.case, figure.value));
    each.collect::<Vec<_>>().join(", ")
}

/// Parses the seconds of a measurement, for the command line.
///
/// # Errors
/// What is wrong.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text} is not a number of seconds"))?;
    if (0.05..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("must be from 0.05 to 3600 seconds".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    const PLAN: Plan = Plan { runs: 3, warm_up: Duration::ZERO, window: Duration::ZERO, limit: None };

    #[test]
    fn a_window_extends_for_a_preempted_thread() {
        let plan = Plan { window: Duration::from_secs(1), ..PLAN };
        let over =
            |elapsed, cpu_time| plan.is_over(Duration::from_millis(elapsed), Duration::from_millis(cpu_time));
        assert!(over(1000, 1000) && over(1000, 500) && over(10_000, 0));
        assert!(!over(999, 999) && !over(9999, 499));
    }

    #[test]
    fn subjects_take_turns_and_ratios_pair_the_figures_of_a_run() {
        let order = RefCell::new(String::new());
        let mut ours = 0.0;
        let mut peer = 0.0;
        let mut subjects = [
            Subject::new("ours", |_| {
                order.borrow_mut().push('A');
                ours += 10.0;
                Ok(vec![
                    Figure::new("ours", Unit::Mpps, ours),
                    Figure::new("stage", Unit::CyclesPerPacket, 1.0),
                ])
            }),
            Subject::new("peer", |_| {
                order.borrow_mut().push('B');
                peer += 5.0;
                Ok(vec![Figure::new("peer", Unit::Mpps, peer)])
            }),
        ];
        let comparisons = [Comparison::new("ours", "peer"), Comparison::new("ours", "left-out")];
        let rows = alternate(&PLAN, &mut subjects, &comparisons).unwrap();
        drop(subjects);
        assert_eq!(order.into_inner(), "ABABAB");
        let names: Vec<&str> = rows.iter().map(|row| row.case.as_str()).collect();
        assert_eq!(names, ["ours", "stage", "peer", "ours/peer"]);
        let ratio = rows[3].summary;
        assert_eq!((ratio.min, ratio.median, ratio.max, ratio.runs), (2.0, 2.0, 2.0, 3));
        assert_eq!(rows[3].unit, Unit::Ratio);
    }

    #[test]
    fn a_limit_of_time_leaves_out_runs_but_not_the_first() {
        let runs = |limit: Option<Duration>| {
            let mut subject = Subject::new("slow", |_| {
                std::thread::sleep(Duration::from_millis(20));
                Ok(vec![Figure::new("slow", Unit::Mpps, 1.0)])
            });
            let plan = Plan { runs: 4, limit, ..PLAN };
            alternate(&plan, std::slice::from_mut(&mut subject), &[]).unwrap()[0].summary.runs
        };
        assert_eq!(runs(None), 4);
        assert_eq!(runs(Some(Duration::from_secs(3600))), 4);
        // The first takes 20 ms: another would end after 40.
        assert_eq!(runs(Some(Duration::from_millis(30))), 1);
    }

    /// Figures of 1, 2, 3 ... against figures of 1 of each peer, with these conditions before, between and after them.
    fn under(conditions: &[f64], peers: &[&str]) -> Result<Vec<Row>, BenchError> {
        let (mut next, mut figure) = (conditions.iter(), 0.0);
        let mut subjects = vec![Subject::new("ours", |_| {
            figure += 1.0;
            Ok(vec![Figure::new("ours", Unit::Mpps, figure)])
        })];
        subjects.extend(
            peers.iter().map(|peer| Subject::new(*peer, |_| Ok(vec![Figure::new(*peer, Unit::Mpps, 1.0)]))),
        );
        let comparisons: Vec<_> = peers.iter().map(|peer| Comparison::new("ours", *peer)).collect();
        let measure = Box::new(|| Ok(next.next().copied().unwrap_or(1.0)));
        let condition = Condition { case: "weather", unit: Unit::Cycles, measure };
        alternate_under(Some(condition), &PLAN, &mut subjects, &comparisons)
    }

    #[test]
    fn only_figures_under_similar_conditions_are_compared() {
        let conditions = [1.0, 1.5, 1.9, /* run 2 */ 2.1, 1.0, /* run 3 */ 1.0, 4.0];
        let rows = under(&conditions, &["peer"]).unwrap();
        let [ours, _, weather, ratio] = rows.as_slice() else { panic!("{rows:?}") };
        assert_eq!((ours.summary.runs, weather.summary.runs, weather.summary.max), (6, 13, 4.0));
        // Run 1, and 5 and 6 instead of 2 and 3; the condition changed before run 4.
        assert_eq!((ratio.summary.min, ratio.summary.median, ratio.summary.max), (1.0, 5.0, 6.0));
        assert_eq!(ratio.summary.runs, PLAN.runs);
    }

    #[test]
    fn only_an_impossible_comparison_is_omitted() {
        // The condition differs for the last of three cases in each run.
        let late: Vec<f64> = (0..100).map(|n| if n > 0 && n % 3 == 0 { 10.0 } else { 1.0 }).collect();
        let rows = under(&late, &["first", "second"]).unwrap();
        let cases: Vec<&str> = rows.iter().map(|row| row.case.as_str()).collect();
        assert_eq!(cases, ["ours", "first", "second", "weather", "ours/first"]);
    }

    #[test]
    fn without_any_comparison_there_is_an_error() {
        let restless: Vec<f64> = (0..100).map(|n| f64::from(n % 2) * 9.0 + 1.0).collect();
        let result = under(&restless, &["peer", "other"]);
        assert!(matches!(result, Err(BenchError::Unsteady { case }) if case == "ours/peer"));
    }

    #[test]
    fn a_failure_ends_it() {
        let mut subjects = [Subject::new("broken", |_| Err(BenchError::Cores { required: 2, available: 1 }))];
        assert!(matches!(alternate(&PLAN, &mut subjects, &[]), Err(BenchError::Cores { .. })));
    }
}
