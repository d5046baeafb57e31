// SPDX-License-Identifier: Apache-2.0
//! Rules lowered to cubes and sets of ports.

use std::collections::HashMap;
use std::ops::Range;

use netvm_ids::PortId;

use crate::cubes::Cube;
use crate::matching::Match;
use crate::rule::Rule;

use super::{Analysis, Kind, possible};

/// Most cubes of a rule, and of all rules; larger ones are not compared.
const MAX_CUBES_OF_RULE: usize = 1 << 12;
const MAX_CUBES_OF_ALL: usize = 1 << 18;

/// The cubes of matchable rules.
#[derive(Default)]
pub(super) struct Lowered {
    /// All cubes, rule by rule.
    pub(super) cubes: Vec<Cube>,
    /// The rule of each cube.
    pub(super) owners: Vec<usize>,
    /// The cubes of each rule.
    pub(super) ranges: Vec<Range<usize>>,
    /// Index in `sets` for each rule.
    ports: Vec<usize>,
    sets: Vec<Ports>,
}

/// The ports of a match.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Ports {
    from: Vec<PortId>,
    to: Vec<PortId>,
}

impl Lowered {
    /// Warns of rules that no packet can match.
    pub(super) fn of(rules: &[Rule], found: &mut Analysis) -> Self {
        let mut lowered = Self::default();
        let mut places = HashMap::new();
        for (n, rule) in rules.iter().enumerate() {
            let start = lowered.cubes.len();
            match rule.matches.cubes_within(MAX_CUBES_OF_RULE.min(MAX_CUBES_OF_ALL - start)) {
                Ok(cubes) => match nothing_fits(&cubes) {
                    Some(why) => found.warn(Kind::Impossible(why), n, None),
                    None => lowered.cubes.extend(cubes),
                },
                Err(_) => found.unfinished = found.unfinished.or(Some(n)),
            }
            lowered.owners.resize(lowered.cubes.len(), n);
            lowered.ranges.push(start..lowered.cubes.len());
            let ports = Ports::of(&rule.matches);
            let place = *places.entry(ports.clone()).or_insert(lowered.sets.len());
            if place == lowered.sets.len() {
                lowered.sets.push(ports);
            }
            lowered.ports.push(place);
        }
        lowered
    }

    /// Whether some pair of ingress and egress ports matches both rules.
    pub(super) fn ports_meet(&self, a: usize, b: usize) -> bool {
        let (a, b) = (self.ports[a], self.ports[b]);
        a == b || self.sets[a].meets(&self.sets[b])
    }

    /// Whether rule `a` matches all ports of rule `b`.
    pub(super) fn ports_cover(&self, a: usize, b: usize) -> bool {
        let (a, b) = (self.ports[a], self.ports[b]);
        a == b || self.sets[a].covers(&self.sets[b])
    }
}

fn nothing_fits(cubes: &[Cube]) -> Option<possible::Impossible> {
    let mut why = possible::Impossible::Families;
    for (n, cube) in cubes.iter().enumerate() {
        let reason = possible::check(cube).err()?;
        if n == 0 {
            why = reason;
        }
    }
    Some(why)
}

impl Ports {
    fn of(matches: &Match) -> Self {
        let sorted = |ports: &[PortId]| {
            let mut ports = ports.to_vec();
            ports.sort_unstable();
            ports.dedup();
            ports
        };
        Self { from: sorted(&matches.from), to: sorted(&matches.to) }
    }

    fn meets(&self, other: &Self) -> bool {
        let common = |a: &[PortId], b: &[PortId]| a.iter().any(|port| b.binary_search(port).is_ok());
        (self.from.is_empty() || other.from.is_empty() || common(&self.from, &other.from))
            && (self.to == other.to || common(&self.to, &other.to))
    }

    fn covers(&self, other: &Self) -> bool {
        let all = |a: &[PortId], b: &[PortId]| b.iter().all(|port| a.binary_search(port).is_ok());
        (self.from.is_empty() || (!other.from.is_empty() && all(&self.from, &other.from)))
            && self.to.is_empty() == other.to.is_empty()
            && all(&self.to, &other.to)
    }
}
