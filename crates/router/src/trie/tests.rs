//! Compares the trie with a linear longest-prefix match.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

/// The longest route that contains the address.
fn scan<A: Bits>(routes: &BTreeMap<Prefix<A>, NextHopId>, address: A) -> NextHopId {
    let host = Prefix::new(address, A::LENGTH);
    let around = routes.iter().filter(|(prefix, _)| prefix.contains(host));
    around.max_by_key(|(prefix, _)| prefix.length).map_or(NextHopId::PUNT, |(_, id)| *id)
}

/// Looks up with each level that the processor has; all must agree.
fn lookup<K: Key>(trie: &Trie<K::Bits>, addresses: &[K]) -> Vec<NextHopId> {
    let mut found = vec![NextHopId(u16::MAX); addresses.len()];
    trie.lookup_burst(addresses, &mut found);
    for level in Level::available() {
        let mut by_level = vec![NextHopId(u16::MAX); addresses.len()];
        trie.view().lookup(level, addresses, &mut by_level);
        assert_eq!(found, by_level, "{level}");
    }
    found
}

type Change<A> = (Prefix<A>, Option<NextHopId>);

/// Applies rounds of changes. After each round, the ends of all prefixes so far, and the addresses `beside` them, must
/// lead to the same next hop as the linear search.
fn follow<A: Bits, K: Key<Bits = A>>(
    rounds: &[Vec<Change<A>>],
    beside: impl Fn(A) -> [A; 2],
    key: impl Fn(&A) -> K,
) -> Result<(), TestCaseError> {
    let mut trie = Trie::default();
    let mut routes = BTreeMap::new();
    let mut addresses: Vec<A> = Vec::new();
    for changes in rounds {
        trie.apply(changes.iter().copied());
        for (prefix, id) in changes {
            match id {
                Some(id) => routes.insert(*prefix, *id),
                None => routes.remove(prefix),
            };
            let ends = [prefix.bits, prefix.last().bits];
            addresses.extend(ends.into_iter().chain(ends.into_iter().flat_map(&beside)));
        }
        let keys: Vec<K> = addresses.iter().map(&key).collect();
        let found = lookup(&trie, &keys);
        for (address, id) in addresses.iter().zip(found) {
            prop_assert_eq!(id, scan(&routes, *address), "{:x?} among {:x?}", address, routes);
        }
        prop_assert_eq!(trie.routes(), routes.len());
    }
    // Removing all routes frees every node.
    trie.apply(routes.into_keys().map(|prefix| (prefix, None)));
    prop_assert_eq!(trie.arena.in_use(), 0);
    prop_assert!(trie.root.iter().all(|entry| *entry == Entry::NONE));
    prop_assert_eq!(trie.default, NextHopId::PUNT);
    prop_assert_eq!(trie.lengths, [0; 129]);
    Ok(())
}

/// Few different bytes, so that prefixes nest and touch.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![3 => select(vec![0u8, 1, 2, 127, 128, 254, 255]), 1 => any::<u8>()]
}

fn id() -> impl Strategy<Value = Option<NextHopId>> {
    prop_oneof![3 => (0u16..5).prop_map(|id| Some(NextHopId(id))), 1 => Just(None)]
}

fn v4() -> impl Strategy<Value = Prefix<u32>> {
    (proptest::array::uniform4(byte()), 0u8..=32)
        .prop_map(|(bytes, length)| Prefix::new(u32::from_be_bytes(bytes), length))
}

fn v6() -> impl Strategy<Value = Prefix<u128>> {
    let length = prop_oneof![2 => 0u8..=128, 1 => select(vec![16u8, 24, 32, 48, 64, 127, 128])];
    let bytes = (select(vec![[0x20u8, 0x01], [0x20, 0x02], [0, 0]]), proptest::array::uniform14(byte()));
    (bytes, length).prop_map(|((top, rest), length)| {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&top);
        bytes[2..].copy_from_slice(&rest);
        Prefix::new(u128::from_be_bytes(bytes), length)
    })
}

/// Rounds of changes, many of them to existing routes.
fn rounds<A: Bits + 'static>(
    prefix: impl Strategy<Value = Prefix<A>>,
) -> impl Strategy<Value = Vec<Vec<Change<A>>>> {
    vec(prefix, 1..40).prop_flat_map(|prefixes| vec(vec((select(prefixes), id()), 1..30), 1..8))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn v4_agrees_with_a_linear_search(rounds in rounds(v4())) {
        follow(&rounds, |address| [address.wrapping_sub(1), address.wrapping_add(1)], |address| *address)?;
    }

    #[test]
    fn v6_agrees_with_a_linear_search(rounds in rounds(v6())) {
        let beside = |address: u128| [address.wrapping_sub(1), address.wrapping_add(1)];
        follow(&rounds, beside, |address| address.to_be_bytes())?;
    }

    /// In a full arena every address still leads to its next hop or to the kernel, also after later changes.
    #[test]
    fn routes_beyond_the_limit_are_punted(rounds in rounds(v4()), limit in 0u32..6) {
        let mut trie = Trie::with_limit(limit);
        let mut routes = BTreeMap::new();
        for changes in &rounds {
            trie.apply(changes.iter().copied());
            for (prefix, id) in changes {
                match id {
                    Some(id) => routes.insert(*prefix, *id),
                    None => routes.remove(prefix),
                };
            }
            for (prefix, _) in changes {
                let address = prefix.last().bits;
                let (found, expected) = (lookup(&trie, &[address])[0], scan(&routes, address));
                prop_assert!(found == expected || found == NextHopId::PUNT && trie.was_full());
            }
            prop_assert!(trie.arena.used() <= limit as usize);
        }
    }
}

#[test]
fn a_burst_of_any_length_is_looked_up_in_order() {
    let mut trie = Trie::default();
    trie.apply((0..100u32).map(|n| (Prefix::new(n << 8, 24), Some(NextHopId(n as u16)))));
    for length in [0, 1, 31, 32, 33, 64, 100] {
        let addresses: Vec<u32> = (0..length).map(|n| n << 8 | 7).collect();
        let expected: Vec<NextHopId> = (0..length).map(|n| NextHopId(n as u16)).collect();
        assert_eq!(lookup(&trie, &addresses), expected);
    }
    let mut short = [NextHopId(9); 2];
    trie.lookup_burst(&[5 << 8, 6 << 8, 7 << 8], &mut short);
    assert_eq!(short, [NextHopId(5), NextHopId(6)]);
}

#[test]
fn a_table_that_the_caches_do_not_hold_is_looked_up() {
    let mut trie = Trie::<u32>::default();
    let route = |n: u32| Prefix::new(n << 7, 25);
    let id = |n: u32| NextHopId(1 + (n % 1000) as u16);
    trie.apply((0..4000).map(|n| (route(n), Some(id(n)))));
    assert!(trie.arena.in_use() > 8192);
    let addresses: Vec<u32> = (0..4100).map(|n| route(n * 7 % 4100).last().bits).collect();
    let expected: Vec<NextHopId> =
        (0..4100).map(|n| n * 7 % 4100).map(|n| if n < 4000 { id(n) } else { NextHopId::PUNT }).collect();
    assert_eq!(lookup(&trie, &addresses), expected);
}

#[test]
fn a_single_host_route_takes_one_line() {
    let mut trie = Trie::<u128>::default();
    let host = Prefix::new(0x2001_0db8_0000_0000_0000_0000_0000_0001, 128);
    trie.apply([(host, Some(NextHopId(3)))].into_iter());
    assert_eq!(trie.arena.in_use(), 1);
    assert_eq!(
        lookup(&trie, &[host.bits, host.bits + 1].map(u128::to_be_bytes)),
        [NextHopId(3), NextHopId::PUNT]
    );
}
