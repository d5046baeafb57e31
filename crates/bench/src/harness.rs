//! How figures are taken: A B C A B C ..., so that whatever else the machine does meets all cases alike.

use std::time::Duration;

use crate::error::BenchError;
use crate::report::{Row, Unit};
use crate::stats::{Summary, pairwise};

/// How long and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Figures of each case.
    pub runs: usize,
    /// Time before each figure is taken, for caches, rings and the processor's clock to settle.
    pub warm_up: Duration,
    /// Time over which each figure is taken.
    pub window: Duration,
}

impl Plan {
    /// Whether a window is over after `elapsed` by the clock, in which the thread that is measured had its core for `had`:
    /// where something else runs there, half of the planned time is waited for, but not for ever.
    pub fn is_over(&self, elapsed: Duration, had: Duration) -> bool {
        elapsed >= self.window * 10 || elapsed >= self.window && had >= self.window / 2
    }
}

/// One figure of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The case that it belongs to.
    pub case: String,
    /// What it counts.
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

/// The figures of one measurement.
pub type Measured = Result<Vec<Figure>, BenchError>;

/// Something that can be set up, measured and taken down as often as wanted; one measurement may give figures of
/// several cases.
pub struct Subject<'a> {
    name: String,
    measure: Box<dyn FnMut(&Plan) -> Measured + 'a>,
}

impl<'a> Subject<'a> {
    /// A subject, and how it is measured.
    pub fn new(name: impl Into<String>, measure: impl FnMut(&Plan) -> Measured + 'a) -> Self {
        Self { name: name.into(), measure: Box::new(measure) }
    }
}

/// A case that is the ratio of two others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// What is divided.
    pub ours: String,
    /// By what.
    pub other: String,
}

impl Comparison {
    /// `ours` divided by `other`.
    pub fn new(ours: impl Into<String>, other: impl Into<String>) -> Self {
        Self { ours: ours.into(), other: other.into() }
    }
}

/// All figures of one case, one for each run.
struct Series {
    case: String,
    unit: Unit,
    figures: Vec<f64>,
}

/// Measures every subject in turn, `plan.runs` times over, and summarises; comparisons are computed from the figures of
/// the same run. Those with a case that was not measured (a peer that was left out) are left out.
///
/// # Errors
/// The first that a subject has: a benchmark with a hole in it would be read as if it had none.
pub fn alternate(
    plan: &Plan,
    subjects: &mut [Subject<'_>],
    comparisons: &[Comparison],
) -> Result<Vec<Row>, BenchError> {
    let mut all: Vec<Series> = Vec::new();
    for run in 1..=plan.runs {
        for subject in &mut *subjects {
            let figures = (subject.measure)(plan)?;
            eprintln!("run {run}/{}: {}: {}", plan.runs, subject.name, brief(&figures));
            for figure in figures {
                match all.iter_mut().find(|series| series.case == figure.case) {
                    Some(series) => series.figures.push(figure.value),
                    None => {
                        all.push(Series {
                            case: figure.case,
                            unit: figure.unit,
                            figures: vec![figure.value],
                        });
                    }
                }
            }
        }
    }
    let find = |case: &str| all.iter().find(|series| series.case == case);
    let mut ratios = Vec::new();
    for Comparison { ours, other } in comparisons {
        if let (Some(a), Some(b)) = (find(ours), find(other)) {
            let figures = pairwise(&a.figures, &b.figures);
            ratios.push(Series { case: format!("{ours}/{other}"), unit: Unit::Ratio, figures });
        }
    }
    let row = |series: Series| {
        let summary = Summary::of(&series.figures)?;
        Some(Row { case: series.case, unit: series.unit, summary })
    };
    Ok(all.into_iter().chain(ratios).filter_map(row).collect())
}

fn brief(figures: &[Figure]) -> String {
    let each = figures.iter().map(|figure| format!("{} {:.2}", figure.case, figure.value));
    each.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    const PLAN: Plan = Plan { runs: 3, warm_up: Duration::ZERO, window: Duration::ZERO };

    #[test]
    fn a_window_waits_for_a_thread_that_is_kept_from_its_core() {
        let plan = Plan { window: Duration::from_secs(1), ..PLAN };
        let over = |elapsed, had| plan.is_over(Duration::from_millis(elapsed), Duration::from_millis(had));
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
        let wanted = [Comparison::new("ours", "peer"), Comparison::new("ours", "left-out")];
        let rows = alternate(&PLAN, &mut subjects, &wanted).unwrap();
        drop(subjects);
        assert_eq!(order.into_inner(), "ABABAB");
        let names: Vec<&str> = rows.iter().map(|row| row.case.as_str()).collect();
        assert_eq!(names, ["ours", "stage", "peer", "ours/peer"]);
        let ratio = rows[3].summary;
        assert_eq!((ratio.min, ratio.median, ratio.max, ratio.runs), (2.0, 2.0, 2.0, 3));
        assert_eq!(rows[3].unit, Unit::Ratio);
    }

    #[test]
    fn a_failure_ends_it() {
        let mut subjects = [Subject::new("broken", |_| Err(BenchError::Cores { wanted: 2, have: 1 }))];
        assert!(matches!(alternate(&PLAN, &mut subjects, &[]), Err(BenchError::Cores { .. })));
    }
}
