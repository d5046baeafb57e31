// SPDX-License-Identifier: Apache-2.0
//! Threads learn, look up, age and flush the same few addresses.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32 as Plain, Ordering};

use super::*;

const ADDRESSES: u64 = 12;
const ROUNDS: u32 = 200_000;

fn mac(number: u64) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, number as u8])
}

/// The two ports that an address alternates between.
fn ports(number: u64) -> [u16; 2] {
    [number as u16 % 5, number as u16 % 5 + 1]
}

fn run(fdb: &Fdb) {
    let clock = Plain::new(0);
    let random = |state: &mut u64| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 33
    };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let clock = &clock;
            scope.spawn(move || {
                let mut state = thread;
                for round in 0..ROUNDS {
                    let number = random(&mut state) % ADDRESSES;
                    let now = clock.load(Ordering::Relaxed);
                    if let Some(port) = fdb.lookup(0, mac(number), now) {
                        assert!(
                            ports(number).contains(&port),
                            "address {number} was never behind port {port}"
                        );
                    }
                    fdb.learn(0, mac(number), ports(number)[random(&mut state) as usize % 2], now);
                    if thread == 0 && round % 16 == 0 {
                        clock.fetch_add(1, Ordering::Relaxed);
                        fdb.age(now, 1);
                    }
                    if thread == 1 && round % 64 == 0 {
                        fdb.flush_port(random(&mut state) as u16 % 6);
                    }
                }
            });
        }
    });
    let now = clock.into_inner();
    fdb.age(now, usize::MAX);
    let entries: Vec<_> = fdb.entries(now).filter(|entry| entry.idle.is_some()).collect();
    let addresses: HashSet<_> = entries.iter().map(|entry| entry.mac).collect();
    assert_eq!(addresses.len(), entries.len(), "duplicate address: {entries:?}");
    for port in 0..6 {
        let count = entries.iter().filter(|entry| entry.port == port).count();
        assert_eq!(fdb.count(port), count as u32, "of port {port}: {entries:?}");
    }
    assert_eq!(fdb.len(), entries.len() as u32);
}

fn options() -> FdbOptions {
    let most = u32::MAX;
    let options = FdbOptions {
        max_age: 70,
        limit: most,
        new_per_second: most,
        moves_per_second: most,
        ..FdbOptions::with_capacity(1000)
    };
    assert!(Fdb::new(options).is_ok());
    options
}

#[test]
fn threads_agree_on_a_table_with_room() {
    run(&Fdb::with_mixer(options(), Mixer::new(random_key(), 3, 50)));
}

#[test]
fn threads_agree_on_a_full_table() {
    // Sixteen slots for twelve addresses and six static entries in their way.
    let fdb = Fdb::with_mixer(options(), Mixer::new(random_key(), 1, 48));
    for n in 0..6 {
        fdb.add_static(0, MacAddr([6, 0, 0, 0, 0, n]), 200).unwrap();
    }
    run(&fdb);
}
