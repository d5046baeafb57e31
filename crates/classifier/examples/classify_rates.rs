// SPDX-License-Identifier: Apache-2.0
//! Cost of classification with the generated filter sets, or with files: every packet has a new flow, bursts of 32,
//! keys in order.
//!
//! `cargo run --release -p netvm-classifier --example classify_rates [FILE...]`
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that cannot go on ends")]

use std::sync::Arc;
use std::time::Instant;

use dpdk::{Eal, EalOptions, HugePages};
use netvm_classifier::{Classifier, Limits, Table};
use netvm_policy::arbitrary::Generator;
use netvm_policy::{Actions, Cube};
use netvm_policy_import::classbench::{self, Flags};
use netvm_wire::FlowKey;

const KEYS: usize = 1 << 14;
const BURST: usize = 32;

fn main() {
    let options = EalOptions { huge_pages: HugePages::Off, memory_mib: 1024, ..EalOptions::default() };
    let eal = Eal::init(&options).expect("the EAL starts");
    let files = std::env::args().skip(1);
    let read = |file: String| (file.clone(), std::fs::read_to_string(&file).expect("a file"));
    let mut sets: Vec<(String, String)> = files.map(read).collect();
    if sets.is_empty() {
        sets = netvm_workload::rules::standard_sets();
    }
    println!(
        "{:<10} {:>6} {:>9} {:>8} {:>6} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "set", "rules", "build ms", "MB", "tables", "uniform", "half", "all rules", "overlay 1", "changed us"
    );
    for (name, text) in sets {
        let imported = classbench::parse(&text, Actions::default(), Flags::Ignore).expect("a filter set");
        let entries: Vec<Arc<[Cube]>> =
            imported.rules.iter().map(|rule| rule.matches.cubes().unwrap().into()).collect();
        let start = Instant::now();
        let table = match Table::<[Cube]>::build(
            eal,
            &entries[..],
            &Limits { memory: 512 << 20, ..Limits::default() },
        ) {
            Ok(table) => table,
            Err(error) => {
                println!("{name}: {error}");
                continue;
            }
        };
        let build = start.elapsed();
        let all: Vec<Cube> = entries.iter().flat_map(|entry| entry.iter()).copied().collect();
        let cycles = |drawn: u64| cycles(&keys(&all, drawn), |keys, out| table.classify(keys, out));
        let (uniform, half, rules) = (cycles(0), cycles(2), cycles(1));
        // A rule in the middle moves to the front.
        let mut moved = entries.clone();
        let middle = moved.remove(entries.len() / 2);
        moved.insert(0, middle);
        let changed = table.changed(&moved[..]).expect("one change");
        let change = (0..15).map(|_| {
            let start = Instant::now();
            std::hint::black_box(table.changed(&moved[..]));
            start.elapsed()
        });
        let change = change.min().unwrap_or_default();
        let overlay = self::cycles(&keys(&all, 2), |keys, out| changed.classify(keys, out));
        let classifier: &Classifier = table.classifier();
        println!(
            "{name:<10} {:>6} {:>9.0} {:>8.1} {:>6} {uniform:>10.1} {half:>10.1} {rules:>10.1} {overlay:>10.1} {:>10}",
            entries.len(),
            build.as_secs_f64() * 1e3,
            classifier.bytes() as f64 / 1e6,
            classifier.tables(),
            change.as_micros(),
        );
    }
    println!("cycles of the TSC ({:.0} MHz) a packet, best of 15 runs", dpdk::tsc_hz(eal) as f64 / 1e6);
}

/// One in `drawn` keys matches a rule (0: none); the others are uniform.
fn keys(cubes: &[Cube], drawn: u64) -> Vec<FlowKey> {
    let mut generator = Generator::new(5);
    let mut key = |_| {
        if drawn > 0 && generator.once_in(drawn) {
            return generator.key_in(generator.clone().pick(cubes).expect("rules"));
        }
        generator.uniform_v4_key()
    };
    (0..KEYS).map(&mut key).collect()
}

fn cycles(keys: &[FlowKey], mut classify: impl FnMut(&[FlowKey], &mut [u32])) -> f64 {
    let mut out = [0; BURST];
    let mut run = || {
        let start = dpdk::cycles();
        for keys in keys.chunks(BURST) {
            classify(keys, &mut out);
            std::hint::black_box(&mut out);
        }
        dpdk::cycles() - start
    };
    (0..15).map(|_| run()).min().unwrap_or_default() as f64 / keys.len() as f64
}
