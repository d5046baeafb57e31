// SPDX-License-Identifier: Apache-2.0
//! For tests: compares a family's table with a linear longest-prefix match, through rounds of changes.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::next_hop::NextHopId;
use crate::prefix::{Bits, Prefix};

pub(crate) type Change<A> = (Prefix<A>, Option<NextHopId>);

/// A table under test.
pub(crate) trait Table {
    type Address: Bits + 'static;

    fn apply(&mut self, changes: &[Change<Self::Address>]);

    /// Looks up in each way there is; all must agree.
    fn lookup(&self, addresses: &[Self::Address]) -> Vec<NextHopId>;

    fn routes(&self) -> usize;

    /// Whether nothing is left of any route.
    fn is_empty(&self) -> bool;

    fn was_full(&self) -> bool;
}

/// The longest route that contains the address.
fn scan<A: Bits>(routes: &BTreeMap<Prefix<A>, NextHopId>, address: A) -> NextHopId {
    let host = Prefix::new(address, A::LENGTH);
    let around = routes.iter().filter(|(prefix, _)| prefix.contains(host));
    around.max_by_key(|(prefix, _)| prefix.length).map_or(NextHopId::PUNT, |(_, id)| *id)
}

/// Applies rounds of changes. After each round, the ends of all prefixes so far, and the addresses `beside` them, must
/// lead to the same next hop as the linear search, or in a full table to the kernel.
pub(crate) fn follow<T: Table>(
    mut table: T,
    rounds: &[Vec<Change<T::Address>>],
    beside: impl Fn(T::Address) -> [T::Address; 2],
) -> Result<(), TestCaseError> {
    let mut routes = BTreeMap::new();
    let mut addresses: Vec<T::Address> = Vec::new();
    for changes in rounds {
        table.apply(changes);
        for (prefix, id) in changes {
            match id {
                Some(id) => routes.insert(*prefix, *id),
                None => routes.remove(prefix),
            };
            let ends = [prefix.bits, prefix.last().bits];
            addresses.extend(ends.into_iter().chain(ends.into_iter().flat_map(&beside)));
        }
        for (address, id) in addresses.iter().zip(table.lookup(&addresses)) {
            if id != NextHopId::PUNT || !table.was_full() {
                prop_assert_eq!(id, scan(&routes, *address), "{:x?} among {:x?}", address, routes);
            }
        }
        prop_assert_eq!(table.routes(), routes.len());
    }
    let all: Vec<Change<T::Address>> = routes.into_keys().map(|prefix| (prefix, None)).collect();
    table.apply(&all);
    prop_assert!(table.is_empty());
    Ok(())
}

/// Few different bytes, so that prefixes nest and touch.
pub(crate) fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![3 => select(vec![0u8, 1, 2, 127, 128, 254, 255]), 1 => any::<u8>()]
}

fn id() -> impl Strategy<Value = Option<NextHopId>> {
    prop_oneof![3 => (0u16..5).prop_map(|id| Some(NextHopId(id))), 1 => Just(None)]
}

/// Rounds of changes, many of them to existing routes.
pub(crate) fn rounds<A: Bits + 'static>(
    prefix: impl Strategy<Value = Prefix<A>>,
) -> impl Strategy<Value = Vec<Vec<Change<A>>>> {
    vec(prefix, 1..40).prop_flat_map(|prefixes| vec(vec((select(prefixes), id()), 1..30), 1..8))
}
