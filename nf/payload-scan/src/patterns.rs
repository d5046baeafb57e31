// SPDX-License-Identifier: Apache-2.0
//! The set of patterns, and the search for them.
//!
//! One automaton finds the case-sensitive patterns, another the others; most files need only one. The search first
//! looks for any match, for which the automaton may skip ahead and which most packets do not have. From there on it
//! looks for all matches, overlapping ones included, as an overlapped pattern may be the deciding one.

use std::path::Path;

use aho_corasick::{AhoCorasick, Anchored, Input};
use netvm_nf_common::{ConfigError, FastMap, Lines};

use crate::{Action, Pattern};

/// The patterns of a file, in order.
#[derive(Clone, Debug, Default)]
pub struct Patterns {
    list: Vec<Pattern>,
    parts: Vec<Part>,
}

/// The patterns of an automaton.
#[derive(Clone, Debug)]
struct Part {
    automaton: AhoCorasick,
    /// Their indexes in the list, ascending.
    places: Vec<usize>,
    longest: usize,
    /// Whether one of them only counts, so that the search must not stop at the best deciding match.
    counts: bool,
}

impl Patterns {
    /// Reads a file; `ignore_case` applies to all texts.
    ///
    /// # Errors
    /// [`ConfigError`] names the file, the line, what was found and what was expected.
    pub fn read(path: &Path, ignore_case: bool) -> Result<Self, ConfigError> {
        Self::from_lines(&Lines::read(path)?, ignore_case)
    }

    /// As [`Patterns::read`], from lines already read.
    ///
    /// # Errors
    /// As for [`Patterns::read`].
    pub fn from_lines(lines: &Lines, ignore_case: bool) -> Result<Self, ConfigError> {
        let mut list = Vec::new();
        let mut places: FastMap<(Box<[u8]>, bool, bool), usize> = FastMap::default();
        let mut last = 1;
        for (line, text) in lines.entries() {
            let pattern =
                Pattern::parse(text, ignore_case).map_err(|error| lines.error(line, error.to_string()))?;
            if let Some(first) = places.insert(same_as(&pattern), line) {
                let problem = format!("the pattern is in line {first} already: remove one of the two");
                return Err(lines.error(line, problem));
            }
            list.push(pattern);
            last = line;
        }
        Self::new(list)
            .map_err(|error| lines.error(last, format!("too many patterns up to this line: {error}")))
    }

    fn new(list: Vec<Pattern>) -> Result<Self, aho_corasick::BuildError> {
        let mut parts = Vec::new();
        for ignore_case in [false, true] {
            let of_this_part =
                list.iter().enumerate().filter(|(_, pattern)| pattern.ignore_case == ignore_case);
            let (places, patterns): (Vec<usize>, Vec<&Pattern>) = of_this_part.unzip();
            if places.is_empty() {
                continue;
            }
            let mut builder = AhoCorasick::builder();
            let automaton = builder
                .ascii_case_insensitive(ignore_case)
                .build(patterns.iter().map(|pattern| &pattern.bytes))?;
            let longest = patterns.iter().map(|pattern| pattern.bytes.len()).max().unwrap_or(0);
            let counts = patterns.iter().any(|pattern| pattern.action == Action::Count);
            parts.push(Part { automaton, places, longest, counts });
        }
        Ok(Self { list, parts })
    }

    /// All patterns.
    #[must_use]
    pub fn list(&self) -> &[Pattern] {
        &self.list
    }

    /// The index of the first deciding pattern in `text`. Calls `count` for each match of a pattern that counts.
    #[inline]
    pub fn scan(&self, text: &[u8], mut count: impl FnMut(usize)) -> Option<usize> {
        let mut best = usize::MAX;
        for part in &self.parts {
            part.scan(text, &self.list, &mut best, &mut count);
        }
        (best != usize::MAX).then_some(best)
    }
}

impl Part {
    #[inline]
    fn scan(&self, text: &[u8], list: &[Pattern], best: &mut usize, count: &mut impl FnMut(usize)) {
        let first_place = self.places.first().copied().unwrap_or(usize::MAX);
        if *best < first_place && !self.counts {
            return;
        }
        let Some(first) = self.automaton.find(text) else { return };
        // This match ends first, so no match begins before `start`.
        let start = first.end().saturating_sub(self.longest);
        let rest = Input::new(text).anchored(Anchored::No).range(start..);
        for found in self.automaton.find_overlapping_iter(rest) {
            let Some(place) = self.places.get(found.pattern().as_usize()).copied() else { continue };
            match list.get(place).map(|pattern| &pattern.action) {
                Some(Action::Count) => count(place),
                Some(Action::Send(_)) => *best = place.min(*best),
                None => {}
            }
            if *best <= first_place && !self.counts {
                return;
            }
        }
    }
}

/// Equal for redundant patterns. A counting and a deciding pattern are not redundant.
fn same_as(pattern: &Pattern) -> (Box<[u8]>, bool, bool) {
    let bytes =
        if pattern.ignore_case { pattern.bytes.to_ascii_lowercase().into() } else { pattern.bytes.clone() };
    (bytes, pattern.ignore_case, pattern.action == Action::Count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn patterns(text: &str, ignore_case: bool) -> Result<Patterns, String> {
        Patterns::from_lines(&Lines::from_text(Path::new("p"), text), ignore_case).map_err(|e| e.to_string())
    }

    #[test]
    fn the_first_line_decides_wherever_it_is() {
        let patterns = patterns("drop \"abcd\"\nnext \"bc\"\nnext \"x\"\ncount \"c\"\n", false).unwrap();
        let scan = |text: &str| {
            let mut counted = 0;
            (patterns.scan(text.as_bytes(), |_| counted += 1), counted)
        };
        assert_eq!(scan("x abcd"), (Some(0), 1), "although bc and x end before it");
        assert_eq!(scan("x bcc abc"), (Some(1), 3));
        assert_eq!(scan("..c"), (None, 1));
        assert_eq!(scan("ABCD"), (None, 0));
        assert_eq!(scan(""), (None, 0));
    }

    #[test]
    fn case_is_ignored_if_configured_and_never_in_hex() {
        let both = "drop \"Get\"\nnext hex:61 62\n";
        let of = |text: &str, all: bool| patterns(text, all).unwrap();
        assert_eq!(of(both, false).scan(b"gET", |_| {}), None);
        assert_eq!(of(both, true).scan(b"gET", |_| {}), Some(0));
        assert_eq!(of(both, true).scan(b"AB", |_| {}), None);
        assert_eq!(of(both, true).scan(b"ab get", |_| {}), Some(0));
        assert_eq!(of("drop \"Get\"i\n", false).scan(b"gET", |_| {}), Some(0));
    }

    #[test]
    fn errors_name_file_and_line() {
        for (text, ignore_case, expected) in [
            ("# none\ndrop \"a\"\n\nallow \"b\"", false, "p:4: `allow` is not an action"),
            ("drop \"ab\"\nnext hex:61 62", false, "p:2: the pattern is in line 1 already"),
            ("drop \"ab\"\nnext \"AB\"", true, "p:2: the pattern is in line 1 already"),
            ("drop \"a #b\"", false, "p:1: the text does not end"),
        ] {
            let error = patterns(text, ignore_case).unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        for text in ["drop \"ab\"\nnext \"AB\"", "drop \"ab\"\ncount \"ab\""] {
            assert_eq!(patterns(text, false).unwrap().list().len(), 2);
        }
        assert_eq!(patterns("# none", false).unwrap().scan(b"a", |_| {}), None);
    }

    /// Whether the pattern is in the text, by comparing at each position.
    fn is_in(pattern: &Pattern, text: &[u8]) -> bool {
        text.windows(pattern.bytes.len()).any(|place| {
            if pattern.ignore_case {
                place.eq_ignore_ascii_case(&pattern.bytes)
            } else {
                place == &*pattern.bytes
            }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn agrees_with_a_naive_search(
            list in prop::collection::vec(("[abAB]{1,5}", any::<bool>(), prop::bool::weighted(0.3)), 0..12),
            texts in prop::collection::vec("[abABx]{0,40}", 1..8),
        ) {
            let pattern = |(text, ignore_case, counts): (String, bool, bool)| Pattern {
                bytes: text.into_bytes().into(),
                ignore_case,
                action: if counts { Action::Count } else { Action::Send(crate::Destination::Drop) },
            };
            let list: Vec<_> = list.into_iter().map(pattern).collect();
            let patterns = Patterns::new(list.clone()).unwrap();
            for text in texts {
                let found = |counts: bool| {
                    let text = text.as_bytes();
                    let is = move |pattern: &Pattern| (pattern.action == Action::Count) == counts && is_in(pattern, text);
                    list.iter().enumerate().filter(move |(_, pattern)| is(pattern)).map(|(place, _)| place)
                };
                let mut counted = BTreeSet::new();
                let decided = patterns.scan(text.as_bytes(), |place| {
                    counted.insert(place);
                });
                prop_assert_eq!(decided, found(false).next());
                prop_assert_eq!(counted, found(true).collect());
            }
        }
    }
}
