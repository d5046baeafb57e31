// SPDX-License-Identifier: Apache-2.0
//! loom models: every interleaving of a few threads on a table of two buckets of two entries.

use loom::sync::Arc;
use loom::thread;
use netvm_wire::MacAddr;

use super::{Fdb, FdbOptions, Learned, Mixer};

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

fn table() -> Arc<Fdb> {
    let most = u32::MAX;
    let options = FdbOptions {
        capacity: 4,
        max_age: 100,
        limit: most,
        new_per_second: most,
        moves_per_second: most,
        hold: 10,
    };
    Arc::new(Fdb::with_mixer(options, Mixer::new([1, 2, 3, 4], 1, 48)))
}

fn check(body: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(body);
}

fn one_entry(fdb: &Fdb, ports: &[u16]) {
    let entries: Vec<_> = fdb.entries(0).collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
    assert!(ports.contains(&entries[0].port));
    assert_eq!((fdb.len(), fdb.count(entries[0].port)), (1, 1));
}

/// Two workers learn a new address behind different ports while another flushes an entry, so each sees a different
/// empty slot: one entry stays, and the counts are right.
#[test]
fn one_entry_survives_two_concurrent_learns() {
    check(|| {
        let fdb = table();
        let bucket = |mac| fdb.mixer.hash(0, mac).bucket;
        let in_the_way = (2..).map(|n| MacAddr([2, 0, 0, 0, 0, n])).find(|mac| bucket(*mac) == bucket(MAC));
        fdb.learn(0, in_the_way.unwrap(), 3, 0);
        let other = {
            let fdb = fdb.clone();
            thread::spawn(move || fdb.learn(0, MAC, 1, 0))
        };
        fdb.flush_port(3);
        let here = fdb.learn(0, MAC, 2, 0);
        let there = other.join().unwrap();
        assert!(here == Learned::New || there == Learned::New, "{here:?} {there:?}");
        one_entry(&fdb, &[1, 2]);
    });
}

/// A lookup during a move returns the old port or the new one.
#[test]
fn a_moving_address_is_at_its_old_or_new_port() {
    check(|| {
        let fdb = table();
        fdb.learn(0, MAC, 1, 0);
        let other = {
            let fdb = fdb.clone();
            thread::spawn(move || fdb.learn(0, MAC, 2, 0))
        };
        let before = fdb.port_generation(1);
        let found = fdb.lookup(0, MAC, 0);
        assert!(found == Some(1) || found == Some(2), "{found:?}");
        assert_eq!(other.join().unwrap(), Learned::Moved { from: 1 });
        // A changed generation invalidates a cached lookup of the old port.
        assert!(found == Some(2) || fdb.port_generation(1) != before);
        one_entry(&fdb, &[2]);
    });
}

/// A flush races a move of the same address.
#[test]
fn counts_are_right_after_a_flush_races_a_move() {
    check(|| {
        let fdb = table();
        fdb.learn(0, MAC, 1, 0);
        let other = {
            let fdb = fdb.clone();
            thread::spawn(move || fdb.flush_port(1))
        };
        let here = fdb.learn(0, MAC, 2, 0);
        let flushed = other.join().unwrap();
        assert!(
            matches!((here, flushed), (Learned::New, 1) | (Learned::Moved { from: 1 }, 0)),
            "{here:?} {flushed}"
        );
        assert_eq!((fdb.count(1), fdb.port_generation(1)), (0, 1));
        one_entry(&fdb, &[2]);
    });
}
