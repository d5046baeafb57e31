// SPDX-License-Identifier: Apache-2.0
use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn mac(number: u64) -> MacAddr {
    let [_, _, _, a, b, c, d, e] = number.to_be_bytes();
    MacAddr([2, a, b, c, d, e])
}

fn fdb(options: FdbOptions) -> Fdb {
    Fdb::new(options).unwrap()
}

/// No limits but those that a test sets.
fn unlimited() -> FdbOptions {
    let most = u32::MAX;
    FdbOptions { limit: most, new_per_second: most, moves_per_second: most, ..FdbOptions::default() }
}

/// Two buckets of eight for VLAN 0, which fill up soon.
fn tiny(options: FdbOptions) -> Fdb {
    Fdb::with_mixer(options, Mixer::new(random_key(), 1, 48))
}

#[derive(Clone, Debug)]
enum Step {
    Learn(u16, u64, u16),
    Lookup(u16, u64),
    Wait(u32),
    Age,
    FlushPort(u16),
    FlushVlan(u16),
    RemovePort(u16),
    AddStatic(u16, u64, u16),
    RemoveStatic(u16, u64),
    Limit(u16, u32),
}

fn step() -> impl Strategy<Value = Step> {
    let (vlan, mac, port) = (0..2u16, 1..6u64, 0..4u16);
    prop_oneof![
        10 => (vlan.clone(), mac.clone(), port.clone()).prop_map(|(v, m, p)| Step::Learn(v, m, p)),
        10 => (vlan.clone(), mac.clone()).prop_map(|(v, m)| Step::Lookup(v, m)),
        6 => (0..10u32).prop_map(Step::Wait),
        2 => Just(Step::Age),
        1 => port.clone().prop_map(Step::FlushPort),
        1 => vlan.clone().prop_map(Step::FlushVlan),
        1 => port.clone().prop_map(Step::RemovePort),
        1 => (vlan.clone(), mac.clone(), port.clone()).prop_map(|(v, m, p)| Step::AddStatic(v, m, p)),
        1 => (vlan, mac).prop_map(|(v, m)| Step::RemoveStatic(v, m)),
        1 => (port, 0..6u32).prop_map(|(p, n)| Step::Limit(p, n)),
    ]
}

/// A tick is a unit of ageing, so that idle times are exact.
const MAX_AGE: u32 = 25;

/// The slow, obvious model. An entry is its port and when it was last seen, `None` if static.
#[derive(Default)]
struct Reference {
    entries: HashMap<(u16, u64), (u16, Option<u32>)>,
    moved: HashMap<(u16, u64), u32>,
    limits: HashMap<u16, u32>,
    port_generations: [u32; 4],
    now: u32,
}

impl Reference {
    fn count(&self, port: u16) -> u32 {
        self.entries.values().filter(|(of, seen)| *of == port && seen.is_some()).count() as u32
    }

    fn expired(&self, seen: Option<u32>) -> bool {
        seen.is_some_and(|seen| self.now - seen > MAX_AGE)
    }

    fn lookup(&self, key: (u16, u64)) -> Option<u16> {
        self.entries.get(&key).filter(|(_, seen)| !self.expired(*seen)).map(|(port, _)| *port)
    }

    /// Consults `outcome` where hashing decides: two addresses may share a hold-down slot, which forgets one of the
    /// moves.
    fn learn(&mut self, key: (u16, u64), port: u16, outcome: Learned) -> Learned {
        let full = self.limits.get(&port).is_some_and(|limit| self.count(port) >= *limit);
        let learned = match self.entries.get(&key) {
            Some((of, _)) if *of == port => Learned::Known,
            Some((of, None)) => Learned::Static { port: *of },
            _ if full => Learned::LimitReached,
            None => Learned::New,
            Some((of, seen)) => {
                let held = self.moved.get(&key).is_some_and(|moved| self.now - moved < TICKS_PER_SECOND);
                let moved = Learned::Moved { from: *of };
                match self.expired(*seen) {
                    true => Learned::New,
                    false if held && outcome != moved => Learned::HeldDown,
                    false => moved,
                }
            }
        };
        match learned {
            Learned::Known => {
                let entry = self.entries.get_mut(&key).unwrap();
                entry.1 = entry.1.map(|_| self.now);
            }
            Learned::New | Learned::Moved { .. } => {
                if let Learned::Moved { .. } = learned {
                    self.moved.insert(key, self.now);
                }
                if let Some((of, _)) = self.entries.insert(key, (port, Some(self.now))) {
                    self.port_generations[usize::from(of)] += 1;
                }
            }
            Learned::HeldDown => {
                // A claim makes the entry at least one tick old.
                let seen = &mut self.entries.get_mut(&key).unwrap().1;
                *seen = seen.map(|seen| seen.min(self.now - 1));
            }
            _ => {}
        }
        learned
    }

    fn remove(&mut self, gone: impl Fn(&Self, (u16, u64), (u16, Option<u32>)) -> bool) -> usize {
        let keys: Vec<_> = self
            .entries
            .iter()
            .filter(|(key, entry)| gone(self, **key, **entry))
            .map(|(key, _)| *key)
            .collect();
        for key in &keys {
            let (port, _) = self.entries.remove(key).unwrap();
            self.port_generations[usize::from(port)] += 1;
        }
        keys.len()
    }
}

fn agree(fdb: &Fdb, reference: &mut Reference, step: &Step) -> Result<(), TestCaseError> {
    match *step {
        Step::Learn(vlan, n, port) => {
            let learned = fdb.learn(vlan, mac(n), port, reference.now);
            prop_assert_eq!(learned, reference.learn((vlan, n), port, learned));
        }
        Step::Lookup(vlan, n) => {
            prop_assert_eq!(fdb.lookup(vlan, mac(n), reference.now), reference.lookup((vlan, n)));
        }
        Step::Wait(ticks) => reference.now += ticks,
        Step::Age => {
            let gone = reference.remove(|all, _, (_, seen)| all.expired(seen));
            prop_assert_eq!(fdb.age(reference.now, usize::MAX), gone);
        }
        Step::FlushPort(port) => {
            let gone = reference.remove(|_, _, (of, seen)| of == port && seen.is_some());
            prop_assert_eq!(fdb.flush_port(port), gone);
        }
        Step::FlushVlan(vlan) => {
            let gone = reference.remove(|_, (of, _), (_, seen)| of == vlan && seen.is_some());
            prop_assert_eq!(fdb.flush_vlan(vlan), gone);
        }
        Step::RemovePort(port) => {
            prop_assert_eq!(fdb.retain_ports(|of| of != port), reference.remove(|_, _, (of, _)| of == port));
        }
        Step::AddStatic(vlan, n, port) => {
            fdb.add_static(vlan, mac(n), port).unwrap();
            match reference.entries.insert((vlan, n), (port, None)) {
                Some((of, _)) if of != port => reference.port_generations[usize::from(of)] += 1,
                _ => {}
            }
        }
        Step::RemoveStatic(vlan, n) => {
            let gone = reference.remove(|_, key, (_, seen)| key == (vlan, n) && seen.is_none());
            prop_assert_eq!(fdb.remove_static(vlan, mac(n)), gone == 1);
        }
        Step::Limit(port, limit) => {
            fdb.set_limit(port, limit);
            reference.limits.insert(port, limit);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn behaves_like_a_map(steps in prop::collection::vec(step(), 1..120)) {
        let fdb = fdb(FdbOptions { max_age: MAX_AGE, ..unlimited() });
        let mut reference = Reference { now: 1, ..Reference::default() };
        let mut swept = 0;
        for step in &steps {
            agree(&fdb, &mut reference, step)?;
            // As the engine must, since the stamps of unswept entries wrap.
            if reference.now - swept > MAX_AGE / 2 {
                swept = reference.now;
                agree(&fdb, &mut reference, &Step::Age)?;
            }
            for port in 0..4 {
                prop_assert_eq!(fdb.count(port), reference.count(port));
                prop_assert_eq!(fdb.port_generation(port), reference.port_generations[usize::from(port)]);
            }
            prop_assert_eq!(fdb.generation(), reference.port_generations.iter().sum::<u32>());
            prop_assert_eq!(fdb.len(), (0..4).map(|port| reference.count(port)).sum::<u32>());
        }
        let mut entries: Vec<_> = fdb.entries(reference.now).collect();
        entries.sort();
        let expected: std::collections::BTreeSet<_> = reference.entries.iter()
            .filter(|(_, (_, seen))| !reference.expired(*seen))
            .map(|((vlan, n), (port, seen))| Binding {
                vlan: *vlan,
                mac: mac(*n),
                port: *port,
                idle: seen.map(|seen| reference.now - seen),
                is_external: false,
            })
            .collect();
        prop_assert_eq!(entries, expected.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn the_whole_capacity_can_be_used() {
    for capacity in [32_768, 100_000] {
        let fdb = fdb(FdbOptions { capacity, ..unlimited() });
        for n in 0..u64::from(capacity) {
            // Consecutive addresses in several VLANs, as they are assigned in practice.
            assert_eq!(fdb.learn((n % 3) as u16, mac(n / 3), (n % 1024) as u16, 0), Learned::New, "{n}");
        }
        assert_eq!(fdb.len(), capacity);
        assert_eq!(fdb.learn(9, mac(1), 1, 0), Learned::TableFull);
        for n in 0..u64::from(capacity) {
            assert_eq!(fdb.lookup((n % 3) as u16, mac(n / 3), 0), Some((n % 1024) as u16), "{n}");
            assert_eq!(fdb.learn((n % 3) as u16, mac(n / 3), (n % 1024) as u16, 0), Learned::Known, "{n}");
        }
        assert_eq!(fdb.entries(0).count(), capacity as usize);
        assert_eq!((fdb.generation(), fdb.learn(9, mac(1), 1, 0)), (0, Learned::TableFull));
    }
}

#[test]
fn a_flood_of_random_sources_evicts_no_other_ports_entries() {
    let fdb = fdb(FdbOptions { new_per_second: u32::MAX, ..FdbOptions::default() });
    let mut others = 0..1000;
    others.all(|n| fdb.learn(1, mac(n), 1, 0) == Learned::New);
    let mut outcomes = HashMap::new();
    for n in 0..1_000_000 {
        *outcomes.entry(fdb.learn(1, mac(0xffff_0000_0000 | n), 2, 1)).or_insert(0) += 1;
    }
    let limit = fdb.options().limit;
    assert_eq!(fdb.count(2), limit);
    let expected = [(Learned::New, limit), (Learned::LimitReached, 1_000_000 - limit)];
    assert_eq!(outcomes, HashMap::from(expected));
    assert!((0..1000).all(|n| fdb.lookup(1, mac(n), 1) == Some(1)));
    assert_eq!(fdb.port_generation(1), 0);
    // A third port still has room.
    assert_eq!(fdb.learn(1, mac(5000), 3, 1), Learned::New);
}

#[test]
fn full_buckets_evict_only_expired_and_own_entries() {
    let fdb = tiny(FdbOptions { max_age: MAX_AGE, capacity: 1000, ..unlimited() });
    assert!((0..8).all(|n| fdb.learn(0, mac(n), 1, 0) == Learned::New));
    assert!((8..16).all(|n| fdb.learn(0, mac(n), 2, n as u32) == Learned::New));
    assert_eq!(fdb.learn(0, mac(100), 3, 20), Learned::TableFull, "other ports own every entry");
    assert_eq!(fdb.count(3), 0);
    // The port's longest idle entry goes.
    assert_eq!(fdb.learn(0, mac(101), 2, 20), Learned::New);
    assert_eq!((fdb.lookup(0, mac(8), 20), fdb.lookup(0, mac(101), 20)), (None, Some(2)));
    assert_eq!((fdb.count(1), fdb.count(2), fdb.len()), (8, 8, 16));
    assert_eq!((fdb.generation(), fdb.port_generation(2)), (1, 1));
    // Entries seen at 0 have expired.
    assert_eq!(fdb.learn(0, mac(102), 3, MAX_AGE + 1), Learned::New);
    assert_eq!((fdb.count(1), fdb.count(3), fdb.port_generation(1)), (7, 1, 1));
    // A static entry evicts learned ones and is never evicted.
    fdb.add_static(0, mac(200), 4).unwrap();
    assert_eq!((fdb.lookup(0, mac(200), 0), fdb.len()), (Some(4), 15));
    for n in 201..216 {
        fdb.add_static(0, mac(n), 4).unwrap();
    }
    assert_eq!((fdb.len(), fdb.add_static(0, mac(216), 4)), (0, Err(StaticError::Full(mac(216)))));
    assert_eq!(fdb.learn(0, mac(8), 2, MAX_AGE), Learned::TableFull);
}

#[test]
fn new_addresses_and_moves_have_quotas() {
    let fdb = fdb(FdbOptions { new_per_second: 100, moves_per_second: 10, ..unlimited() });
    let learned = |addresses: std::ops::Range<u64>, port, now, what| {
        addresses.filter(|n| fdb.learn(0, mac(*n), port, now) == what).count()
    };
    assert_eq!(learned(0..300, 1, 0, Learned::New), 100);
    assert_eq!(learned(0..300, 1, 9, Learned::OverQuota), 200);
    assert_eq!(learned(0..100, 1, 9, Learned::Known), 100, "known addresses cost no quota");
    assert_eq!(learned(1000..1300, 2, 9, Learned::New), 100, "each port has its own quota");
    fdb.set_quota(1, 20);
    assert_eq!(learned(100..300, 1, 10, Learned::New), 20);
    assert_eq!(learned(0..100, 2, 10, Learned::Moved { from: 1 }), 10);
    assert_eq!(learned(0..100, 2, 19, Learned::HeldDown), 90);
    assert_eq!((fdb.count(1), fdb.count(2)), (110, 110));
}

#[test]
fn a_flapping_address_moves_once_a_second() {
    let fdb = fdb(unlimited());
    assert_eq!(fdb.learn(5, mac(1), 1, 0), Learned::New);
    let before = fdb.generation();
    let mut moved = 0;
    for now in 0..100 {
        for port in [1, 2] {
            match fdb.learn(5, mac(1), port, now) {
                Learned::Moved { .. } => moved += 1,
                Learned::Known | Learned::HeldDown => {}
                other => panic!("{other:?}"),
            }
        }
    }
    assert!((9..=10).contains(&moved), "{moved} moves in 10 s");
    assert_eq!(fdb.generation() - before, moved);
    assert_eq!(fdb.port_generation(1) + fdb.port_generation(2), moved);
}

#[test]
fn the_last_claim_wins_after_the_hold() {
    let fdb = fdb(unlimited());
    let [first, second] = [mac(1), mac(2)];
    let learn = |mac, port, now| fdb.learn(7, mac, port, now);
    for mac in [first, second] {
        assert_eq!((learn(mac, 1, 0), learn(mac, 2, 1)), (Learned::New, Learned::Moved { from: 1 }));
        // One gratuitous ARP back at port 1, while the address is held at port 2.
        assert_eq!((learn(mac, 1, 2), fdb.lookup(7, mac, 3)), (Learned::HeldDown, Some(2)));
    }
    assert_eq!(learn(second, 2, 4), Learned::Known, "a frame from its port withdraws the claim");
    assert_eq!(fdb.settle_claims(TICKS_PER_SECOND + 2), 0, "a claim waits for one hold time");
    assert_eq!(fdb.settle_claims(2 * TICKS_PER_SECOND + 2), 1);
    let now = 2 * TICKS_PER_SECOND + 3;
    assert_eq!((fdb.lookup(7, first, now), fdb.lookup(7, second, now)), (Some(1), Some(2)));
    assert_eq!((fdb.moves(1), fdb.moves(2)), (Moves { moved: 1, held: 2 }, Moves { moved: 2, held: 0 }));
    let back = LastMove { vlan: 7, mac: first, other: 2 };
    assert_eq!((fdb.last_move(1), fdb.last_move(3)), (Some(back), None));
    assert_eq!(
        [0, 1].map(|n| fdb.settle_claims(now + n * TICKS_PER_SECOND)),
        [0, 0],
        "claims are settled once"
    );
}

#[test]
fn a_claim_ends_when_its_address_moves_or_is_learned_anew() {
    let fdb = fdb(unlimited());
    for (n, then) in [(1, 3), (2, 2)] {
        assert_eq!(
            (fdb.learn(0, mac(n), 1, 0), fdb.learn(0, mac(n), 2, 1)),
            (Learned::New, Learned::Moved { from: 1 })
        );
        assert_eq!(fdb.learn(0, mac(n), 1, 2), Learned::HeldDown);
        assert!(then == 3 || fdb.flush_port(2) == 1);
        fdb.learn(0, mac(n), then, 15);
        assert_eq!([16, 26, 36].map(|now| fdb.settle_claims(now)), [0; 3]);
        assert_eq!(fdb.lookup(0, mac(n), 37), Some(then));
    }
    let never = Fdb::new(FdbOptions { hold: 0, ..unlimited() }).unwrap();
    never.learn(0, mac(1), 1, 0);
    let moves = [2, 1, 2].map(|port| never.learn(0, mac(1), port, 0));
    assert_eq!(moves, [1, 2, 1].map(|from| Learned::Moved { from }), "without a hold time");
}

#[test]
fn invalid_sources_are_refused() {
    let fdb = fdb(unlimited());
    for source in [MacAddr::ZERO, MacAddr::BROADCAST, MacAddr([1, 0, 0x5e, 0, 0, 1])] {
        assert_eq!(fdb.learn(0, source, 1, 0), Learned::Refused);
        assert_eq!(fdb.lookup(0, source, 0), None);
        assert_eq!(fdb.add_static(0, source, 1), Err(StaticError::NotUnicast(source)));
    }
    assert_eq!(fdb.learn(0, mac(1), 1024, 0), Learned::Refused);
    fdb.learn(0, mac(1), 0, 0);
    assert_eq!(fdb.learn(0, mac(1), 1024, 0), Learned::Refused, "a port whose low bits are a valid port");
    assert_eq!(fdb.add_static(0, mac(1), 1024), Err(StaticError::Port(1024)));
    assert_eq!((fdb.count(1024), fdb.port_generation(1024)), (0, 0));
    let options = FdbOptions { capacity: 4, ..unlimited() };
    let small = Fdb::new(options).unwrap();
    assert_eq!([1, 2].map(|n| small.add_static(0, mac(n), 1)), [Ok(()); 2]);
    assert_eq!(small.add_static(0, mac(1), 2), Ok(()), "an existing entry can be changed");
    assert_eq!(small.add_static(0, mac(3), 1), Err(StaticError::TooMany(2)));
    assert!(small.remove_static(0, mac(1)) && !small.remove_static(0, mac(1)));
    assert_eq!(small.add_static(0, mac(3), 1), Ok(()));
    let error = |options| Fdb::new(options).unwrap_err();
    assert_eq!(error(FdbOptions { capacity: 0, ..unlimited() }), FdbError::Capacity(0));
    let beyond = FdbOptions::MAX_CAPACITY + 1;
    assert_eq!(error(FdbOptions { capacity: beyond, ..unlimited() }), FdbError::Capacity(beyond));
    assert_eq!(error(FdbOptions { max_age: 0, ..unlimited() }), FdbError::ZeroAge);
}

#[test]
fn a_sweep_resumes_where_the_last_one_ended() {
    let fdb = fdb(unlimited());
    assert!((0..5000).all(|n| fdb.learn(0, mac(n), 1, 0) == Learned::New));
    let later = 2 * fdb.options().max_age;
    let slices = [(); 4].map(|()| fdb.age(later, fdb.buckets() / 4));
    assert!(slices.iter().all(|slice| (1000..1500).contains(slice)), "{slices:?}");
    assert_eq!((slices.iter().sum::<usize>(), fdb.len(), fdb.generation()), (5000, 0, 5000));
}
