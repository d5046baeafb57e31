// SPDX-License-Identifier: Apache-2.0
//! Checks whether several cubes together cover a cube.

use crate::cubes::{Cube, Fields};
use crate::span::{Masked, Span};

/// Most pieces; a cube that splits into more counts as not covered.
const MAX_PIECES: usize = 128;

/// Whether every packet of `cube` is in one of `by`. May return false if the proof takes too many pieces.
pub(super) fn covered(cube: &Cube, by: &[&Cube]) -> bool {
    let mut pieces = vec![possible(*cube)];
    // In most cases an uncovered packet is found quickly.
    if POINTS.iter().any(|bits| {
        let point = point(&pieces[0], *bits);
        !by.iter().any(|cube| cube.covers(&point))
    }) {
        return false;
    }
    for cut in by {
        let mut left = Vec::new();
        for piece in &pieces {
            if piece.meets(cut) {
                split(*piece, cut, &mut left);
            } else {
                left.push(*piece);
            }
        }
        if left.len() > MAX_PIECES {
            return false;
        }
        pieces = left;
    }
    pieces.is_empty()
}

/// The cube without values that no packet can have.
fn possible(mut cube: Cube) -> Cube {
    let fields = &mut cube.fields;
    fields.dscp.last = fields.dscp.last.min(63).max(fields.dscp.first);
    for vlan in [&mut fields.vlan, &mut fields.inner_vlan] {
        vlan.last = vlan.last.min(netvm_wire::VlanId::MAX).max(vlan.first);
    }
    let greatest = [netvm_wire::Fragment::Later as u8, netvm_wire::ConnState::Invalid as u8];
    for (span, greatest) in [&mut fields.fragment, &mut fields.state].into_iter().zip(greatest) {
        span.last = span.last.min(greatest).max(span.first);
    }
    cube
}

const POINTS: [u128; 6] = [
    0,
    u128::MAX,
    u128::MAX / 3,
    u128::MAX / 3 * 2,
    0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c834,
    0x61c8_8646_80b5_83ea_0c63_3f9f_a312_37cb,
];

/// The packet of the cube with these free bits.
fn point(cube: &Cube, bits: u128) -> Cube {
    let mut point = *cube;
    let fields = &mut point.fields;
    macro_rules! masked {
        ($($field:ident: $bits:ty),*) => {$(
            let set = fields.$field;
            fields.$field = Masked::<$bits>::single((bits as $bits & !set.mask) | set.value);
        )*};
    }
    macro_rules! spans {
        ($bits:ty: $($field:ident),*) => {$(
            let set = fields.$field;
            let count = u128::from(set.last - set.first) + 1;
            // The high bits of `bits` select the position in the range.
            let into = ((bits >> 96) * count) >> 32;
            fields.$field = Span::single(set.first + into as $bits);
        )*};
    }
    masked!(source: u128, destination: u128, source_mac: u64, destination_mac: u64, protocol: u8, tcp_flags: u8);
    spans!(u16: ether_type, vlan, inner_vlan, source_ports, destination_ports, arp_operation);
    spans!(u8: dscp, icmp_type, icmp_code, fragment, state);
    point
}

/// Adds the difference of `piece` and the intersecting `cut`, in disjoint pieces.
fn split(mut piece: Cube, cut: &Cube, out: &mut Vec<Cube>) {
    macro_rules! masked {
        ($($field:ident: $bits:ty),*) => {$({
            let by = cut.fields.$field;
            let mut open = by.mask & !piece.fields.$field.mask;
            while open != 0 {
                let bit: $bits = 1 << open.ilog2();
                let set = piece.fields.$field;
                let mask = set.mask | bit;
                put(out, piece, |fields| {
                    fields.$field = Masked::<$bits>::new(set.value | (!by.value & bit), mask);
                });
                piece.fields.$field = Masked::<$bits>::new(set.value | (by.value & bit), mask);
                open &= !bit;
            }
        })*};
    }
    macro_rules! spans {
        ($($field:ident),*) => {$({
            let (set, by) = (piece.fields.$field, cut.fields.$field);
            if set.first < by.first {
                put(out, piece, |fields| fields.$field.last = by.first - 1);
                piece.fields.$field.first = by.first;
            }
            if set.last > by.last {
                put(out, piece, |fields| fields.$field.first = by.last + 1);
                piece.fields.$field.last = by.last;
            }
        })*};
    }
    spans!(source_ports, destination_ports, ether_type, vlan, inner_vlan, arp_operation);
    spans!(dscp, icmp_type, icmp_code, fragment, state);
    masked!(protocol: u8, tcp_flags: u8, source: u128, destination: u128, source_mac: u64, destination_mac: u64);
}

fn put(out: &mut Vec<Cube>, mut piece: Cube, change: impl FnOnce(&mut Fields)) {
    change(&mut piece.fields);
    out.push(piece);
}

#[cfg(test)]
mod tests {
    use netvm_wire::{IpNet, PortRange};
    use proptest::prelude::*;

    use super::*;
    use crate::arbitrary::{Generator, rules};
    use crate::matching::Match;

    fn cube(source: &str, ports: (u16, u16)) -> Cube {
        let matches = Match {
            source: vec![source.parse::<IpNet>().unwrap()],
            source_ports: vec![PortRange::new(ports.0, ports.1).unwrap()],
            ..Match::default()
        };
        matches.cubes().unwrap()[0]
    }

    #[test]
    fn halves_cover_the_whole() {
        let whole = cube("10.0.0.0/8", (0, 1023));
        let low = cube("10.0.0.0/9", (0, 2000));
        let high = cube("10.128.0.0/9", (0, 500));
        let rest = cube("0.0.0.0/0", (501, 65_535));
        assert!(covered(&whole, &[&low, &high, &rest]));
        assert!(!covered(&whole, &[&low, &high]) && !covered(&whole, &[&high, &rest]));
        let hole = cube("0.0.0.0/0", (502, 65_535));
        assert!(!covered(&whole, &[&low, &high, &hole]));
        let mut dscp = [cube("0.0.0.0/0", (0, 65_535)); 2];
        (dscp[0].fields.dscp.last, dscp[1].fields.dscp) = (31, Span { first: 32, last: 63 });
        assert!(covered(&whole, &[&dscp[0], &dscp[1]]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn pieces_are_the_difference(rules in rules(2), seed: u64) {
            let [a, b] = [&rules[0], &rules[1]].map(|rule| rule.matches.cubes().unwrap());
            let mut generator = Generator::new(seed);
            for (a, b) in a.iter().flat_map(|a| b.iter().map(move |b| (a, b))) {
                let Some(both) = a.intersect(b) else { continue };
                let mut pieces = Vec::new();
                split(*a, b, &mut pieces);
                for key in [a, b, &both].map(|cube| generator.key_in(cube)) {
                    let inside = pieces.iter().filter(|piece| piece.contains(&key)).count();
                    prop_assert_eq!(inside, usize::from(a.contains(&key) && !b.contains(&key)));
                }
            }
        }

        #[test]
        fn every_packet_of_a_covered_cube_is_in_another(rules in rules(1..8), seed: u64) {
            let cubes: Vec<Cube> = rules.iter().flat_map(|rule| rule.matches.cubes().unwrap()).collect();
            let mut generator = Generator::new(seed);
            for (n, cube) in cubes.iter().enumerate() {
                let others: Vec<&Cube> = cubes[..n].iter().chain(&cubes[n + 1..]).collect();
                let key = generator.key_in(cube);
                if covered(cube, &others) {
                    prop_assert!(others.iter().any(|other| other.contains(&key)), "{:?} {:?}", cube, key);
                }
            }
        }
    }
}
