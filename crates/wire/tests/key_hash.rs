//! What tables may expect of [`FlowHasher::key`]: keys that differ a little spread as numbers drawn at random do.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::HashSet;

use netvm_wire::{Address, EtherType, FlowHasher, FlowKey, IpProto, MacAddr, TcpFlags};

const KEYS: u32 = 1 << 16;

fn base() -> FlowKey {
    FlowKey {
        source: Address::from_v4_bits(0x0a00_0001),
        destination: Address::from_v4_bits(0xc000_0201),
        source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        ether_type: EtherType::IPV4,
        source_port: 1024,
        destination_port: 80,
        protocol: IpProto::TCP,
        tcp_flags: TcpFlags::ACK,
        ..FlowKey::EMPTY
    }
}

/// How flows are numbered by those who have many.
type Sequence = (&'static str, fn(u32) -> FlowKey);

const SEQUENCES: [Sequence; 8] = [
    ("source addresses", |n| FlowKey { source: Address::from_v4_bits(0x0a00_0000 + n), ..base() }),
    ("every 256th address", |n| FlowKey { source: Address::from_v4_bits(n << 8), ..base() }),
    ("source ports", |n| FlowKey { source_port: n as u16, ..base() }),
    ("destination ports", |n| FlowKey { destination_port: n as u16, ..base() }),
    ("both addresses alike", |n| FlowKey {
        source: Address::from_v4_bits(n),
        destination: Address::from_v4_bits(n),
        ..base()
    }),
    ("addresses and ports", |n| FlowKey {
        source: Address::from_v4_bits(0x0a00_0000 + n / 256),
        source_port: 1024 + (n % 256) as u16,
        ..base()
    }),
    ("IPv6 networks", |n| FlowKey {
        source: Address::from_v6_bits(0x2001_0db8 << 96 | u128::from(n) << 64 | 1),
        ether_type: EtherType::IPV6,
        ..base()
    }),
    ("source MAC addresses", |n| {
        let [a, b, c, d] = n.to_be_bytes();
        FlowKey { source_mac: MacAddr([2, 0, a, b, c, d]), ..base() }
    }),
];

#[test]
fn sequences_meet_no_more_than_random_numbers() {
    // As many buckets as keys: half as many pairs meet by chance, give or take 0.6 % of them.
    let expected = f64::from(KEYS) / 2.0;
    for key in 0..4 {
        let hasher = FlowHasher::with_key(key);
        for (name, nth) in SEQUENCES {
            for shift in [0, 16, 32, 48] {
                let mut buckets = vec![0u32; KEYS as usize];
                for n in 0..KEYS {
                    buckets[usize::from((hasher.key(&nth(n)) >> shift) as u16)] += 1;
                }
                let pairs: f64 =
                    buckets.iter().map(|count| f64::from(count * count.saturating_sub(1)) / 2.0).sum();
                assert!(
                    (0.9..1.1).contains(&(pairs / expected)),
                    "{name}, bits from {shift}: {pairs} pairs meet, {expected} expected"
                );
            }
        }
    }
}

#[test]
fn no_two_of_half_a_million_meet_in_64_bits() {
    let hasher = FlowHasher::new();
    let keys: HashSet<FlowKey> = SEQUENCES.iter().flat_map(|(_, nth)| (0..KEYS).map(nth)).collect();
    let hashes: HashSet<u64> = keys.iter().map(|key| hasher.key(key)).collect();
    assert_eq!(hashes.len(), keys.len());
}

#[test]
fn every_bit_of_a_key_changes_every_bit_of_the_hash_half_of_the_times() {
    const ROUNDS: u64 = 2000;
    let mut changed = vec![[0u32; 64]; 512];
    for round in 0..ROUNDS {
        let hasher = FlowHasher::with_key(round);
        let key = SEQUENCES[(round % 8) as usize].1(round as u32 * 31 % KEYS);
        let hash = hasher.key(&key);
        for (bit, changed) in changed.iter_mut().enumerate() {
            let mut words = key.words();
            words[bit / 64] ^= 1 << (bit % 64);
            let difference = hasher.key(&FlowKey::from(words)) ^ hash;
            for (place, count) in changed.iter_mut().enumerate() {
                *count += (difference >> place & 1) as u32;
            }
        }
    }
    // Bits that no key has: behind the fields, of a VLAN above 4094, of a fragment's number above 2.
    let unused = |bit: usize| matches!(bit, 496.. | 380..384 | 428..432 | 474..480);
    for (bit, changed) in changed.iter().enumerate().filter(|(bit, _)| !unused(*bit)) {
        for (place, count) in changed.iter().enumerate() {
            // Half, and six deviations of 1.1 % either way.
            let share = f64::from(*count) / ROUNDS as f64;
            assert!((0.43..0.57).contains(&share), "bit {bit} changes bit {place} in {share} of cases");
        }
    }
}
