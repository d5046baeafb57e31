// SPDX-License-Identifier: Apache-2.0
//! Shared by the tests: an EAL per test binary, the reference scan, and filter sets.
#![allow(dead_code, reason = "no test binary uses all of it")]

use dpdk::{Eal, EalOptions, HugePages};
use netvm_classifier::NONE;
use netvm_policy::{Actions, Cube};
use netvm_policy_import::classbench::{self, Flags};
use netvm_wire::FlowKey;

pub fn eal() -> Eal {
    let options = EalOptions { huge_pages: HugePages::Off, memory_mib: 512, ..EalOptions::default() };
    Eal::init(&options).unwrap()
}

/// The reference result.
pub fn scan(entries: &[Vec<Cube>], key: &FlowKey) -> u32 {
    let first = entries.iter().position(|cubes| cubes.iter().any(|cube| cube.contains(key)));
    first.map_or(NONE, |n| n as u32)
}

/// The filter sets: name and text.
pub fn filter_sets() -> Vec<(String, String)> {
    netvm_workload::data::filter_sets().unwrap()
}

/// The cubes of each rule of a filter set.
pub fn entries(text: &str) -> Vec<Vec<Cube>> {
    let imported = classbench::parse(text, Actions::default(), Flags::Ignore).unwrap();
    imported.rules.iter().map(|rule| rule.matches.cubes().unwrap()).collect()
}
