// SPDX-License-Identifier: Apache-2.0
//! A prefilter excludes only keys outside all entries, and most of these.

use std::sync::Arc;

use crate::common::{entries, filter_sets, scan};
use netvm_classifier::{NONE, Prefilter, Tuple};
use netvm_policy::arbitrary::{Generator, rules, rules_and_keys};
use netvm_policy::{Cube, Family, Fields, Masked, Rule, Span};
use netvm_wire::{ConnState, EtherType, FlowKey, Fragment, IpProto};
use proptest::prelude::*;

/// The tuple of a key, if prefilters cover it.
fn tuple(key: &FlowKey) -> Option<Tuple> {
    let plain = key.ether_type == EtherType::IPV4
        && key.vlan.is_none()
        && key.inner_vlan.is_none()
        && key.fragment == Fragment::Whole
        && key.state == ConnState::Untracked
        && [IpProto::TCP, IpProto::UDP].contains(&key.protocol);
    plain.then(|| Tuple {
        source: key.source.v6_bits() as u32,
        destination: key.destination.v6_bits() as u32,
        source_port: key.source_port,
        destination_port: key.destination_port,
        is_tcp: key.protocol == IpProto::TCP,
    })
}

/// Covered keys, half of them near the entries.
fn plain_keys(entries: &[Vec<Cube>], count: usize, seed: u64) -> Vec<FlowKey> {
    let cubes: Vec<Cube> =
        entries.iter().flatten().filter(|cube| cube.family == Family::V4).copied().collect();
    let mut generator = Generator::new(seed);
    let key = |_| {
        let mut key = generator.key(&cubes);
        if key.ether_type != EtherType::IPV4 {
            let low = |bits: u64| netvm_wire::Address::from_v4_octets((bits as u32).to_be_bytes());
            (key.source, key.destination) = (low(generator.bits()), low(generator.bits()));
            (key.source_port, key.destination_port) = (generator.bits() as u16, generator.bits() as u16);
            (key.icmp_type, key.icmp_code, key.arp_operation) = (0, 0, 0);
        }
        if ![IpProto::TCP, IpProto::UDP].contains(&key.protocol) || key.ether_type != EtherType::IPV4 {
            key.protocol = if generator.once_in(2) { IpProto::TCP } else { IpProto::UDP };
            (key.icmp_type, key.icmp_code) = (0, 0);
        }
        (key.ether_type, key.vlan, key.inner_vlan) = (EtherType::IPV4, None, None);
        (key.fragment, key.state) = (Fragment::Whole, ConnState::Untracked);
        if key.protocol == IpProto::UDP {
            key.tcp_flags = netvm_wire::TcpFlags::empty();
        }
        key
    };
    (0..count).map(key).collect()
}

/// Number of keys that match no entry but the catch-all, and how many of these are excluded.
fn check(entries: &[Vec<Cube>], keys: &[FlowKey]) -> (usize, usize) {
    let Some(prefilter) = Prefilter::build(entries) else { return (0, 0) };
    let (mut free, mut excluded) = (0, 0);
    for key in keys {
        let Some(tuple) = tuple(key) else { continue };
        let first = scan(entries, key);
        free += usize::from(first == prefilter.otherwise());
        if prefilter.excludes(&tuple) {
            excluded += 1;
            assert_eq!(first, prefilter.otherwise(), "{key:?}");
        }
    }
    (free, excluded)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn excluded_keys_are_in_no_entry(
        (rules, keys) in rules_and_keys(0..40, 1..40),
        last in any::<Option<u8>>(),
        seed in any::<u64>(),
    ) {
        let mut entries: Vec<Vec<Cube>> = rules.iter().map(|rule| rule.matches.cubes().unwrap()).collect();
        if let Some(at) = last {
            let at = usize::from(at) % (entries.len() + 1);
            entries.insert(at, vec![Cube { family: Family::V4, fields: Fields::ANY }]);
        }
        check(&entries, &keys);
        check(&entries, &plain_keys(&entries, 100, seed));
    }

    #[test]
    fn excluded_keys_are_in_no_entry_of_a_changed_list(
        (rules, keys) in rules_and_keys(0..40, 1..40),
        more in rules(12),
        edits in proptest::collection::vec((0u8..4, any::<proptest::sample::Index>()), 1..20),
        seed in any::<u64>(),
    ) {
        let cubes = |rules: &[Rule]| -> Vec<Arc<[Cube]>> {
            rules.iter().map(|rule| rule.matches.cubes().unwrap().into()).collect()
        };
        let (mut entries, mut more) = (cubes(&rules), cubes(&more));
        // Only entries narrow enough to exclude something.
        entries.retain(|entry| Prefilter::build(std::slice::from_ref(entry)).is_some());
        more.retain(|entry| Prefilter::build(std::slice::from_ref(entry)).is_some());
        let Some(mut prefilter) = Prefilter::build(&entries) else { return Ok(()) };
        for (kind, at) in edits {
            let before = entries.clone();
            match kind {
                0 | 1 => {
                    let everything: Arc<[Cube]> = Arc::new([Cube { family: Family::V4, fields: Fields::ANY }]);
                    let entry = if kind == 0 { Some(everything) } else { more.pop() };
                    entries.splice(at.index(entries.len() + 1)..at.index(entries.len() + 1), entry);
                }
                _ if entries.is_empty() => {}
                2 => drop(entries.remove(at.index(entries.len()))),
                _ => entries.truncate(at.index(entries.len())),
            }
            let Some(changed) = prefilter.changed(&before, &entries) else { return Ok(()) };
            prefilter = changed;
            let lists: Vec<Vec<Cube>> = entries.iter().map(|entry| entry.to_vec()).collect();
            for key in keys.iter().chain(&plain_keys(&lists, 20, seed)) {
                let Some(tuple) = tuple(key) else { continue };
                if prefilter.excludes(&tuple) {
                    prop_assert_eq!(scan(&lists, key), prefilter.otherwise(), "{:?}", key);
                }
            }
        }
    }
}

/// Only cubes that restrict a field to a quarter of its values; others leave little to exclude.
fn restricted(mut entries: Vec<Vec<Cube>>) -> Vec<Vec<Cube>> {
    let is_narrow = |ports: &Span<u16>| ports.last - ports.first < 1 << 14;
    for entry in &mut entries {
        entry.retain(|Cube { fields, .. }| {
            [fields.source, fields.destination].iter().any(|set| set.mask.count_ones() >= 2)
                || [fields.source_ports, fields.destination_ports].iter().any(is_narrow)
        });
    }
    entries
}

#[test]
fn most_packets_outside_public_filter_sets_are_excluded() {
    for (name, text) in filter_sets() {
        let entries = restricted(entries(&text));
        let keys = plain_keys(&entries, 40_000, 7);
        let (free, excluded) = check(&entries, &keys);
        println!("{name}: {free} of {} keys in no entry, {excluded} excluded", keys.len());
        assert!(free > 1_000 && excluded * 100 >= free * 70, "{name}: {excluded} of {free}");
    }
}

fn cube(change: impl FnOnce(&mut Fields)) -> Vec<Cube> {
    let mut fields = Fields::ANY;
    change(&mut fields);
    vec![Cube { family: Family::V4, fields }]
}

#[test]
fn fields_without_a_table_count_as_unrestricted() {
    let to = |prefix: u32, bits: u32| Masked::<u128>::new(prefix.into(), (u32::MAX << (32 - bits)).into());
    let packet = Tuple {
        source: 0x0a00_0001,
        destination: 0x0b01_0203,
        source_port: 1024,
        destination_port: 443,
        is_tcp: true,
    };
    let excludes =
        |entries: &[Vec<Cube>], packet: &Tuple| Prefilter::build(entries).unwrap().excludes(packet);
    let near = cube(|fields| {
        fields.destination = to(0x0b01_0200, 24);
        fields.source_mac = Masked::<u64>::single(1);
        fields.dscp = Span::single(46);
        fields.tcp_flags = Masked::<u8>::single(2);
    });
    assert!(!excludes(std::slice::from_ref(&near), &packet));
    assert!(excludes(std::slice::from_ref(&near), &Tuple { destination: 0x0b01_0303, ..packet }));
    assert!(excludes(&[near], &Tuple { is_tcp: false, ..packet }), "UDP has no flags");
    // Tagged packets, fragments, tracked packets, ICMP: not covered.
    let others = [
        cube(|fields| fields.vlan = Span::single(5)),
        cube(|fields| fields.fragment = Span::single(2)),
        cube(|fields| fields.state = Span { first: 1, last: 3 }),
        cube(|fields| fields.protocol = Masked::<u8>::single(1)),
    ];
    assert!(excludes(&others, &packet));
}

#[test]
fn a_list_that_excludes_nothing_has_no_prefilter() {
    let by_mac = cube(|fields| fields.source_mac = Masked::<u64>::single(1));
    assert!(Prefilter::build(std::slice::from_ref(&by_mac)).is_none());
    let by_flags = cube(|fields| fields.tcp_flags = Masked::<u8>::single(2));
    assert!(Prefilter::build(&[by_flags]).is_some(), "UDP");
    // Entries after a catch-all do not count.
    let everything = cube(|_| ());
    let prefilter = Prefilter::build(&[everything, by_mac]).unwrap();
    assert_eq!(prefilter.otherwise(), 0);
    let none: [Vec<Cube>; 0] = [];
    assert_eq!(Prefilter::build(&none).unwrap().otherwise(), NONE);
}
