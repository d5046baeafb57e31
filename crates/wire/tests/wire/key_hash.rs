// SPDX-License-Identifier: Apache-2.0
//! Distribution of [`FlowHasher::key`]: similar keys spread like random numbers.

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

/// A typical numbering of many flows.
type Sequence = (&'static str, fn(u32) -> FlowKey);

const SEQUENCES: [Sequence; 8] = [
    ("source addresses", |n| FlowKey { source: Address::from_v4_bits(0x0a00_0000 + n), ..base() }),
    ("every 256th address", |n| FlowKey { source: Address::from_v4_bits(n << 8), ..base() }),
    ("source ports", |n| FlowKey { source_port: n as u16, ..base() }),
    ("destination ports", |n| FlowKey { destination_port: n as u16, ..base() }),
    ("equal addresses", |n| FlowKey {
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
fn sequences_collide_like_random_numbers() {
    // With as many buckets as keys, half as many pairs collide by chance, ± 0.6 %.
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
                    "{name}, bits from {shift}: {pairs} pairs collide, {expected} expected"
                );
            }
        }
    }
}

#[test]
fn half_a_million_keys_do_not_collide_in_64_bits() {
    let hasher = FlowHasher::new();
    let keys: HashSet<FlowKey> = SEQUENCES.iter().flat_map(|(_, nth)| (0..KEYS).map(nth)).collect();
    let hashes: HashSet<u64> = keys.iter().map(|key| hasher.key(key)).collect();
    assert_eq!(hashes.len(), keys.len());
}

#[test]
fn every_key_bit_flips_every_hash_bit_half_of_the_time() {
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
    // Bits that no key sets: after the last field, VLANs above 4094, fragment values above 2.
    let unused = |bit: usize| matches!(bit, 496.. | 380..384 | 428..432 | 474..480);
    for (bit, changed) in changed.iter().enumerate().filter(|(bit, _)| !unused(*bit)) {
        for (place, count) in changed.iter().enumerate() {
            // One half ± six standard deviations of 1.1 %.
            let share = f64::from(*count) / ROUNDS as f64;
            assert!(
                (0.43..0.57).contains(&share),
                "key bit {bit} flips hash bit {place} in {share} of cases"
            );
        }
    }
}
