// SPDX-License-Identifier: Apache-2.0
//! `rte_acl` against a plain scan of its rules.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::num::NonZeroU32;

use dpdk::{Acl, AclBuilder, AclError, AclField, AclKind, AclValue, Eal, EalOptions, HugePages};
use netvm_cpu::Level;
use proptest::collection::vec;
use proptest::prelude::*;

/// So little memory that the test can fill it.
fn eal() -> Eal {
    Eal::init(&EalOptions { huge_pages: HugePages::Off, memory_mib: 64, ..EalOptions::default() }).unwrap()
}

const fn field(kind: AclKind, bytes: u8) -> AclField {
    AclField { kind, bytes }
}

const fn value(value: u32, mask_or_last: u32) -> AclValue {
    AclValue { value, mask_or_last }
}

fn number(n: usize) -> NonZeroU32 {
    NonZeroU32::new(n as u32).unwrap()
}

/// One byte; four bytes; two of two; four of one: every kind and size.
const FIELDS: [AclField; 8] = [
    field(AclKind::Masked, 1),
    field(AclKind::Masked, 4),
    field(AclKind::Range, 2),
    field(AclKind::Masked, 2),
    field(AclKind::Range, 1),
    field(AclKind::Masked, 1),
    field(AclKind::Range, 1),
    field(AclKind::Range, 1),
];

/// Where the fields are.
const OFFSETS: [usize; 8] = [0, 4, 8, 10, 12, 13, 14, 15];

fn read(key: &[u8; 16], n: usize) -> u32 {
    let bytes = &key[OFFSETS[n]..][..FIELDS[n].bytes.into()];
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

fn fits(rule: &[AclValue], key: &[u8; 16]) -> bool {
    rule.iter().enumerate().all(|(n, wanted)| {
        let found = read(key, n);
        match FIELDS[n].kind {
            AclKind::Masked => found & wanted.mask_or_last == wanted.value & wanted.mask_or_last,
            AclKind::Range => (wanted.value..=wanted.mask_or_last).contains(&found),
        }
    })
}

/// Half of the fields match everything; the others have few values, so that rules match keys.
fn rule() -> impl Strategy<Value = Vec<AclValue>> {
    let fields = FIELDS.map(|field| {
        let most = u32::MAX >> (32 - 8 * u32::from(field.bytes));
        let small = (0u32..4, 0u32..4);
        match field.kind {
            AclKind::Masked => prop_oneof![
                Just(value(0, 0)),
                (small, any::<u32>()).prop_map(move |((a, _), mask)| value(a, mask & most & 0xff00_0003)),
                any::<u32>().prop_map(move |bits| value(bits & most, most)),
            ]
            .boxed(),
            AclKind::Range => prop_oneof![
                Just(value(0, most)),
                small.prop_map(|(a, b)| value(a.min(b), a.max(b))),
                (any::<u32>(), any::<u32>()).prop_map(move |(a, b)| {
                    let (a, b) = (a & most, b & most);
                    value(a.min(b), a.max(b))
                }),
            ]
            .boxed(),
        }
    });
    fields.to_vec()
}

fn key() -> impl Strategy<Value = [u8; 16]> {
    vec(prop_oneof![Just(0u8), 0u8..5, any::<u8>()], 16).prop_map(|bytes| bytes.try_into().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_first_rule_that_fits_is_found(rules in vec(rule(), 1..40), keys in vec(key(), 1..150)) {
        let mut builder = AclBuilder::new(&FIELDS).unwrap();
        for (n, rule) in rules.iter().enumerate() {
            builder.rule(rule, number(rules.len() - n), number(n + 1)).unwrap();
        }
        let mut acl: Acl<16> = builder.build(eal(), usize::MAX, None).unwrap();
        let first = |key| rules.iter().position(|rule| fits(rule, key)).map_or(0, |n| n as u32 + 1);
        let expected: Vec<u32> = keys.iter().map(first).collect();
        for level in Level::available() {
            acl.use_level(level);
            // As many keys as there are: bursts of every length.
            let mut found = vec![u32::MAX; keys.len()];
            acl.classify(&keys, &mut found);
            prop_assert_eq!(&found, &expected, "{}", level);
        }
    }
}

#[test]
fn threads_classify_at_the_same_time_as_others_are_compiled() {
    let build = |wanted: u32| {
        let mut builder = AclBuilder::new(&FIELDS[..2]).unwrap();
        builder.rule(&[value(0, 0), value(wanted, u32::MAX)], number(1), number(7)).unwrap();
        builder.build::<8>(eal(), usize::MAX, None).unwrap()
    };
    let acl = build(5);
    std::thread::scope(|scope| {
        let compiling = scope.spawn(|| (0..50).map(|_| build(6).bytes()).max());
        for _ in 0..2 {
            scope.spawn(|| {
                let mut found = [0; 2];
                for _ in 0..10_000 {
                    acl.classify(&[[0, 0, 0, 0, 0, 0, 0, 5], [0, 0, 0, 0, 0, 0, 0, 6]], &mut found);
                    assert_eq!(found, [7, 0]);
                }
            });
        }
        assert!(compiling.join().unwrap().unwrap() > 0);
    });
}

#[test]
fn fields_that_make_no_key_are_refused() {
    let of = |sizes: &[u8]| {
        let fields: Vec<_> = sizes.iter().map(|bytes| field(AclKind::Masked, *bytes)).collect();
        AclBuilder::new(&fields).map(|builder| builder.key_bytes())
    };
    assert_eq!(of(&[1]), Ok(4));
    assert_eq!(of(&[1, 4, 2, 2, 1, 1, 1, 1]), Ok(16));
    assert_eq!(of(&[]), Err(AclError::Layout(0)));
    assert_eq!(of(&[4]), Err(AclError::Layout(0)));
    assert_eq!(of(&[1, 3]), Err(AclError::Layout(1)));
    assert_eq!(of(&[1, 2, 4]), Err(AclError::Layout(2)));
    assert_eq!(of(&[1, 2]), Err(AclError::Layout(2)));
    assert_eq!(of(&[1, 1, 2]), Err(AclError::Layout(2)));
}

#[test]
fn rules_that_do_not_go_with_the_fields_are_refused() {
    let mut builder = AclBuilder::new(&FIELDS[..4]).unwrap();
    let any = [value(0, 0), value(0, 0), value(0, 0xffff), value(0, 0)];
    let mut add = |change: fn(&mut [AclValue; 4]), priority| {
        let mut rule = any;
        change(&mut rule);
        builder.rule(&rule, number(priority), number(1))
    };
    assert_eq!(add(|_| (), 1), Ok(()));
    assert_eq!(add(|_| (), 1 << 29), Err(AclError::Rule(1)));
    assert_eq!(add(|rule| rule[0].value = 256, 1), Err(AclError::Rule(1)));
    assert_eq!(add(|rule| rule[2] = value(3, 2), 1), Err(AclError::Rule(1)));
    assert_eq!(add(|rule| rule[2] = value(0, 0x1_0000), 1), Err(AclError::Rule(1)));
    assert_eq!(builder.rule(&any[..3], number(1), number(1)), Err(AclError::Rule(1)));
    assert_eq!(builder.len(), 1);
    let key = builder.build::<8>(eal(), 1 << 20, None).unwrap_err();
    assert_eq!(key, AclError::KeyBytes { needed: 12, chosen: 8 });
    let none = AclBuilder::new(&FIELDS).unwrap();
    assert_eq!(none.build::<16>(eal(), 1 << 20, None).unwrap_err(), AclError::Empty);
}

#[test]
fn too_little_memory_is_an_error_and_leaves_none_behind() {
    let rules = |count: usize| {
        let mut builder = AclBuilder::new(&FIELDS[..4]).unwrap();
        for n in 0..count {
            let rule = [value(0, 0), value(n as u32, u32::MAX), value(0, 0xffff), value(0, 0)];
            builder.rule(&rule, number(1), number(n + 1)).unwrap();
        }
        builder
    };
    let few = rules(100);
    let error = few.build::<16>(eal(), 1000, None).unwrap_err();
    assert!(matches!(error, AclError::TooLarge { rules: 100, needed: 1001.., bytes: 1000 }), "{error}");
    // More rules than fit in the EAL's memory, even before they are compiled.
    let many = rules(900_000);
    for _ in 0..3 {
        let error = many.build::<16>(eal(), usize::MAX, None).unwrap_err();
        assert!(matches!(error, AclError::NoMemory { rules: 900_000, .. }), "{error}");
        assert!(error.to_string().contains("its memory is full"), "{error}");
    }
    let acl = few.build::<16>(eal(), usize::MAX, None).unwrap();
    let mut found = [0];
    acl.classify(&[[0, 0, 0, 0, 0, 0, 0, 42, 0, 0, 0, 0, 0, 0, 0, 0]], &mut found);
    assert_eq!(found, [43]);
}
