// SPDX-License-Identifier: Apache-2.0
//! Blocks of ports, against what the connections themselves say.

use std::collections::{BTreeMap, BTreeSet};

use netvm_conntrack::{Allocation, BlockEvent, Config, Connections, Pool, Refusal, Translation, Zone};
use netvm_wire::Address;
use proptest::prelude::*;

use super::{OTHER_INSIDE, OUTSIDE, REMOTE, address, pool, source_of, udp_frame};
use crate::rig::Rig;

pub fn rig_with_blocks(blocks: u32) -> Rig {
    let mapping_key = Some(1);
    let config =
        Config { sessions: 4096, mappings: 4096, blocks, block_events: 64, mapping_key, ..Config::default() };
    Rig::new(&config)
}

pub fn in_blocks(pool: Pool, size: u16, most: u16) -> Pool {
    Pool { allocation: Allocation::Blocks { size, most }, ..pool }
}

fn sources(sources: &[Pool]) -> Translation<'_> {
    Translation { sources, destination: None }
}

/// First ports of blocks by holder, address outside and size.
type Held = BTreeMap<(Address, Address, u16), BTreeSet<u16>>;

/// What events say.
#[derive(Default)]
struct Replay(BTreeMap<(Address, u16, u16), Address>);

impl Replay {
    fn take(&mut self, table: &mut Connections) {
        while let Some(BlockEvent { is_assigned, inside, outside, ports, .. }) = table.take_block_event() {
            let place = (outside, ports.first(), ports.last());
            if is_assigned {
                let is_free = |(address, first, last): &(Address, u16, u16)| {
                    *address != outside || *last < ports.first() || ports.last() < *first
                };
                assert!(self.0.keys().all(is_free), "no port has two holders: {place:?}");
                self.0.insert(place, inside);
            } else {
                assert_eq!(self.0.remove(&place), Some(inside));
            }
        }
        assert_eq!(table.block_events_lost(), 0);
    }

    fn held(&self) -> Held {
        let mut held = Held::new();
        for ((outside, first, last), inside) in &self.0 {
            held.entry((*inside, *outside, last - first + 1)).or_default().insert(*first);
        }
        held
    }
}

/// The ends outside by address inside.
fn ends(table: &Connections, now: u32) -> BTreeMap<Address, BTreeSet<(Address, u16)>> {
    let mut ends = BTreeMap::new();
    for (_, connection) in table.page(0, table.capacity(), now) {
        let reply = connection.reply();
        let of: &mut BTreeSet<_> = ends.entry(connection.original().source).or_default();
        of.insert((reply.destination, reply.destination_port));
    }
    ends
}

proptest! {
    #[test]
    fn blocks_have_one_holder_and_are_as_many_as_needed(
        steps in prop::collection::vec((1u8..6, 1u16..40, 1u8..3, 0u32..8), 1..200),
        addresses in 1u8..3, most in 1u16..4,
    ) {
        let mut rig = rig_with_blocks(64);
        let mut replay = Replay::default();
        // 20 to 55: the blocks from 24 to 48 are whole.
        let pools = [in_blocks(pool(OUTSIDE, &format!("203.0.113.{addresses}"), [20, 55]), 8, most)];
        for (host, port, remote, seconds) in steps {
            rig.wait(seconds);
            while rig.table.expire(rig.now, 4096) > 0 {}
            replay.take(&mut rig.table);
            let (from, to) = (format!("10.0.0.{host}"), format!("198.51.100.{remote}"));
            let (inside, before) = (address(&from), ends(&rig.table, rig.now));
            let held = replay.held();
            let frame = udp_frame(&from, &to, [port, 53]);
            let is_known = rig.look(&frame).connection.is_some();
            let out = rig.through(&frame, sources(&pools));
            replay.take(&mut rig.table);
            let after = ends(&rig.table, rig.now);
            let own: Vec<_> = held.iter().filter(|((holder, ..), _)| *holder == inside).collect();
            match out {
                Some(out) => {
                    let (outside, port) = source_of(&out);
                    prop_assert!(after[&inside].contains(&(outside, port)));
                    let blocks = replay.held();
                    let blocks = &blocks[&(inside, outside, 8)];
                    prop_assert!(blocks.contains(&(port & !7)) && blocks.len() <= usize::from(most));
                }
                None => {
                    prop_assert!(!is_known);
                    let used = before.get(&inside).map_or(0, BTreeSet::len);
                    let blocks: usize = own.iter().map(|(_, blocks)| blocks.len()).sum();
                    prop_assert_eq!(used, blocks * 8, "it has no free port");
                    let address = own.first().map(|((_, outside, _), _)| *outside);
                    let is_at = |outside: &Address| address.is_none_or(|address| address == *outside);
                    let taken = held.iter().filter(|((_, outside, _), _)| is_at(outside));
                    let taken: usize = taken.map(|(_, blocks)| blocks.len()).sum();
                    let all = if address.is_some() { 4 } else { 4 * usize::from(addresses) };
                    prop_assert!(blocks == usize::from(most) || taken == all, "there is no block for it");
                }
            }
            // Each has blocks at one address, all of which are in use.
            let blocks = replay.held();
            let holders: BTreeSet<_> = blocks.keys().map(|(holder, ..)| *holder).collect();
            prop_assert_eq!(holders.len(), blocks.len());
            let of = |inside: Address| move |(outside, port): &(Address, u16)| (inside, *outside, port & !7);
            let in_use: BTreeSet<_> =
                after.iter().flat_map(|(inside, ends)| ends.iter().map(of(*inside))).collect();
            let assigned = blocks.iter().flat_map(|((holder, outside, _), firsts)| {
                firsts.iter().map(|first| (*holder, *outside, *first))
            });
            prop_assert_eq!(in_use, assigned.collect());
        }
    }

    /// As when a reload changes sizes while blocks of the old ones live.
    #[test]
    fn blocks_of_different_sizes_do_not_overlap(
        steps in prop::collection::vec((1u8..9, 1u16..40, 0usize..6, 0u32..8), 1..200),
    ) {
        let mut rig = rig_with_blocks(64);
        let mut replay = Replay::default();
        for (host, port, size, seconds) in steps {
            rig.wait(seconds);
            while rig.table.expire(rig.now, 4096) > 0 {}
            let size = [1, 2, 4, 8, 16, 32][size];
            let pools = [in_blocks(pool(OUTSIDE, OUTSIDE, [64, 127]), size, 4)];
            rig.through(&udp_frame(&format!("10.0.0.{host}"), REMOTE, [port, 53]), sources(&pools));
            replay.take(&mut rig.table);
        }
        rig.wait(1000);
        while rig.table.expire(rig.now, 4096) > 0 {}
        replay.take(&mut rig.table);
        prop_assert!(replay.held().is_empty() && rig.table.is_empty());
    }
}

#[test]
fn an_address_that_exhausts_its_blocks_leaves_others_theirs() {
    let mut rig = rig_with_blocks(64);
    let pools = [in_blocks(pool(OUTSIDE, OUTSIDE, [1024, 2047]), 64, 2)];
    let frame = |from: &str, port| udp_frame(from, REMOTE, [port, 53]);
    rig.begin(&frame(OTHER_INSIDE, 1), sources(&pools)).unwrap();
    for port in 1..=500 {
        let expected = if port <= 128 { Ok(()) } else { Err(Refusal::NoPort) };
        assert_eq!(rig.begin(&frame("10.0.0.2", port), sources(&pools)), expected, "{port}");
    }
    for port in 2..=128 {
        assert_eq!(rig.begin(&frame(OTHER_INSIDE, port), sources(&pools)), Ok(()));
    }
    for host in 20..32 {
        assert_eq!(rig.begin(&frame(&format!("10.0.0.{host}"), 1), sources(&pools)), Ok(()));
    }
    assert_eq!(
        rig.begin(&frame("10.0.0.40", 1), sources(&pools)),
        Err(Refusal::NoPort),
        "16 blocks are assigned"
    );
    assert_eq!(rig.table.len(), 2 * 128 + 12);
    // Those of one protocol are as many.
    let echo = crate::rig::between("10.0.0.2", REMOTE).echo(false, 7, 1).to_vec().unwrap();
    assert_eq!(rig.begin(&echo, sources(&pools)), Ok(()));
}

#[test]
fn the_table_of_blocks_is_bounded_and_lost_events_are_counted() {
    let config = Config { mappings: 64, blocks: 2, block_events: 1, ..Config::default() };
    let mut rig = Rig::new(&config);
    let pools = [in_blocks(pool(OUTSIDE, OUTSIDE, [1024, 2047]), 64, 2)];
    let begun: Vec<_> = (1..=3)
        .map(|host| rig.begin(&udp_frame(&format!("10.0.0.{host}"), REMOTE, [1, 53]), sources(&pools)))
        .collect();
    assert_eq!(begun, [Ok(()), Ok(()), Err(Refusal::NoPort)]);
    let event = rig.table.take_block_event().unwrap();
    assert!(event.is_assigned && event.inside == address("10.0.0.1") && event.zone == Zone(0));
    assert_eq!((rig.table.take_block_event(), rig.table.block_events_lost()), (None, 1));
}

#[test]
fn zones_have_blocks_of_their_own() {
    let mut rig = rig_with_blocks(64);
    let pools = [in_blocks(pool(OUTSIDE, OUTSIDE, [64, 127]), 64, 1)];
    for zone in 0..3 {
        rig.zone = Zone(zone);
        rig.begin(&udp_frame(OTHER_INSIDE, REMOTE, [100, 53]), sources(&pools)).unwrap();
        assert_eq!(rig.table.take_block_event().unwrap().zone, Zone(zone));
    }
    let other = udp_frame("10.0.0.2", REMOTE, [100, 53]);
    assert_eq!(rig.begin(&other, sources(&pools)), Err(Refusal::NoPort));
}

#[test]
fn a_connection_that_moves_keeps_its_block() {
    let (mut old, mut new) = (rig_with_blocks(4), rig_with_blocks(4));
    let pools = [in_blocks(pool(OUTSIDE, OUTSIDE, [64, 127]), 16, 1)];
    old.begin(&udp_frame(OTHER_INSIDE, REMOTE, [100, 53]), sources(&pools)).unwrap();
    let assigned = old.table.take_block_event().unwrap();
    let (id, _) = old.table.page(0, 4096, 0).next().unwrap();
    let moved = old.table.take(id).unwrap();
    assert_eq!(old.table.take_block_event(), Some(BlockEvent { is_assigned: false, ..assigned }));
    assert!(new.table.adopt(&moved));
    assert_eq!(new.table.take_block_event(), Some(assigned));
    // All further ports are of it.
    for port in 1..=16 {
        let expected = if port < 16 { Ok(()) } else { Err(Refusal::NoPort) };
        assert_eq!(new.begin(&udp_frame(OTHER_INSIDE, REMOTE, [port, 53]), sources(&pools)), expected);
    }
}
