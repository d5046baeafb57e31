// SPDX-License-Identifier: Apache-2.0
//! Compares the trie with a linear longest-prefix match.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::table_test::{Change, Table, byte, follow, rounds};

impl Table for Trie {
    type Address = u128;

    fn apply(&mut self, changes: &[Change<u128>]) {
        self.apply(changes.iter().copied());
        assert!(self.arena.used() <= self.arena.limit() as usize);
    }

    fn lookup(&self, addresses: &[u128]) -> Vec<NextHopId> {
        let addresses: Vec<Address> = addresses.iter().map(|address| address.to_be_bytes()).collect();
        let mut found = vec![NextHopId(u16::MAX); addresses.len()];
        self.lookup_burst(&addresses, &mut found);
        for level in Level::available() {
            let mut by_level = vec![NextHopId(u16::MAX); addresses.len()];
            self.view().lookup(level, &addresses, &mut by_level);
            assert_eq!(found, by_level, "{level}");
        }
        found
    }

    fn routes(&self) -> usize {
        self.routes()
    }

    fn is_empty(&self) -> bool {
        let none = |entry: &Entry| {
            *entry == Entry::NONE || self.was_full() && *entry == Entry::leaf(NextHopId::PUNT)
        };
        self.arena.in_use() == 0 && self.root.iter().all(none) && self.routes.is_empty()
    }

    fn was_full(&self) -> bool {
        self.was_full()
    }
}

fn prefix() -> impl Strategy<Value = Prefix<u128>> {
    let length = prop_oneof![2 => 0u8..=128, 1 => select(vec![16u8, 24, 32, 48, 64, 127, 128])];
    let bytes = (select(vec![[0x20u8, 0x01], [0x20, 0x02], [0, 0]]), proptest::array::uniform14(byte()));
    (bytes, length).prop_map(|((top, rest), length)| {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&top);
        bytes[2..].copy_from_slice(&rest);
        Prefix::new(u128::from_be_bytes(bytes), length)
    })
}

fn beside(address: u128) -> [u128; 2] {
    [address.wrapping_sub(1), address.wrapping_add(1)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn it_agrees_with_a_linear_search(rounds in rounds(prefix())) {
        follow(Trie::default(), &rounds, beside)?;
    }

    /// In a full arena every address still leads to its next hop or to the kernel, also after later changes.
    #[test]
    fn routes_beyond_the_limit_are_punted(rounds in rounds(prefix()), limit in 0u32..40) {
        follow(Trie::with_limit(limit), &rounds, beside)?;
    }
}

/// Route `n` of many, each with a node or a slot of its own.
fn route(n: u128) -> Prefix<u128> {
    Prefix::new(0x2001_0db8 << 96 | n << 71, 57)
}

#[test]
fn a_burst_of_any_length_is_looked_up_in_order() {
    let mut trie = Trie::default();
    trie.apply((0..100).map(|n| (route(n), Some(NextHopId(n as u16)))));
    for length in [0, 1, 31, 32, 33, 64, 100] {
        let addresses: Vec<u128> = (0..length).map(|n| route(n).last().bits).collect();
        let expected: Vec<NextHopId> = (0..length).map(|n| NextHopId(n as u16)).collect();
        assert_eq!(Table::lookup(&trie, &addresses), expected);
    }
    let mut short = [NextHopId(9); 2];
    trie.lookup_burst(&[5, 6, 7].map(|n| route(n).bits.to_be_bytes()), &mut short);
    assert_eq!(short, [NextHopId(5), NextHopId(6)]);
}

#[test]
fn a_table_that_the_caches_do_not_hold_is_looked_up() {
    let mut trie = Trie::default();
    let id = |n: u128| NextHopId(1 + (n % 1000) as u16);
    trie.apply((0..4000).map(|n| (route(n), Some(id(n)))));
    assert!(trie.arena.in_use() > 8192);
    let addresses: Vec<u128> = (0..4100).map(|n| route(n * 7 % 4100).last().bits).collect();
    let expected: Vec<NextHopId> =
        (0..4100).map(|n| n * 7 % 4100).map(|n| if n < 4000 { id(n) } else { NextHopId::PUNT }).collect();
    assert_eq!(Table::lookup(&trie, &addresses), expected);
}

#[test]
fn a_single_host_route_takes_one_line() {
    let mut trie = Trie::default();
    let host = Prefix::new(0x2001_0db8_0000_0000_0000_0000_0000_0001, 128);
    trie.apply([(host, Some(NextHopId(3)))].into_iter());
    assert_eq!(trie.arena.in_use(), 1);
    assert_eq!(Table::lookup(&trie, &[host.bits, host.bits + 1]), [NextHopId(3), NextHopId::PUNT]);
}
