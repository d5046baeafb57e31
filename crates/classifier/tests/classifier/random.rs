// SPDX-License-Identifier: Apache-2.0
//! Random lists over all fields against a linear scan: compiled, split into tables, and changed.

use std::sync::Arc;

use crate::common::{eal, scan};
use netvm_classifier::{BuildError, Classifier, Limits, Table};
use netvm_policy::arbitrary::{Generator, rules, rules_and_keys};
use netvm_policy::{Cube, Family, Fields, Masked, Rule, Span};
use netvm_wire::FlowKey;
use proptest::collection::vec;
use proptest::prelude::*;

const WIDE: Limits = Limits { memory: usize::MAX, table_cubes: 8192, scan_cubes: 4 };

fn cubes(rules: &[Rule]) -> Vec<Vec<Cube>> {
    rules.iter().map(|rule| rule.matches.cubes().unwrap()).collect()
}

fn shared(entries: &[Vec<Cube>]) -> Vec<Arc<[Cube]>> {
    entries.iter().map(|entry| entry.as_slice().into()).collect()
}

fn check(found: &[u32], entries: &[Vec<Cube>], keys: &[FlowKey]) -> Result<(), TestCaseError> {
    for (found, key) in found.iter().zip(keys) {
        prop_assert_eq!(*found, scan(entries, key), "{:?}", key);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn lists_of_all_fields_agree_with_a_scan(
        (rules, keys) in rules_and_keys(1..40, 1..200),
        table_cubes in prop_oneof![Just(8192usize), 1usize..40],
        scan_cubes in prop_oneof![Just(0usize), Just(4), Just(usize::MAX)],
    ) {
        let entries = cubes(&rules);
        // At most the permitted number of tables.
        let most = entries.iter().map(Vec::len).sum::<usize>() / 16;
        let limits = Limits { table_cubes: table_cubes.max(most), scan_cubes, ..WIDE };
        let classifier = Classifier::build(eal(), &entries, &limits).unwrap();
        let mut found = vec![7; keys.len()];
        classifier.classify(&keys, &mut found);
        check(&found, &entries, &keys)?;
    }

    /// Sometimes starts a build of the current list, which completes some changes later.
    #[test]
    fn changed_lists_agree_with_a_scan_during_builds(
        (first, more, edits, seed) in (rules(1..60), rules(40), vec((0u8..6, any::<u64>()), 60), any::<u64>()),
    ) {
        let mut entries = shared(&cubes(&first));
        let mut fresh = shared(&cubes(&more));
        let mut table = Table::<[Cube]>::build(eal(), &entries[..], &WIDE).unwrap();
        let mut compiling: Option<Vec<Arc<[Cube]>>> = None;
        let mut generator = Generator::new(seed);
        let all: Vec<Cube> = entries.iter().chain(&fresh).flat_map(|entry| entry.iter()).copied().collect();
        let keys: Vec<FlowKey> = (0..100).map(|_| generator.key(&all)).collect();
        let mut found = vec![0; keys.len()];
        for (kind, at) in edits {
            let place = |length: usize| (at % length.max(1) as u64) as usize;
            match kind {
                0 | 1 => {
                    // Some are equal but not shared.
                    let again = || entries.get(place(entries.len())).map(|entry| entry.to_vec().into());
                    if let Some(entry) = fresh.pop().or_else(again) {
                        entries.insert(place(entries.len() + 1), entry);
                    }
                }
                2 if !entries.is_empty() => {
                    let moved = entries.remove(place(entries.len()));
                    entries.insert(place(entries.len() + 1), moved);
                }
                3 | 4 if !entries.is_empty() => drop(entries.remove(place(entries.len()))),
                _ => match compiling.take() {
                    None => compiling = Some(entries.clone()),
                    Some(list) => table = Table::<[Cube]>::build(eal(), &list[..], &WIDE).unwrap(),
                },
            }
            table = match table.changed(&entries[..]) {
                Some(changed) => changed,
                None => {
                    let added: usize = entries.iter().map(|entry| entry.len()).sum();
                    prop_assert!(added > 4096, "only very many cubes are refused");
                    Table::<[Cube]>::build(eal(), &entries[..], &WIDE).unwrap()
                }
            };
            prop_assert!(table.changes() <= 120);
            table.classify(&keys, &mut found);
            for (found, key) in found.iter().zip(&keys) {
                let scan = entries.iter().position(|cubes| cubes.iter().any(|cube| cube.contains(key)));
                prop_assert_eq!(*found, scan.map_or(netvm_classifier::NONE, |n| n as u32), "{:?}", key);
            }
        }
    }
}

fn ports(n: u16) -> Vec<Cube> {
    let mut cube = Cube { family: Family::V4, fields: Fields::ANY };
    cube.fields.protocol = Masked::<u8>::single(6);
    cube.fields.destination_ports.first = n;
    cube.fields.destination_ports.last = n;
    vec![cube]
}

#[test]
fn few_changes_are_accepted_and_many_refused() {
    let list: Vec<Arc<[Cube]>> = shared(&(0..2000).map(ports).collect::<Vec<_>>());
    let table = Table::<[Cube]>::build(eal(), &list[..], &WIDE).unwrap();
    assert_eq!(table.changed(&list[..]).unwrap().changes(), 0);
    let added =
        |count: u16| [list.clone(), shared(&(5000..5000 + count).map(ports).collect::<Vec<_>>())].concat();
    assert_eq!(table.changed(added(1024)).unwrap().changes(), 1024);
    assert!(table.changed(added(1025)).is_none());
    assert_eq!(table.changed(&list[1024..]).unwrap().changes(), 1024);
    assert!(table.changed(&list[1025..]).is_none());
    let many_cubes: Vec<Cube> = (5000..9097).flat_map(ports).collect();
    assert!(table.changed([list.clone(), shared(&[many_cubes])].concat()).is_none());
    // Changes count from the build, not from the last change.
    let back = table.changed(added(1024)).unwrap().changed(&list[..]).unwrap();
    assert_eq!(back.changes(), 0);
    // Each of these intersects all others.
    let wide = |n: u16| {
        let mut cube = ports(0)[0];
        (cube.fields.source_ports, cube.fields.destination_ports) =
            (Span::single(n), Span { first: 0, last: u16::MAX });
        vec![cube]
    };
    let with_wide = [shared(&(0..80).map(wide).collect::<Vec<_>>()), list.clone()].concat();
    let table = Table::<[Cube]>::build(eal(), &with_wide[..], &WIDE).unwrap();
    assert_eq!(table.changed(&with_wide[60..]).unwrap().changes(), 60);
    assert!(table.changed(&list[..]).is_none());
    let table = Table::<[Cube]>::build(eal(), &list[..], &WIDE).unwrap();
    let reversed: Vec<_> = list.iter().rev().cloned().collect();
    assert!(table.changed(&reversed[..]).is_none());
}

#[test]
fn a_catch_all_ends_the_list() {
    let any = |family| vec![Cube { family, fields: Fields::ANY }];
    let mut list: Vec<_> = (0..20).map(ports).collect();
    list.push(any(Family::V4));
    let short = Classifier::build(eal(), &list, &WIDE).unwrap();
    list.extend((100..5000).map(ports));
    let long = Classifier::build(eal(), &list, &WIDE).unwrap();
    assert_eq!((short.tables(), long.tables()), (1, 1));
    assert!(long.bytes() < 2 * short.bytes(), "{} {}", long.bytes(), short.bytes());
    let mut generator = Generator::new(1);
    let keys: Vec<_> = (0..500).map(|_| generator.key(&list.concat())).collect();
    let mut found = vec![0; keys.len()];
    long.classify(&keys, &mut found);
    check(&found, &list, &keys).unwrap();
    // After its removal the later entries apply, which are not in the tables.
    list.remove(20);
    let before = [&list[..20], &[any(Family::V4)], &list[20..]].concat();
    let table = Table::<[Cube]>::build(eal(), &shared(&before)[..], &WIDE).unwrap();
    let table = table.changed(shared(&list)).unwrap();
    table.classify(&keys, &mut found);
    check(&found, &list, &keys).unwrap();
}

#[test]
fn a_list_beyond_the_memory_is_refused() {
    let list: Vec<_> = (0..5000).map(ports).collect();
    let limits = Limits { memory: 10_000, ..WIDE };
    let error = Classifier::build(eal(), &list, &limits).unwrap_err();
    assert!(matches!(error, BuildError::TooLarge { cubes: 5000, memory: 10_000, .. }), "{error:?}");
    assert!(error.to_string().contains("10000 bytes set aside"), "{error}");
    let none: [Vec<Cube>; 0] = [];
    let empty = Classifier::build(eal(), &none, &limits).unwrap();
    assert_eq!((empty.tables(), empty.bytes()), (0, 0));
}
