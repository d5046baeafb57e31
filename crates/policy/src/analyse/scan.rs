// SPDX-License-Identifier: Apache-2.0
//! Compares each rule with the earlier ones.

use crate::cubes::Family;
use crate::rule::Rule;

use super::index::Index;
use super::lowered::Lowered;
use super::{Analysis, Kind, MAX_OVERLAPS, subtract};

/// Most comparisons of cubes.
const BUDGET: u64 = 20_000_000;
/// Most earlier cubes considered to cover a cube together.
const MAX_TOGETHER: usize = 32;

/// The rules, and scratch memory for the current one.
pub(super) struct Scan<'a> {
    rules: &'a [Rule],
    lowered: &'a Lowered,
    /// By family.
    indexes: [Index; 3],
    /// The intersection of the rule with each earlier one.
    intersections: Vec<Intersection>,
    /// Earlier rules with an entry in `intersections`.
    touched: Vec<usize>,
    /// The rule that last covered each cube.
    inside: Vec<usize>,
    compared: u64,
}

#[derive(Clone, Copy)]
struct Intersection {
    /// The last of the rule's cubes that the earlier rule covers.
    last: usize,
    /// Number of the rule's cubes that the earlier rule covers.
    covered: usize,
    /// Number of the earlier rule's cubes that the rule covers.
    inside: usize,
    touched: bool,
}

impl Intersection {
    const NOTHING: Self = Self { last: usize::MAX, covered: 0, inside: 0, touched: false };
}

/// The first earlier rule of each kind.
#[derive(Default)]
struct FirstRules {
    same: Option<(usize, Kind)>,
    shadow: Option<usize>,
    overlap: Option<usize>,
}

impl<'a> Scan<'a> {
    pub(super) fn new(rules: &'a [Rule], lowered: &'a Lowered) -> Self {
        Self {
            rules,
            lowered,
            indexes: [Family::V4, Family::V6, Family::Other].map(|family| Index::new(&lowered.cubes, family)),
            intersections: vec![Intersection::NOTHING; rules.len()],
            touched: Vec::new(),
            inside: vec![usize::MAX; lowered.cubes.len()],
            compared: 0,
        }
    }

    pub(super) fn run(mut self, found: &mut Analysis) {
        let mut overlaps = 0;
        for rule in 0..self.rules.len() {
            if self.compared > BUDGET {
                found.unfinished = Some(found.unfinished.map_or(rule, |first| first.min(rule)));
                break;
            }
            let together = self.meet(rule);
            let firsts = self.compare(rule);
            if let Some((other, kind)) = firsts.same {
                found.warn(kind, rule, Some(other));
            } else if let Some(other) = firsts.shadow {
                found.warn(Kind::Shadowed, rule, Some(other));
            } else if let Some(other) = together {
                found.warn(Kind::ShadowedTogether, rule, Some(other));
            } else if let Some(other) = firsts.overlap {
                overlaps += 1;
                if overlaps <= MAX_OVERLAPS {
                    found.warn(Kind::Overlap, rule, Some(other));
                }
            }
            for other in self.touched.drain(..) {
                self.intersections[other] = Intersection::NOTHING;
            }
        }
        found.more_overlaps = overlaps.saturating_sub(MAX_OVERLAPS);
    }

    /// Fills `intersections`. If earlier rules with terminal actions cover all cubes of the rule, returns the first of
    /// them.
    fn meet(&mut self, rule: usize) -> Option<usize> {
        let lowered = self.lowered;
        let cubes = lowered.ranges[rule].clone();
        let mut all = !cubes.is_empty();
        let mut first = usize::MAX;
        for n in cubes {
            let cube = &lowered.cubes[n];
            let mut whole = None;
            let mut parts = Vec::new();
            self.indexes[cube.family as usize].visit(n, &mut |place| {
                let other = lowered.owners[place];
                if other >= rule {
                    return;
                }
                self.compared += 1;
                let earlier = &lowered.cubes[place];
                if !earlier.meets(cube) || !lowered.ports_meet(rule, other) {
                    return;
                }
                let intersection = &mut self.intersections[other];
                if !intersection.touched {
                    intersection.touched = true;
                    self.touched.push(other);
                }
                let covers = earlier.covers(cube);
                if covers && intersection.last != n {
                    intersection.last = n;
                    intersection.covered += 1;
                }
                if self.inside[place] != rule && cube.covers(earlier) {
                    self.inside[place] = rule;
                    intersection.inside += 1;
                }
                let earlier = &self.rules[other];
                let decides = earlier.actions.terminal.is_some() && earlier.applies_with(&self.rules[rule]);
                if all && decides && lowered.ports_cover(other, rule) {
                    if covers {
                        whole = Some(whole.map_or(other, |first: usize| first.min(other)));
                    } else if parts.len() <= MAX_TOGETHER {
                        parts.push(place);
                    }
                }
            });
            if let Some(other) = whole {
                first = first.min(other);
            } else if all {
                parts.sort_unstable();
                let by: Vec<_> = parts.iter().map(|place| &lowered.cubes[*place]).collect();
                all = (2..=MAX_TOGETHER).contains(&by.len()) && subtract::covered(cube, &by);
                first = parts.first().map_or(first, |place| first.min(lowered.owners[*place]));
            }
        }
        all.then_some(first)
    }

    fn compare(&self, rule: usize) -> FirstRules {
        let mut firsts = FirstRules::default();
        let actions = &self.rules[rule].actions;
        let least = |first: Option<usize>, other: usize| Some(first.map_or(other, |first| first.min(other)));
        for other in self.touched.iter().copied() {
            let (intersection, earlier) = (&self.intersections[other], &self.rules[other].actions);
            let covered = intersection.covered == self.lowered.ranges[rule].len()
                && self.lowered.ports_cover(other, rule)
                && self.rules[other].applies_with(&self.rules[rule]);
            let covers = intersection.inside == self.lowered.ranges[other].len()
                && self.lowered.ports_cover(rule, other)
                && self.rules[rule].applies_with(&self.rules[other]);
            let decides = earlier.terminal.is_some();
            let differs = decides && actions.terminal.is_some() && earlier.terminal != actions.terminal;
            let same = match () {
                () if !(covered && covers) => None,
                () if earlier == actions => Some(Kind::Duplicate),
                () if differs => Some(Kind::Contradiction),
                () => None,
            };
            if let Some(kind) = same.filter(|_| firsts.same.is_none_or(|(first, _)| other < first)) {
                firsts.same = Some((other, kind));
            }
            if covered && decides {
                firsts.shadow = least(firsts.shadow, other);
            } else if differs && !covers && self.rules[other].when() == self.rules[rule].when() {
                firsts.overlap = least(firsts.overlap, other);
            }
        }
        firsts
    }
}
