// SPDX-License-Identifier: Apache-2.0
//! An index of ordered cubes that is built in microseconds, for changes since rules were compiled: finds the cubes that
//! may contain a key.
//!
//! For each family the cubes are cut along the field that gives the shortest lists. Between two consecutive bounds of
//! cubes the same cubes apply, in order; a key's list is found by bisection. If no field cuts well, there is one list.

use netvm_policy::{Cube, Family, Masked, Span};
use netvm_wire::{FlowKey, MacAddr};

/// Lists up to this length are not cut.
const UNCUT_UP_TO: usize = 8;
/// Most lists per cube, on average.
const MAX_LISTS_PER_CUBE: usize = 32;
/// Average list length at which the search for a field stops.
const SHORT_ENOUGH_LIST: usize = 4;

/// Ordered cubes with numbers.
#[derive(Debug)]
pub(crate) struct Index {
    cubes: Box<[(Cube, u32)]>,
    /// By number of [`Family`].
    families: [Cuts; 3],
}

/// The cubes of one family.
#[derive(Debug)]
struct Cuts {
    /// `None`: one list.
    by: Option<Field>,
    /// Field values at which lists begin.
    bounds: Box<[u128]>,
    /// Start of each bound's list in `places`, and the end of the last one.
    starts: Box<[u32]>,
    /// Indexes of cubes, ascending in each list.
    places: Box<[u32]>,
}

/// A field to cut along.
#[derive(Clone, Copy, Debug)]
enum Field {
    Source,
    Destination,
    DestinationPort,
    SourcePort,
    SourceMac,
    DestinationMac,
    Vlan,
}

const FIELDS: [Field; 7] = [
    Field::Source,
    Field::Destination,
    Field::DestinationPort,
    Field::SourcePort,
    Field::SourceMac,
    Field::DestinationMac,
    Field::Vlan,
];

impl Field {
    /// The lowest and highest value of a cube; a mask with holes excludes some values in between.
    fn range(self, cube: &Cube) -> (u128, u128) {
        let fields = &cube.fields;
        let all: u128 = if cube.family == Family::V4 { u32::MAX.into() } else { u128::MAX };
        let address = |set: Masked<u128>| (set.value, set.value | (all & !set.mask));
        let mac = |set: Masked<u64>| {
            (u128::from(set.value), u128::from(set.value | ((u64::MAX >> 16) & !set.mask)))
        };
        let span = |span: Span<u16>| (u128::from(span.first), u128::from(span.last));
        match self {
            Self::Source => address(fields.source),
            Self::Destination => address(fields.destination),
            Self::DestinationPort => span(fields.destination_ports),
            Self::SourcePort => span(fields.source_ports),
            Self::SourceMac => mac(fields.source_mac),
            Self::DestinationMac => mac(fields.destination_mac),
            Self::Vlan => span(fields.vlan),
        }
    }

    fn value(self, family: Family, key: &FlowKey) -> u128 {
        let mac = |mac: MacAddr| mac.0.iter().fold(0, |bits, byte| bits << 8 | u128::from(*byte));
        match self {
            Self::Source => family.address_bits(key.source),
            Self::Destination => family.address_bits(key.destination),
            Self::DestinationPort => key.destination_port.into(),
            Self::SourcePort => key.source_port.into(),
            Self::SourceMac => mac(key.source_mac),
            Self::DestinationMac => mac(key.destination_mac),
            Self::Vlan => key.vlan.map_or(0, |vlan| vlan.get().into()),
        }
    }
}

impl Index {
    /// Builds the index.
    pub(crate) fn new(cubes: Box<[(Cube, u32)]>) -> Self {
        let families = [Family::V4, Family::V6, Family::Other].map(|family| Cuts::new(&cubes, family));
        Self { cubes, families }
    }

    /// The cubes, in order.
    pub(crate) fn cubes(&self) -> &[(Cube, u32)] {
        &self.cubes
    }

    /// How many cubes there are.
    pub(crate) fn len(&self) -> usize {
        self.cubes.len()
    }

    /// The cubes that may contain the key, in order, with their numbers; includes all that do.
    #[inline]
    pub(crate) fn candidates(&self, key: &FlowKey) -> impl Iterator<Item = &(Cube, u32)> {
        let family = Family::of(key);
        let list = self.families[family as usize].list(family, key);
        list.iter().filter_map(|place| self.cubes.get(*place as usize))
    }
}

impl Cuts {
    fn new(cubes: &[(Cube, u32)], family: Family) -> Self {
        let all: Box<[u32]> = (0u32..)
            .zip(cubes)
            .filter(|(_, (cube, _))| cube.family == family)
            .map(|(place, _)| place)
            .collect();
        let mut best: Option<(Field, Box<[u128]>, usize)> = None;
        if all.len() > UNCUT_UP_TO {
            for field in FIELDS {
                let ranges = || all.iter().map(|place| field.range(&cubes[*place as usize].0));
                let Some((bounds, length)) = cut(ranges) else { continue };
                if best.as_ref().is_none_or(|(_, _, shortest)| length < *shortest) {
                    best = Some((field, bounds, length));
                }
                if length <= SHORT_ENOUGH_LIST {
                    break;
                }
            }
        }
        match best {
            Some((field, bounds, _)) => Self::filled(cubes, &all, field, bounds),
            None => {
                Self { by: None, bounds: Box::default(), starts: [0, all.len() as u32].into(), places: all }
            }
        }
    }

    fn filled(cubes: &[(Cube, u32)], all: &[u32], field: Field, bounds: Box<[u128]>) -> Self {
        let lists = |place: &u32| spanned(&bounds, field.range(&cubes[*place as usize].0));
        let mut starts = vec![0_u32; bounds.len() + 1];
        for list in all.iter().flat_map(lists) {
            starts[list + 1] += 1;
        }
        for n in 0..bounds.len() {
            starts[n + 1] += starts[n];
        }
        let mut ends = starts.clone();
        let mut places = vec![0; starts.last().map_or(0, |end| *end as usize)];
        for place in all {
            for list in lists(place) {
                places[ends[list] as usize] = *place;
                ends[list] += 1;
            }
        }
        Self { by: Some(field), bounds, starts: starts.into(), places: places.into() }
    }

    #[inline]
    fn list(&self, family: Family, key: &FlowKey) -> &[u32] {
        let Some(field) = self.by else { return &self.places };
        let value = field.value(family, key);
        // No cube is below the first bound.
        let Some(list) = self.bounds.partition_point(|bound| *bound <= value).checked_sub(1) else {
            return &[];
        };
        let (start, end) = (self.starts[list] as usize, self.starts[list + 1] as usize);
        self.places.get(start..end).unwrap_or_default()
    }
}

/// The bounds of the ranges and the average length of the lists between them; `None` if it takes too much memory.
fn cut<I: Iterator<Item = (u128, u128)>>(ranges: impl Fn() -> I) -> Option<(Box<[u128]>, usize)> {
    let ends = ranges().flat_map(|(first, last)| [Some(first), last.checked_add(1)]).flatten();
    let mut bounds: Vec<u128> = ends.collect();
    bounds.sort_unstable();
    bounds.dedup();
    let places: usize = ranges().map(|range| spanned(&bounds, range).len()).sum();
    let count = ranges().count();
    let fits = places <= MAX_LISTS_PER_CUBE * count && bounds.len() > 2;
    fits.then(|| (bounds.as_slice().into(), places / bounds.len()))
}

/// The lists of a range.
fn spanned(bounds: &[u128], (first, last): (u128, u128)) -> std::ops::Range<usize> {
    bounds.partition_point(|bound| *bound < first)..bounds.partition_point(|bound| *bound <= last)
}

#[cfg(test)]
mod tests {
    use netvm_policy::arbitrary::{Generator, rules_and_keys};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn candidates_include_all_containing_cubes_in_order((rules, keys) in rules_and_keys(0..60, 1..60)) {
            let cubes = rules.iter().filter_map(|rule| rule.matches.cubes().ok()).flatten();
            let cubes: Box<[(Cube, u32)]> = cubes.zip(0u32..).collect();
            let index = Index::new(cubes.clone());
            for key in &keys {
                let contains = |(cube, n): &(Cube, u32)| cube.contains(key).then_some(*n);
                let found: Vec<u32> = index.candidates(key).filter_map(contains).collect();
                let all: Vec<u32> = cubes.iter().filter_map(contains).collect();
                prop_assert_eq!(found, all);
            }
        }
    }

    #[test]
    fn lists_are_cut_along_the_most_selective_field() {
        let mut generator = Generator::new(1);
        let any = Cube { family: Family::V4, fields: netvm_policy::Fields::ANY };
        let hosts = (0..1000_u32).map(|n| {
            let mut cube = any;
            cube.fields.destination = Masked { value: (n * 7).into(), mask: u32::MAX.into() };
            (cube, n)
        });
        let index = Index::new(hosts.chain([(any, 1000)]).collect());
        for n in [0, 7, 6993] {
            let mut key = generator.uniform_key();
            key.ether_type = netvm_wire::EtherType::IPV4;
            key.destination = netvm_wire::Address::from_v4_bits(n);
            let numbers: Vec<u32> = index.candidates(&key).map(|(_, number)| *number).collect();
            assert_eq!(numbers, [n / 7, 1000]);
        }
    }
}
