// SPDX-License-Identifier: Apache-2.0
//! Lowers a match to cubes: the product of its sets for each of its families.

use netvm_wire::{Address, ConnState, EtherType, Fragment, IpNet, PortRange, VlanId};
use thiserror::Error;

use crate::cubes::simplify::{self, Join};
use crate::cubes::{Cube, Family, Fields};
use crate::matching::Match;
use crate::span::{Masked, Span};

/// Most cubes of a match.
pub const MAX_CUBES: usize = 1 << 16;

/// The product of a match's sets is too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the sets of the match have {combinations} combinations, more than the limit of {limit}: use ranges and wider prefixes instead of single values, or match fewer fields"
)]
pub struct TooManyCubes {
    /// The size of the product.
    pub combinations: usize,
    /// The limit.
    pub limit: usize,
}

impl Match {
    /// Cubes whose union holds exactly the parsed keys that [`Match::fits_key`] accepts; empty if no key fits. Parsed
    /// keys of IPv4 packets have IPv4 addresses, of IPv6 packets IPv6 addresses, of others IPv4 addresses (ARP) or
    /// none.
    ///
    /// # Errors
    /// [`TooManyCubes`] beyond [`MAX_CUBES`].
    pub fn cubes(&self) -> Result<Vec<Cube>, TooManyCubes> {
        self.cubes_within(MAX_CUBES)
    }

    /// As [`Match::cubes`] with another limit.
    ///
    /// # Errors
    /// [`TooManyCubes`] beyond the limit.
    pub fn cubes_within(&self, limit: usize) -> Result<Vec<Cube>, TooManyCubes> {
        let sets: Vec<Sets> = [Family::V4, Family::V6, Family::Other]
            .into_iter()
            .map(|family| Sets::of(self, family))
            .collect();
        let combinations = sets.iter().fold(0usize, |sum, sets| sum.saturating_add(sets.combinations()));
        if combinations > limit {
            return Err(TooManyCubes { combinations, limit });
        }
        Ok(sets.iter().flat_map(Sets::product).collect())
    }

    /// The EtherTypes of the match in a family; `None` if it excludes the family.
    fn ether_types(&self, family: Family) -> Option<Vec<Span<u16>>> {
        let any = vec![Fields::ANY.ether_type];
        let named = |kind| self.ether_type.is_empty() || self.ether_type.contains(&kind);
        match family {
            Family::V4 => named(EtherType::IPV4).then_some(any),
            Family::V6 => named(EtherType::IPV6).then_some(any),
            Family::Other if self.ether_type.is_empty() => (!self.needs_ip()).then_some(any),
            Family::Other => {
                let others = self
                    .ether_type
                    .iter()
                    .filter(|kind| !matches!(**kind, EtherType::IPV4 | EtherType::IPV6));
                Some(simplify::spans(others.map(|kind| Span::single(kind.0))))
            }
        }
    }
}

/// The simplified sets of a match for a family; an empty set matches nothing.
struct Sets {
    family: Family,
    source: Vec<Masked<u128>>,
    destination: Vec<Masked<u128>>,
    source_mac: Vec<Masked<u64>>,
    destination_mac: Vec<Masked<u64>>,
    ether_type: Vec<Span<u16>>,
    vlan: Vec<Span<u16>>,
    inner_vlan: Vec<Span<u16>>,
    protocol: Vec<Masked<u8>>,
    source_ports: Vec<Span<u16>>,
    destination_ports: Vec<Span<u16>>,
    tcp_flags: Vec<Masked<u8>>,
    dscp: Vec<Span<u8>>,
    icmp_type: Vec<Span<u8>>,
    icmp_code: Vec<Span<u8>>,
    fragment: Vec<Span<u8>>,
    state: Vec<Span<u8>>,
    arp_operation: Vec<Span<u16>>,
}

impl Sets {
    fn of(matches: &Match, family: Family) -> Self {
        let any = Fields::ANY;
        let ports = |set: &[PortRange]| {
            let set: Vec<_> =
                set.iter().map(|ports| Span { first: ports.first(), last: ports.last() }).collect();
            spans(&set, any.source_ports)
        };
        let fragments: Vec<Span<u8>> =
            matches.fragment.iter().map(|kind| Span::single(*kind as u8)).collect();
        let states: Vec<Span<u8>> = matches.state.iter().map(|state| Span::single(*state as u8)).collect();
        let protocols = matches.protocol.iter().map(|protocol| Masked::<u8>::single(protocol.0));
        let flags = matches.tcp_flags.unwrap_or(Masked::<u8>::ANY);
        Self {
            family,
            source: addresses(&matches.source, family),
            destination: addresses(&matches.destination, family),
            source_mac: macs(&matches.source_mac),
            destination_mac: macs(&matches.destination_mac),
            ether_type: matches.ether_types(family).unwrap_or_default(),
            vlan: widened(spans(&matches.vlan, any.vlan), VlanId::MAX, u16::MAX),
            inner_vlan: widened(spans(&matches.inner_vlan, any.inner_vlan), VlanId::MAX, u16::MAX),
            protocol: if matches.protocol.is_empty() {
                vec![Masked::<u8>::ANY]
            } else {
                let wide = protocols.map(|one| Masked { value: one.value.into(), mask: one.mask.into() });
                let set = simplify::masked(wide, Join::Masks);
                set.into_iter().map(|one| Masked::<u8>::new(one.value as u8, one.mask as u8)).collect()
            },
            source_ports: ports(&matches.source_ports),
            destination_ports: ports(&matches.destination_ports),
            tcp_flags: if flags.value & !flags.mask == 0 { vec![flags] } else { Vec::new() },
            dscp: spans(&matches.dscp, any.dscp),
            icmp_type: spans(&matches.icmp_type, any.icmp_type),
            icmp_code: spans(&matches.icmp_code, any.icmp_code),
            fragment: widened(spans(&fragments, any.fragment), Fragment::Later as u8, u8::MAX),
            state: widened(spans(&states, any.state), ConnState::Invalid as u8, u8::MAX),
            arp_operation: spans(&matches.arp_operation, any.arp_operation),
        }
    }

    fn combinations(&self) -> usize {
        let lengths = [
            self.source.len(),
            self.destination.len(),
            self.source_mac.len(),
            self.destination_mac.len(),
            self.ether_type.len(),
            self.vlan.len(),
            self.inner_vlan.len(),
            self.protocol.len(),
            self.source_ports.len(),
            self.destination_ports.len(),
            self.tcp_flags.len(),
            self.dscp.len(),
            self.icmp_type.len(),
            self.icmp_code.len(),
            self.fragment.len(),
            self.state.len(),
            self.arp_operation.len(),
        ];
        if lengths.contains(&0) { 0 } else { lengths.into_iter().fold(1, usize::saturating_mul) }
    }

    fn product(&self) -> Vec<Cube> {
        let mut cubes = vec![Cube { family: self.family, fields: Fields::ANY }];
        times(&mut cubes, &self.ether_type, |fields, set| fields.ether_type = set);
        times(&mut cubes, &self.source, |fields, set| fields.source = set);
        times(&mut cubes, &self.destination, |fields, set| fields.destination = set);
        times(&mut cubes, &self.source_mac, |fields, set| fields.source_mac = set);
        times(&mut cubes, &self.destination_mac, |fields, set| fields.destination_mac = set);
        times(&mut cubes, &self.vlan, |fields, set| fields.vlan = set);
        times(&mut cubes, &self.inner_vlan, |fields, set| fields.inner_vlan = set);
        times(&mut cubes, &self.protocol, |fields, set| fields.protocol = set);
        times(&mut cubes, &self.source_ports, |fields, set| fields.source_ports = set);
        times(&mut cubes, &self.destination_ports, |fields, set| fields.destination_ports = set);
        times(&mut cubes, &self.tcp_flags, |fields, set| fields.tcp_flags = set);
        times(&mut cubes, &self.dscp, |fields, set| fields.dscp = set);
        times(&mut cubes, &self.icmp_type, |fields, set| fields.icmp_type = set);
        times(&mut cubes, &self.icmp_code, |fields, set| fields.icmp_code = set);
        times(&mut cubes, &self.fragment, |fields, set| fields.fragment = set);
        times(&mut cubes, &self.state, |fields, set| fields.state = set);
        times(&mut cubes, &self.arp_operation, |fields, set| fields.arp_operation = set);
        cubes
    }
}

fn times<T: Copy>(cubes: &mut Vec<Cube>, set: &[T], put: impl Fn(&mut Fields, T)) {
    let Some((first, rest)) = set.split_first() else {
        cubes.clear();
        return;
    };
    let before = cubes.len();
    for element in rest {
        for n in 0..before {
            let mut cube = cubes[n];
            put(&mut cube.fields, *element);
            cubes.push(cube);
        }
    }
    for cube in &mut cubes[..before] {
        put(&mut cube.fields, *first);
    }
}

fn spans<T: Copy + Ord + Into<u32>>(set: &[Span<T>], any: Span<T>) -> Vec<Span<T>> {
    if set.is_empty() { vec![any] } else { simplify::spans(set.iter().copied()) }
}

/// Extends a range that ends at `greatest`, the largest value of a key, to `end`, so that a set of all values equals no
/// restriction.
fn widened<T: Copy + Ord>(mut set: Vec<Span<T>>, greatest: T, end: T) -> Vec<Span<T>> {
    if let Some(last) = set.last_mut().filter(|last| last.last >= greatest) {
        last.last = end;
    }
    set
}

/// Networks as numbers of the family.
fn addresses(nets: &[IpNet], family: Family) -> Vec<Masked<u128>> {
    if nets.is_empty() {
        return vec![Masked::<u128>::ANY];
    }
    let set = nets.iter().filter_map(|net| match (net, family) {
        (IpNet::V4(net), Family::V4) => {
            Some(Masked { value: net.network().to_bits().into(), mask: net.mask().to_bits().into() })
        }
        (IpNet::V6(net), Family::V6) => {
            Some(Masked { value: net.network().to_bits(), mask: net.mask().to_bits() })
        }
        (IpNet::V4(net), Family::Other) => {
            let mapped = Address::from(net.network()).v6_bits();
            Some(Masked { value: mapped, mask: !0xffff_ffff | u128::from(net.mask().to_bits()) })
        }
        // The only IPv6 address of such a packet is `::`, which means none.
        (IpNet::V6(net), Family::Other) => {
            let none = std::net::Ipv6Addr::UNSPECIFIED;
            net.contains(none).then(|| Masked::<u128>::single(none.to_bits()))
        }
        (IpNet::V4(_), Family::V6) | (IpNet::V6(_), Family::V4) => None,
    });
    simplify::masked(set, Join::Prefixes)
}

fn macs(set: &[Masked<u64>]) -> Vec<Masked<u64>> {
    const BITS: u64 = (1 << 48) - 1;
    if set.is_empty() {
        return vec![Masked::<u64>::ANY];
    }
    let possible = set.iter().filter(|mac| mac.value & !BITS == 0);
    let wide = possible.map(|mac| Masked { value: mac.value.into(), mask: (mac.mask & BITS).into() });
    let set = simplify::masked(wide, Join::Masks);
    set.into_iter().map(|mac| Masked::<u64>::new(mac.value as u64, mac.mask as u64)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::arbitrary;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn families(matches: &Match) -> Vec<Family> {
        matches.cubes().unwrap().iter().map(|cube| cube.family).collect()
    }

    #[test]
    fn only_matching_families_have_cubes() {
        assert_eq!(families(&Match::default()), [Family::V4, Family::V6, Family::Other]);
        assert_eq!(
            families(&Match { dscp: vec![Span::single(0)], ..Match::default() }),
            [Family::V4, Family::V6]
        );
        let mut matches = Match { source: nets(&["10.0.0.0/8"]), ..Match::default() };
        assert_eq!(families(&matches), [Family::V4]);
        matches.destination = nets(&["2001:db8::/32"]);
        assert_eq!(families(&matches), []);
        let arp = Match { ether_type: vec![EtherType::ARP, EtherType::IPV6], ..Match::default() };
        assert_eq!(families(&arp), [Family::V6, Family::Other]);
    }

    #[test]
    fn no_address_is_not_an_ipv4_address() {
        let arp = |source: &[&str]| Match {
            ether_type: vec![EtherType::ARP],
            source: nets(source),
            ..Match::default()
        };
        let mut key = arbitrary::Generator::new(1).uniform_key();
        key.ether_type = EtherType::ARP;
        for address in [Address::UNSPECIFIED, Address::from_v4_bits(0)] {
            key.source = address;
            for set in [&["0.0.0.0/0"][..], &["::/0"], &["0.0.0.0/32"], &["::/1", "0.0.0.0/1"]] {
                let matches = arp(set);
                let cubes = matches.cubes().unwrap();
                assert_eq!(
                    cubes.iter().any(|cube| cube.contains(&key)),
                    matches.fits_key(&key),
                    "{address} {set:?}"
                );
            }
        }
    }

    #[test]
    fn neighbours_make_one_cube() {
        let matches = Match {
            source: nets(&["10.0.0.0/9", "10.128.0.0/9", "10.1.0.0/16"]),
            destination_ports: vec![PortRange::single(80), PortRange::single(81), PortRange::single(443)],
            fragment: vec![Fragment::Later, Fragment::Whole, Fragment::First],
            state: vec![ConnState::Related, ConnState::Established],
            ..Match::default()
        };
        let cubes = matches.cubes().unwrap();
        assert_eq!(cubes.len(), 2);
        assert_eq!(cubes[0].fields.fragment, Fields::ANY.fragment);
        assert_eq!(cubes[0].fields.state, Span { first: 2, last: 3 });
    }

    #[test]
    fn too_many_combinations_are_counted() {
        let odd = |n: u16| PortRange::single(n * 2 + 1);
        let ports: Vec<_> = (0..200).map(odd).collect();
        let matches = Match { source_ports: ports.clone(), destination_ports: ports, ..Match::default() };
        assert_eq!(matches.cubes(), Err(TooManyCubes { combinations: 80_000, limit: MAX_CUBES }));
        assert_eq!(matches.cubes_within(80_000).map(|cubes| cubes.len()), Ok(80_000));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn cubes_hold_the_fitting_keys((rules, keys) in arbitrary::rules_and_keys(1..3, 1..20)) {
            for rule in &rules {
                let cubes = rule.matches.cubes().unwrap();
                for key in &keys {
                    prop_assert_eq!(cubes.iter().any(|cube| cube.contains(key)), rule.matches.fits_key(key));
                }
            }
        }

        #[test]
        fn a_key_of_a_cube_is_in_it((rules, seed) in (arbitrary::rules(1), any::<u64>())) {
            let mut generator = arbitrary::Generator::new(seed);
            for cube in rules[0].matches.cubes().unwrap() {
                let key = generator.key_in(&cube);
                prop_assert!(cube.contains(&key), "{:?} {:?}", cube, key);
                prop_assert!(rules[0].matches.fits_key(&key));
            }
        }

        #[test]
        fn intersections_hold_the_common_keys((rules, keys) in arbitrary::rules_and_keys(2, 1..20)) {
            let [a, b] = [&rules[0], &rules[1]].map(|rule| rule.matches.cubes().unwrap());
            for (a, b) in a.iter().flat_map(|a| b.iter().map(move |b| (a, b))) {
                let both = a.intersect(b);
                prop_assert_eq!(a.meets(b), both.is_some());
                prop_assert!(both.is_none_or(|both| a.covers(&both) && b.covers(&both)));
                prop_assert_eq!(a.covers(b), both == Some(*b));
                for key in &keys {
                    prop_assert_eq!(both.is_some_and(|c| c.contains(key)), a.contains(key) && b.contains(key));
                }
            }
        }
    }
}
