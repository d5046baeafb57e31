//! loom models: every interleaving of a few threads at a table of two buckets of two.

use loom::sync::Arc;
use loom::thread;
use netvm_wire::MacAddr;

use super::{Fdb, FdbOptions, Learned, Mixer};

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

fn table() -> Arc<Fdb> {
    let most = u32::MAX;
    let options =
        FdbOptions { capacity: 4, max_age: 100, limit: most, new_per_second: most, moves_per_second: most };
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

/// Two workers see a new address at the same time, behind different ports, and see different places empty, as another is
/// flushed meanwhile: one entry stays, and the counts are right.
#[test]
fn one_of_two_that_learn_the_same_address_stays() {
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

/// A look-up while the address moves finds it behind the one or the other.
#[test]
fn an_address_that_moves_is_never_elsewhere_or_lost() {
    check(|| {
        let fdb = table();
        fdb.learn(0, MAC, 1, 0);
        let other = {
            let fdb = fdb.clone();
            thread::spawn(move || fdb.learn(0, MAC, 2, 0))
        };
        let before = fdb.moves_from(1);
        let found = fdb.lookup(0, MAC, 0);
        assert!(found == Some(1) || found == Some(2), "{found:?}");
        assert_eq!(other.join().unwrap(), Learned::Moved { from: 1 });
        // What was resolved to the old port is known to be so no longer.
        assert!(found == Some(2) || fdb.moves_from(1) != before);
        one_entry(&fdb, &[2]);
    });
}

/// The address is flushed while it moves.
#[test]
fn a_flush_and_a_move_leave_the_counts_right() {
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
        assert_eq!((fdb.count(1), fdb.moves_from(1)), (0, 1));
        one_entry(&fdb, &[2]);
    });
}
