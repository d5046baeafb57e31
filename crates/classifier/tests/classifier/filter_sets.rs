// SPDX-License-Identifier: Apache-2.0
//! Public filter sets against a linear scan.
//!
//! A million headers for each set in release builds, else 10,000; `NETVM_ACL_HEADERS` overrides the number.

use std::thread;

use crate::common::{eal, entries, filter_sets, scan};
use netvm_classifier::{Classifier, Limits, NONE};
use netvm_policy::Cube;
use netvm_policy::arbitrary::Generator;
use netvm_wire::FlowKey;

fn headers() -> usize {
    match std::env::var("NETVM_ACL_HEADERS") {
        Ok(number) => number.parse().unwrap(),
        Err(_) if cfg!(debug_assertions) => 10_000,
        Err(_) => 1_000_000,
    }
}

/// Half from the rules, half uniform.
fn header(generator: &mut Generator, cubes: &[Cube], n: usize) -> FlowKey {
    if n.is_multiple_of(2) {
        return generator.key_in(generator.clone().pick(cubes).unwrap());
    }
    generator.uniform_v4_key()
}

fn check(classifier: &Classifier, entries: &[Vec<Cube>], count: usize, seed: u64) -> usize {
    let cubes: Vec<Cube> = entries.concat();
    let mut generator = Generator::new(seed);
    let (mut keys, mut found, mut matched) = (Vec::new(), Vec::new(), 0);
    for start in (0..count).step_by(1024) {
        let end = count.min(start + 1024);
        keys.clear();
        keys.extend((start..end).map(|n| header(&mut generator, &cubes, n)));
        found.resize(keys.len(), 0);
        // Bursts of all lengths.
        let length = 1 + start / 1024 % 64;
        for (keys, found) in keys.chunks(length).zip(found.chunks_mut(length)) {
            classifier.classify(keys, found);
        }
        for (key, found) in keys.iter().zip(&found) {
            assert_eq!(*found, scan(entries, key), "{key:?}");
            matched += usize::from(*found != NONE);
        }
    }
    matched
}

#[test]
fn every_filter_set_agrees_with_a_scan() {
    let count = headers();
    for (name, text) in filter_sets() {
        let entries = entries(&text);
        let classifier = Classifier::build(eal(), &entries, &Limits::default()).unwrap();
        let threads = thread::available_parallelism().map_or(1, usize::from).min(8);
        let matched: usize = thread::scope(|scope| {
            let part = |n| {
                let (classifier, entries) = (&classifier, &entries);
                scope.spawn(move || check(classifier, entries, count / threads, n as u64 + 1))
            };
            let parts: Vec<_> = (0..threads).map(part).collect();
            parts.into_iter().map(|part| part.join().unwrap()).sum()
        });
        println!("{name}: {} rules, {count} headers, {matched} matched", entries.len());
        assert!(matched >= count / 2 - threads, "{name}: half of the headers match rules");
    }
}

/// Sets split into many tables give the same results.
#[test]
fn several_tables_agree_with_a_scan() {
    for (_, text) in filter_sets().iter().take(2) {
        let entries = entries(text);
        let limits = Limits { table_cubes: 150, ..Limits::default() };
        let classifier = Classifier::build(eal(), &entries, &limits).unwrap();
        assert!(classifier.tables() >= entries.len() / 150);
        check(&classifier, &entries, headers().min(10_000), 1);
    }
}
