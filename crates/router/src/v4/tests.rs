// SPDX-License-Identifier: Apache-2.0
//! Compares the table of IPv4 with a linear longest-prefix match.

use netvm_cpu::Level;
use proptest::prelude::*;

use super::*;
use crate::table_test::{Change, Table, byte, follow, rounds};
use group::Group;

impl Table for V4 {
    type Address = u32;

    fn apply(&mut self, changes: &[Change<u32>]) {
        self.apply(changes.iter().copied());
    }

    fn lookup(&self, addresses: &[u32]) -> Vec<NextHopId> {
        let mut found = vec![NextHopId(u16::MAX); addresses.len()];
        self.lookup_portably(addresses, &mut found);
        for level in Level::available() {
            let mut by_level = vec![NextHopId(u16::MAX); addresses.len()];
            self.lookup(level, addresses, &mut by_level);
            assert_eq!(found, by_level, "{level}");
        }
        found
    }

    fn routes(&self) -> usize {
        self.routes()
    }

    fn is_empty(&self) -> bool {
        let none = |group: &Group| *group == Group::default();
        self.store.is_empty()
            && self.root.groups().is_some_and(|groups| groups.iter().all(none))
            && self.routes.is_empty()
    }

    fn was_full(&self) -> bool {
        self.was_full()
    }
}

fn prefix() -> impl Strategy<Value = Prefix<u32>> {
    let length = prop_oneof![1 => 0u8..=32, 1 => 17u8..=32];
    (proptest::array::uniform4(byte()), length)
        .prop_map(|(bytes, length)| Prefix::new(u32::from_be_bytes(bytes), length))
}

/// In the prefixes of 24 bits of a few groups, so that these hold many routes.
fn crowded() -> impl Strategy<Value = Prefix<u32>> {
    (0u32..3 << 13, 18u8..=32).prop_map(|(address, length)| Prefix::new(0x0a00_0000 | address, length))
}

fn beside(address: u32) -> [u32; 2] {
    [address.wrapping_sub(1), address.wrapping_add(1)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn it_agrees_with_a_linear_search(rounds in rounds(prefix())) {
        follow(V4::default(), &rounds, beside)?;
    }

    #[test]
    fn crowded_groups_agree_with_a_linear_search(rounds in rounds(crowded())) {
        follow(V4::default(), &rounds, beside)?;
    }

    /// Without room every address still leads to its next hop or to the kernel, also after later changes.
    #[test]
    fn routes_beyond_the_limits_are_punted(rounds in rounds(crowded()), places in 0usize..200, blocks in 0usize..4) {
        follow(V4::with_limits(Limits { places, blocks }), &rounds, beside)?;
    }
}

#[test]
fn a_burst_of_any_length_is_looked_up_in_order() {
    let mut table = V4::default();
    table.apply((0..100u32).map(|n| (Prefix::new(n << 8, 24), Some(NextHopId(n as u16)))));
    for length in [0, 1, 31, 32, 33, 64, 100, 129] {
        let addresses: Vec<u32> = (0..length).map(|n| (n % 100) << 8 | 7).collect();
        let expected: Vec<NextHopId> = (0..length).map(|n| NextHopId((n % 100) as u16)).collect();
        assert_eq!(Table::lookup(&table, &addresses), expected);
    }
    let mut short = [NextHopId(9); 2];
    table.lookup_burst(&[5 << 8, 6 << 8, 7 << 8], &mut short);
    assert_eq!(short, [NextHopId(5), NextHopId(6)]);
}

#[test]
fn host_routes_in_many_blocks_are_looked_up() {
    let mut table = V4::default();
    let route = |n: u32| Prefix::new(0x0a00_0000 | n << 6, 29);
    let id = |n: u32| NextHopId(1 + (n % 30_000) as u16);
    table.apply((0..200_000).map(|n| (route(n), Some(id(n)))));
    assert!(size_of_val(table.store.leaves()) > MAP_THRESHOLD);
    let addresses: Vec<u32> = (0..201_000).map(|n| route(n).bits | (n % 16)).collect();
    let expected = |n| if n < 200_000 && n % 16 < 8 { id(n) } else { NextHopId::PUNT };
    assert_eq!(Table::lookup(&table, &addresses), (0..201_000).map(expected).collect::<Vec<_>>());
}

#[test]
fn memory_is_that_of_the_pages_with_routes() {
    let mut table = V4::default();
    let before = table.memory();
    let site = |n: u32| (Prefix::new(0x0a00_0000 | n << 8, 24), Some(NextHopId(1)));
    table.apply((0..256).map(site));
    assert!(table.memory() < before + 16_000, "{before} {}", table.memory());
    table.apply((0..250_000).map(|n| (Prefix::new(n << 12, 24), Some(NextHopId((n % 99) as u16)))));
    assert!(table.root.memory() > 2 << 20, "{}", table.root.memory());
}
