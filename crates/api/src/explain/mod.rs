// SPDX-License-Identifier: Apache-2.0
//! What drop reasons, violations, table columns and metrics mean: for `netvm explain`, `docs/reference/counters.md` and
//! the help texts of metrics. What counters, drop reasons and violations mean is in the tables of `netvm-counters`.

use std::fmt;

use netvm_counters::{DropReason, Explained, Violation};

mod columns;
mod metrics;
mod page;

pub use columns::{COLUMNS, Column};
pub use metrics::METRICS;
pub use netvm_counters::{Metric, MetricKind};
pub use page::page;

/// All drop reasons.
pub const DROPS: &[Explained] = DropReason::EXPLAINED;

/// All violations.
pub const VIOLATIONS: &[Explained] = Violation::EXPLAINED;

/// What a name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Explanation {
    /// A drop reason.
    Drop(&'static Explained),
    /// A violation of an NF.
    Violation(&'static Explained),
    /// A column.
    Column(&'static Column),
    /// A metric.
    Metric(&'static Metric),
}

impl Explanation {
    /// All of them: drop reasons, violations, columns, metrics.
    pub fn all() -> impl Iterator<Item = Self> {
        let drops = DROPS.iter().map(Self::Drop);
        let violations = VIOLATIONS.iter().map(Self::Violation);
        let columns = COLUMNS.iter().map(Self::Column);
        drops.chain(violations).chain(columns).chain(METRICS.iter().map(Self::Metric))
    }

    /// What is called so, in any case, and with blanks or hyphens between words. Columns of several tables may share a
    /// name.
    #[must_use]
    pub fn of(name: &str) -> Vec<Self> {
        let wanted = plain(name);
        Self::all().filter(|one| plain(one.name()) == wanted).collect()
    }

    /// Names that resemble this one, the most similar first.
    #[must_use]
    pub fn like(name: &str) -> Vec<&'static str> {
        let wanted = plain(name);
        let is_part = |name: &str| wanted.len() > 2 && (name.contains(&*wanted) || wanted.contains(name));
        let mut near: Vec<(usize, &'static str)> = Self::all()
            .map(|one| (distance(&plain(one.name()), &wanted), one.name()))
            .filter(|(far, name)| *far <= wanted.len() / 3 || is_part(&plain(name)))
            .collect();
        near.sort_unstable();
        near.dedup();
        near.into_iter().map(|(_, name)| name).take(5).collect()
    }

    /// The name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Drop(one) => one.name,
            Self::Violation(one) => one.name,
            Self::Column(one) => one.name,
            Self::Metric(one) => one.name,
        }
    }

    /// What it is: `drop reason`, `violation`, the commands that show the column, or `metric`.
    #[must_use]
    pub fn kind(self) -> String {
        match self {
            Self::Drop(_) => "drop reason".to_owned(),
            Self::Violation(_) => "violation".to_owned(),
            Self::Column(one) => format!("column of {}", one.of.join(", ")),
            Self::Metric(one) => one.kind.word().to_owned(),
        }
    }

    /// Its meaning.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Drop(one) => one.text,
            Self::Violation(one) => one.text,
            Self::Column(one) => one.text,
            Self::Metric(one) => one.text,
        }
    }

    /// What to do about it; empty where there is nothing to do.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Drop(one) => one.remedy,
            Self::Violation(one) => one.remedy,
            Self::Column(_) | Self::Metric(_) => "",
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})\n  {}", self.name(), self.kind(), self.text())?;
        if let Self::Metric(one) = self {
            write!(
                f,
                "\n  labels: {}",
                if one.labels.is_empty() { "none".to_owned() } else { one.labels.join(", ") }
            )?;
        }
        if self.remedy().is_empty() { Ok(()) } else { write!(f, "\n  What to do: {}", self.remedy()) }
    }
}

/// A name without case, and with one kind of separator.
fn plain(name: &str) -> String {
    name.trim().to_lowercase().replace(['_', ' '], "-")
}

/// The number of insertions, deletions and replacements between two words (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (n, from) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], n + 1);
        for (m, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[m + 1];
            row[m + 1] = replaced.min(row[m] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case() {
        assert_eq!(Explanation::of("chain-full")[0].name(), "chain-full");
        assert_eq!(Explanation::of("CHAIN FULL"), Explanation::of("chain_full"));
        assert_eq!(Explanation::of("dropped at entry")[0].name(), "DROPPED AT ENTRY");
        assert!(Explanation::of("chain-ful").is_empty());
        assert_eq!(Explanation::like("chain-ful")[0], "chain-full");
        assert!(Explanation::like("xyzzy").is_empty());
    }

    #[test]
    fn texts_are_sentences_and_names_are_unique() {
        let mut seen = std::collections::BTreeSet::new();
        for one in Explanation::all() {
            for text in [one.text(), one.remedy()].into_iter().filter(|text| !text.is_empty()) {
                assert!(
                    text.ends_with('.') && !text.contains('|') && !text.contains('\n'),
                    "{}: {text}",
                    one.name()
                );
            }
            // Each stands alone: it is read without the one before it.
            let (text, words) = (one.text(), one.text().split_whitespace().count());
            let leans =
                [" of these", "The same", " of them", "of it."].iter().any(|part| text.contains(part));
            let pronoun = ["Its ", "It ", "Their ", "These "].iter().any(|start| text.starts_with(start));
            assert!(words >= 4 && !leans && !pronoun, "{}: {text}", one.name());
            assert!(
                text.starts_with(|c: char| c.is_uppercase() || c.is_ascii_digit()),
                "{}: {text}",
                one.name()
            );
            assert!(seen.insert((one.name(), one.kind())), "{} twice", one.name());
        }
    }
}
