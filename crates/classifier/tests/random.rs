//! Random lists over all fields against a plain scan: compiled, cut into tables, and changed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod common;

use common::{eal, scan};
use netvm_classifier::{BuildError, Classifier, Limits, Table};
use netvm_policy::arbitrary::{Dice, rules, rules_and_keys};
use netvm_policy::{Cube, Family, Fields, Masked, Rule};
use netvm_wire::FlowKey;
use proptest::collection::vec;
use proptest::prelude::*;

const WIDE: Limits = Limits { memory: usize::MAX, table_cubes: 8192, scan_cubes: 4 };

fn cubes(rules: &[Rule]) -> Vec<Vec<Cube>> {
    rules.iter().map(|rule| rule.matches.cubes().unwrap()).collect()
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
    fn lists_of_all_fields_give_what_a_scan_gives(
        (rules, keys) in rules_and_keys(1..40, 1..200),
        table_cubes in prop_oneof![Just(8192usize), 1usize..40],
        scan_cubes in prop_oneof![Just(0usize), Just(4), Just(usize::MAX)],
    ) {
        let entries = cubes(&rules);
        // As many tables as are allowed, at most.
        let most = entries.iter().map(Vec::len).sum::<usize>() / 16;
        let limits = Limits { table_cubes: table_cubes.max(most), scan_cubes, ..WIDE };
        let classifier = Classifier::build(eal(), &entries, &limits).unwrap();
        let mut found = vec![7; keys.len()];
        classifier.classify(&keys, &mut found);
        check(&found, &entries, &keys)?;
    }

    #[test]
    fn changed_lists_give_what_a_scan_gives(
        (first, more, edits, seed) in (rules(1..30), rules(12), vec((0u8..4, any::<u64>()), 12), any::<u64>()),
    ) {
        let mut entries = cubes(&first);
        let mut fresh = cubes(&more);
        let mut table = Table::build(eal(), &entries, &WIDE).unwrap();
        let mut dice = Dice::new(seed);
        let all: Vec<Cube> = entries.iter().chain(&fresh).flatten().copied().collect();
        let keys: Vec<FlowKey> = (0..100).map(|_| dice.key(&all)).collect();
        let mut found = vec![0; keys.len()];
        for (kind, at) in edits {
            let place = |length: usize| (at % length.max(1) as u64) as usize;
            match (kind, fresh.pop()) {
                (0, Some(entry)) => entries.insert(place(entries.len() + 1), entry),
                (1, Some(entry)) if !entries.is_empty() => {
                    let n = place(entries.len());
                    entries[n] = entry;
                }
                (2, _) if !entries.is_empty() => {
                    let moved = entries.remove(place(entries.len()));
                    entries.insert(place(entries.len() + 1), moved);
                }
                (_, _) if !entries.is_empty() => {
                    entries.remove(place(entries.len()));
                }
                _ => {}
            }
            table = match table.changed(&entries) {
                Some(changed) => changed,
                None => {
                    let added: usize = entries.iter().map(Vec::len).sum();
                    prop_assert!(added > 256, "only what has very many cubes is refused");
                    Table::build(eal(), &entries, &WIDE).unwrap()
                }
            };
            prop_assert!(table.changes() <= 24);
            table.classify(&keys, &mut found);
            check(&found, &entries, &keys)?;
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
fn few_changes_are_taken_and_many_are_not() {
    let list: Vec<_> = (0..200).map(ports).collect();
    let table = Table::build(eal(), &list, &WIDE).unwrap();
    assert_eq!(table.changed(&list).unwrap().changes(), 0);
    let added = |count: u16| [list.clone(), (1000..1000 + count).map(ports).collect()].concat();
    assert_eq!(table.changed(&added(64)).unwrap().changes(), 64);
    assert!(table.changed(&added(65)).is_none());
    assert_eq!(table.changed(&list[64..]).unwrap().changes(), 64);
    assert!(table.changed(&list[65..]).is_none());
    let many_cubes: Vec<Cube> = (1000..1257).flat_map(ports).collect();
    assert!(table.changed(&[list.clone(), vec![many_cubes]].concat()).is_none());
    // Changes count from what was compiled, not from the last ones.
    let back = table.changed(&added(64)).unwrap().changed(&list).unwrap();
    assert_eq!(back.changes(), 0);
    let reversed: Vec<_> = list.iter().rev().cloned().collect();
    assert!(table.changed(&reversed).is_none());
}

#[test]
fn what_takes_everything_ends_the_list() {
    let any = |family| vec![Cube { family, fields: Fields::ANY }];
    let mut list: Vec<_> = (0..20).map(ports).collect();
    list.push(any(Family::V4));
    let short = Classifier::build(eal(), &list, &WIDE).unwrap();
    list.extend((100..5000).map(ports));
    let long = Classifier::build(eal(), &list, &WIDE).unwrap();
    assert_eq!((short.tables(), long.tables()), (1, 1));
    assert!(long.bytes() < 2 * short.bytes(), "{} {}", long.bytes(), short.bytes());
    let mut dice = Dice::new(1);
    let keys: Vec<_> = (0..500).map(|_| dice.key(&list.concat())).collect();
    let mut found = vec![0; keys.len()];
    long.classify(&keys, &mut found);
    check(&found, &list, &keys).unwrap();
    // Gone, it leaves the others, which are not in the tables.
    list.remove(20);
    let table = Table::build(eal(), &[&list[..20], &[any(Family::V4)], &list[20..]].concat(), &WIDE).unwrap();
    let table = table.changed(&list).unwrap();
    table.classify(&keys, &mut found);
    check(&found, &list, &keys).unwrap();
}

#[test]
fn what_does_not_fit_is_refused_and_says_so() {
    let list: Vec<_> = (0..5000).map(ports).collect();
    let limits = Limits { memory: 10_000, ..WIDE };
    let error = Classifier::build(eal(), &list, &limits).unwrap_err();
    assert!(matches!(error, BuildError::TooLarge { cubes: 5000, memory: 10_000, .. }), "{error:?}");
    assert!(error.to_string().contains("10000 bytes set aside"), "{error}");
    let none: [Vec<Cube>; 0] = [];
    let empty = Classifier::build(eal(), &none, &limits).unwrap();
    assert_eq!((empty.tables(), empty.bytes()), (0, 0));
}
