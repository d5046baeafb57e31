//! Which cubes can meet a cube: by their ranges in the one field that tells most of them apart.
//!
//! An interval tree that is a sorted array: the root of each slice is its middle, and knows the highest end in the slice.

use crate::cube::{Cube, Family, Fields};
use crate::span::{Masked, Span};

/// Cubes of one family by their ranges in one field.
pub(super) struct Index {
    field: Field,
    nodes: Vec<Node>,
}

struct Node {
    first: u128,
    last: u128,
    /// The highest `last` of the slice that the node is the middle of.
    highest: u128,
    /// The number of the cube.
    cube: usize,
}

/// The range of a cube's values in a field; for a mask that is no prefix the range around them.
type Field = fn(&Cube) -> (u128, u128);

const FIELDS: [Field; 9] = [
    |cube| masked(cube.fields.source, address_bits(cube)),
    |cube| masked(cube.fields.destination, address_bits(cube)),
    |cube| span(cube.fields.destination_ports),
    |cube| span(cube.fields.source_ports),
    |cube| mac(cube.fields.source_mac),
    |cube| mac(cube.fields.destination_mac),
    |cube| span(cube.fields.vlan),
    |cube| span(cube.fields.ether_type),
    |cube| masked(wide(&cube.fields), u8::MAX.into()),
];

impl Index {
    /// Of those of the cubes that are of the family.
    pub(super) fn new(cubes: &[Cube], family: Family) -> Self {
        let mut field = FIELDS[0];
        let mut fewest = u64::MAX;
        for candidate in FIELDS {
            let meetings = meetings(cubes.iter().filter(|cube| cube.family == family).map(candidate));
            if meetings < fewest {
                (field, fewest) = (candidate, meetings);
            }
        }
        let of_family = cubes.iter().enumerate().filter(|(_, cube)| cube.family == family);
        let mut nodes: Vec<Node> = of_family
            .map(|(n, cube)| {
                let (first, last) = field(cube);
                Node { first, last, highest: last, cube: n }
            })
            .collect();
        nodes.sort_unstable_by_key(|node| (node.first, node.cube));
        raise(&mut nodes);
        Self { field, nodes }
    }

    /// Calls with the number of each cube that the field does not keep from meeting this one.
    pub(super) fn visit(&self, cube: &Cube, call: &mut impl FnMut(usize)) {
        visit(&self.nodes, (self.field)(cube), call);
    }
}

fn visit(nodes: &[Node], range: (u128, u128), call: &mut impl FnMut(usize)) {
    let middle = nodes.len() / 2;
    let Some(node) = nodes.get(middle).filter(|node| node.highest >= range.0) else { return };
    visit(&nodes[..middle], range, call);
    if node.first <= range.1 {
        if node.last >= range.0 {
            call(node.cube);
        }
        visit(&nodes[middle + 1..], range, call);
    }
}

/// Sets `highest` of all nodes and returns that of the slice.
fn raise(nodes: &mut [Node]) -> u128 {
    let middle = nodes.len() / 2;
    let (before, rest) = nodes.split_at_mut(middle);
    let Some((node, after)) = rest.split_first_mut() else { return 0 };
    node.highest = node.last.max(raise(before)).max(raise(after));
    node.highest
}

/// Pairs of ranges that meet, each range with itself among them.
fn meetings(ranges: impl Iterator<Item = (u128, u128)>) -> u64 {
    let (mut firsts, mut lasts): (Vec<u128>, Vec<u128>) = ranges.unzip();
    let ends = lasts.clone();
    let starts = firsts.clone();
    firsts.sort_unstable();
    lasts.sort_unstable();
    let met = |(start, end): (&u128, &u128)| {
        let begun = firsts.partition_point(|first| first <= end);
        let over = lasts.partition_point(|last| last < start);
        begun.saturating_sub(over) as u64
    };
    starts.iter().zip(&ends).map(met).sum()
}

const fn address_bits(cube: &Cube) -> u128 {
    match cube.family {
        Family::V4 => u32::MAX as u128,
        Family::V6 | Family::Other => u128::MAX,
    }
}

fn masked(set: Masked<u128>, all: u128) -> (u128, u128) {
    (set.value, set.value | (!set.mask & all))
}

fn mac(set: Masked<u64>) -> (u128, u128) {
    masked(Masked { value: set.value.into(), mask: set.mask.into() }, u64::MAX.into())
}

fn wide(fields: &Fields) -> Masked<u128> {
    Masked { value: fields.protocol.value.into(), mask: fields.protocol.mask.into() }
}

fn span(set: Span<u16>) -> (u128, u128) {
    (set.first.into(), set.last.into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::arbitrary::rules;

    proptest! {
        #[test]
        fn every_cube_that_meets_is_visited(rules in rules(1..40)) {
            let cubes: Vec<Cube> = rules.iter().flat_map(|rule| rule.matches.cubes().unwrap()).collect();
            for family in [Family::V4, Family::V6, Family::Other] {
                let index = Index::new(&cubes, family);
                for cube in cubes.iter().filter(|cube| cube.family == family) {
                    let mut visited = Vec::new();
                    index.visit(cube, &mut |n| visited.push(n));
                    let set: BTreeSet<usize> = visited.iter().copied().collect();
                    prop_assert_eq!(set.len(), visited.len());
                    let meets = |n: &usize| cubes[*n].meets(cube);
                    prop_assert!((0..cubes.len()).filter(meets).all(|n| set.contains(&n)));
                    let (first, last) = (index.field)(cube);
                    let near = |n: &usize| cubes[*n].family == family && {
                        let (a, b) = (index.field)(&cubes[*n]);
                        a <= last && first <= b
                    };
                    prop_assert_eq!((0..cubes.len()).filter(near).count(), set.len());
                }
            }
        }
    }
}
