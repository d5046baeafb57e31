// SPDX-License-Identifier: Apache-2.0
//! `rte_acl` when the EAL is configured without wide registers.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::num::NonZeroU32;

use dpdk::{AclBuilder, AclField, AclKind, AclValue, Eal, EalOptions, HugePages};

#[test]
fn a_limit_on_simd_changes_nothing_but_the_speed() {
    let eal = Eal::init(&EalOptions {
        huge_pages: HugePages::Off,
        memory_mib: 64,
        arguments: vec!["--force-max-simd-bitwidth=128".to_owned()],
        ..EalOptions::default()
    })
    .unwrap();
    let fields = [(AclKind::Masked, 1), (AclKind::Range, 2), (AclKind::Range, 2)];
    let mut builder = AclBuilder::new(&fields.map(|(kind, bytes)| AclField { kind, bytes })).unwrap();
    let value = |value, mask_or_last| AclValue { value, mask_or_last };
    for n in 0..1000 {
        let rule = [value(n % 2, 1), value(n * 10, n * 10 + 14), value(0, 0xffff)];
        let number = |n| NonZeroU32::new(n).unwrap();
        builder.rule(&rule, number(2000 - n), number(n + 1)).unwrap();
    }
    let acl = builder.build::<8>(eal, usize::MAX, None).unwrap();
    let keys: Vec<[u8; 8]> = (0_u32..10_100)
        .map(|n| {
            let [_, _, high, low] = n.to_be_bytes();
            [(n % 3) as u8, 0, 0, 0, high, low, low, high]
        })
        .collect();
    let mut found = vec![0; keys.len()];
    acl.classify(&keys, &mut found);
    for (n, found) in (0_u32..).zip(found) {
        let first = (0..1000).find(|rule| rule % 2 == n % 3 % 2 && (rule * 10..=rule * 10 + 14).contains(&n));
        assert_eq!(found, first.map_or(0, |rule| rule + 1), "{n}");
    }
}
