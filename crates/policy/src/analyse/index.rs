// SPDX-License-Identifier: Apache-2.0
//! Finds the cubes that may intersect a cube, by their ranges in the two most selective fields.
//!
//! An interval tree in a sorted array: the root of each slice is its middle and holds the highest end in the slice.
//! Values are replaced by their ranks to keep nodes small.

use crate::cubes::{Cube, Family};
use crate::span::{Masked, Span};

/// Cubes of a family, indexed by their ranges in two fields.
pub(super) struct Index {
    nodes: Vec<Node>,
    /// The ranges of each cube of the family.
    ranges: Vec<[Range; 2]>,
}

/// Ranks from first to last, inclusive.
#[derive(Clone, Copy, Debug, Default)]
struct Range {
    first: u32,
    last: u32,
}

struct Node {
    ranges: [Range; 2],
    /// The highest end in the node's slice.
    highest: u32,
    /// The number of the cube.
    cube: u32,
}

impl Range {
    const fn meets(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// The lowest and the highest value of a cube in a field.
type Field = fn(&Cube) -> (u128, u128);

const FIELDS: [Field; 14] = [
    |cube| masked(cube.fields.source, address_bits(cube)),
    |cube| masked(cube.fields.destination, address_bits(cube)),
    |cube| span(cube.fields.destination_ports),
    |cube| span(cube.fields.source_ports),
    |cube| mac(cube.fields.source_mac),
    |cube| mac(cube.fields.destination_mac),
    |cube| byte(cube.fields.protocol),
    |cube| span(cube.fields.vlan),
    |cube| span(cube.fields.inner_vlan),
    |cube| span(cube.fields.ether_type),
    |cube| byte(cube.fields.tcp_flags),
    |cube| span(cube.fields.dscp),
    |cube| span(cube.fields.icmp_type),
    |cube| span(cube.fields.arp_operation),
];

impl Index {
    /// Indexes the cubes of the family.
    pub(super) fn new(cubes: &[Cube], family: Family) -> Self {
        let of_family: Vec<usize> = (0..cubes.len()).filter(|n| cubes[*n].family == family).collect();
        let mut best = [(u64::MAX, Vec::new()), (u64::MAX, Vec::new())];
        for field in FIELDS {
            let ranked = ranks(of_family.iter().map(|n| field(&cubes[*n])));
            let meetings = meetings(&ranked);
            if meetings < best[0].0 {
                best.swap(0, 1);
                best[0] = (meetings, ranked);
            } else if meetings < best[1].0 {
                best[1] = (meetings, ranked);
            }
        }
        let [(_, first), (_, second)] = best;
        let mut ranges = vec![[Range::default(); 2]; cubes.len()];
        let mut nodes = Vec::with_capacity(of_family.len());
        for (cube, (first, second)) in of_family.into_iter().zip(first.into_iter().zip(second)) {
            ranges[cube] = [first, second];
            nodes.push(Node { ranges: [first, second], highest: first.last, cube: cube as u32 });
        }
        nodes.sort_unstable_by_key(|node| (node.ranges[0].first, node.cube));
        raise(&mut nodes);
        Self { nodes, ranges }
    }

    /// Calls `call` with each cube that may intersect `cube`.
    pub(super) fn visit(&self, cube: usize, call: &mut impl FnMut(usize)) {
        visit(&self.nodes, self.ranges[cube], call);
    }
}

fn visit(nodes: &[Node], ranges: [Range; 2], call: &mut impl FnMut(usize)) {
    let middle = nodes.len() / 2;
    let Some(node) = nodes.get(middle).filter(|node| node.highest >= ranges[0].first) else { return };
    visit(&nodes[..middle], ranges, call);
    if node.ranges[0].first <= ranges[0].last {
        if node.ranges[0].last >= ranges[0].first && node.ranges[1].meets(ranges[1]) {
            call(node.cube as usize);
        }
        visit(&nodes[middle + 1..], ranges, call);
    }
}

/// Sets `highest` of all nodes; returns the slice's.
fn raise(nodes: &mut [Node]) -> u32 {
    let middle = nodes.len() / 2;
    let (before, rest) = nodes.split_at_mut(middle);
    let Some((node, after)) = rest.split_first_mut() else { return 0 };
    node.highest = node.ranges[0].last.max(raise(before)).max(raise(after));
    node.highest
}

/// Replaces each value by its rank.
fn ranks(ranges: impl Iterator<Item = (u128, u128)>) -> Vec<Range> {
    let ranges: Vec<(u128, u128)> = ranges.collect();
    let mut values: Vec<u128> = ranges.iter().flat_map(|(first, last)| [*first, *last]).collect();
    values.sort_unstable();
    values.dedup();
    let rank = |value| values.partition_point(|other| *other < value) as u32;
    ranges.into_iter().map(|(first, last)| Range { first: rank(first), last: rank(last) }).collect()
}

/// Number of intersecting pairs, each range with itself included.
fn meetings(ranges: &[Range]) -> u64 {
    let (mut firsts, mut lasts): (Vec<u32>, Vec<u32>) =
        ranges.iter().map(|range| (range.first, range.last)).unzip();
    firsts.sort_unstable();
    lasts.sort_unstable();
    let met = |range: &Range| {
        let begun = firsts.partition_point(|first| *first <= range.last);
        let over = lasts.partition_point(|last| *last < range.first);
        (begun - over) as u64
    };
    ranges.iter().map(met).sum()
}

const fn address_bits(cube: &Cube) -> u128 {
    match cube.family {
        Family::V4 => u32::MAX as u128,
        Family::V6 | Family::Other => u128::MAX,
    }
}

/// The range of a masked set; for a mask that is not a prefix, the range around its values.
const fn masked(set: Masked<u128>, all: u128) -> (u128, u128) {
    (set.value, set.value | (!set.mask & all))
}

fn mac(set: Masked<u64>) -> (u128, u128) {
    masked(Masked { value: set.value.into(), mask: set.mask.into() }, (1 << 48) - 1)
}

fn byte(set: Masked<u8>) -> (u128, u128) {
    masked(Masked { value: set.value.into(), mask: set.mask.into() }, u8::MAX.into())
}

fn span<T: Into<u128>>(set: Span<T>) -> (u128, u128) {
    (set.first.into(), set.last.into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::arbitrary::rules;
    use crate::matching::Match;

    #[test]
    fn cubes_apart_in_two_fields_are_not_visited() {
        let cubes: Vec<Cube> = (0u16..100)
            .flat_map(|n| {
                let matches = Match {
                    ether_type: vec![netvm_wire::EtherType::IPV4],
                    source_mac: vec![Masked::<u64>::single(u64::from(n / 10))],
                    dscp: vec![Span::single(n as u8 % 10)],
                    ..Match::default()
                };
                matches.cubes().unwrap()
            })
            .collect();
        let index = Index::new(&cubes, Family::V4);
        for cube in 0..cubes.len() {
            let mut visited = Vec::new();
            index.visit(cube, &mut |n| visited.push(n));
            assert_eq!(visited, [cube]);
        }
    }

    proptest! {
        #[test]
        fn every_intersecting_cube_is_visited_once(rules in rules(1..40)) {
            let cubes: Vec<Cube> = rules.iter().flat_map(|rule| rule.matches.cubes().unwrap()).collect();
            for family in [Family::V4, Family::V6, Family::Other] {
                let index = Index::new(&cubes, family);
                for cube in (0..cubes.len()).filter(|cube| cubes[*cube].family == family) {
                    let mut visited = Vec::new();
                    index.visit(cube, &mut |n| visited.push(n));
                    let set: BTreeSet<usize> = visited.iter().copied().collect();
                    prop_assert_eq!(set.len(), visited.len());
                    let meets = |n: &usize| cubes[*n].meets(&cubes[cube]);
                    prop_assert!((0..cubes.len()).filter(meets).all(|n| set.contains(&n)));
                    prop_assert!(set.iter().all(|n| cubes[*n].family == family));
                }
            }
        }
    }
}
