// SPDX-License-Identifier: Apache-2.0
//! Flow hashes with a random key.
//!
//! Senders choose addresses and ports. If they knew the hash, they could steer all of their flows into one bucket of a
//! table or to one replica. So every hash uses a key from the operating system's random numbers. The hashes are fast,
//! not cryptographic: they resist an attacker who does not see hash values. Never send a hash anywhere or log the key.
//!
//! - A [`FiveTuple`] is hashed by rapidhash, whose seed and secret multipliers come from the key.
//! - A [`FlowKey`], always eight words, is hashed by NH of UMAC (RFC 4418 section 5.2; Black and others, CRYPTO 1999,
//!   section 4) over 64-bit words: the sum of four products of two keyed words each. Any two keys collide in its 128
//!   bits with a probability of at most 2^-64. One more keyed product spreads the sum over all 64 bits.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

use rapidhash::v3::{RapidSecrets, rapidhash_v3_nano_inline};

use super::{FiveTuple, FlowKey};

/// Hashes flows with a random key.
///
/// All bits of a hash are good: take as many as needed from either end.
#[derive(Clone)]
pub struct FlowHasher {
    secrets: RapidSecrets,
    /// Added to the words of a flow key.
    addends: [u64; 8],
    /// Mixed into the sum of their products.
    finish: [u64; 2],
}

impl FlowHasher {
    /// A hasher with a random key of its own.
    #[must_use]
    pub fn new() -> Self {
        Self::with_key(RandomState::new().hash_one(0))
    }

    /// A hasher with a given key: for tests, and for processes that share a random key.
    #[must_use]
    pub const fn with_key(key: u64) -> Self {
        let (mut addends, mut finish) = ([0; 8], [0; 2]);
        let mut number = 0;
        while number < 8 {
            addends[number] = nth_random(key, number as u64);
            number += 1;
        }
        finish[0] = nth_random(key, 8);
        finish[1] = nth_random(key, 9);
        Self { secrets: RapidSecrets::seed(key), addends, finish }
    }

    /// The hasher of this process. Its key is drawn at the first use.
    #[inline]
    #[must_use]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<FlowHasher> = OnceLock::new();
        SHARED.get_or_init(Self::new)
    }

    /// Hashes one direction of a flow.
    #[inline]
    #[must_use]
    pub fn plain(&self, tuple: &FiveTuple) -> u64 {
        self.hash_words::<5, 40>(tuple.words())
    }

    /// Hashes a flow, with the same result for both directions.
    #[inline]
    #[must_use]
    pub fn symmetric(&self, tuple: &FiveTuple) -> u64 {
        self.plain(&tuple.canonical())
    }

    /// Hashes all fields of a key.
    #[inline(always)]
    #[must_use]
    pub fn key(&self, key: &FlowKey) -> u64 {
        let words = key.words();
        let keyed = |n: usize| u128::from(words[n].wrapping_add(self.addends[n]));
        let product = |n: usize| keyed(2 * n) * keyed(2 * n + 1);
        let sum = product(0).wrapping_add(product(1)).wrapping_add(product(2)).wrapping_add(product(3));
        let [low, high] = [sum as u64, (sum >> 64) as u64];
        let mixed = u128::from(low ^ self.finish[0]) * u128::from(high ^ self.finish[1]);
        mixed as u64 ^ (mixed >> 64) as u64
    }

    /// Hashes five words, the size of a [`FiveTuple`]: for keys that hold other fields too.
    #[inline]
    #[must_use]
    pub fn words(&self, words: [u64; 5]) -> u64 {
        self.hash_words::<5, 40>(words)
    }

    #[inline]
    fn hash_words<const WORDS: usize, const BYTES: usize>(&self, words: [u64; WORDS]) -> u64 {
        const { assert!(BYTES == WORDS * 8) };
        let mut bytes = [0; BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        rapidhash_v3_nano_inline::<true, true>(&bytes, &self.secrets)
    }
}

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): item `place` of the random sequence of `seed`.
const fn nth_random(seed: u64, place: u64) -> u64 {
    let mut z = seed.wrapping_add((place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

impl Default for FlowHasher {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for FlowHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowHasher").finish_non_exhaustive()
    }
}

impl FiveTuple {
    /// The hash of this direction with the key of this process.
    #[inline]
    #[must_use]
    pub fn plain_hash(&self) -> u64 {
        FlowHasher::shared().plain(self)
    }

    /// The hash of both directions with the key of this process.
    #[inline]
    #[must_use]
    pub fn symmetric_hash(&self) -> u64 {
        FlowHasher::shared().symmetric(self)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::flow::Fragment;
    use crate::values::Address;
    use crate::values::{EtherType, MacAddr, VlanId};
    use crate::values::{IpProto, TcpFlags};

    fn flow(number: u32) -> FiveTuple {
        FiveTuple {
            source: Address::from_v4_bits(0x0a00_0000 | number >> 8),
            destination: Address::from_v4_bits(0xc000_0201),
            source_port: 1024 + (number & 0xff) as u16,
            destination_port: 80,
            protocol: IpProto::TCP,
        }
    }

    #[test]
    fn symmetric_hashes_agree_and_plain_hashes_differ_by_direction() {
        let hasher = FlowHasher::new();
        for tuple in (0..1000).map(flow) {
            assert_eq!(hasher.symmetric(&tuple), hasher.symmetric(&tuple.reversed()));
            assert_ne!(hasher.plain(&tuple), hasher.plain(&tuple.reversed()));
        }
    }

    #[test]
    fn collisions_under_one_key_spread_under_another() {
        let (first, second) = (FlowHasher::with_key(1), FlowHasher::with_key(2));
        let bucket = |hasher: &FlowHasher, tuple: &FiveTuple| hasher.symmetric(tuple) >> 54;
        let colliding: Vec<_> = (0..1 << 18).map(flow).filter(|tuple| bucket(&first, tuple) == 0).collect();
        assert!(colliding.len() > 128, "{} flows in one of 1024 buckets", colliding.len());
        let buckets: HashSet<_> = colliding.iter().map(|tuple| bucket(&second, tuple)).collect();
        assert!(
            buckets.len() * 10 > colliding.len() * 7,
            "{} flows in {} buckets",
            colliding.len(),
            buckets.len()
        );
    }

    #[test]
    fn neighbouring_flows_spread_by_both_ends_of_the_hash() {
        let hasher = FlowHasher::with_key(42);
        for bits in [|hash: u64| hash & 63, |hash: u64| hash >> 58] {
            let mut buckets = [0u32; 64];
            for tuple in (0..64_000).map(flow) {
                buckets[bits(hasher.plain(&tuple)) as usize] += 1;
            }
            // The standard deviation of a bucket of 1000 is about 31; allow six of them.
            assert!(buckets.iter().all(|count| (810..1190).contains(count)), "{buckets:?}");
        }
    }

    #[test]
    fn every_field_changes_the_hash() {
        let hasher = FlowHasher::with_key(7);
        let tuple = flow(1);
        let others = [
            FiveTuple { source: Address::from_v4_bits(1), ..tuple },
            FiveTuple { destination: Address::from_v4_bits(1), ..tuple },
            FiveTuple { source_port: 1, ..tuple },
            FiveTuple { destination_port: 1, ..tuple },
            FiveTuple { protocol: IpProto::UDP, ..tuple },
        ];
        for other in others {
            assert_ne!(hasher.plain(&other), hasher.plain(&tuple), "{other}");
        }
    }

    #[test]
    fn every_field_of_a_key_changes_the_hash() {
        let hasher = FlowHasher::with_key(7);
        let vlan = |id| VlanId::new(id).ok();
        let key = FlowKey::EMPTY;
        let keys = [
            key,
            FlowKey { source: Address::from_v4_bits(1), ..key },
            FlowKey { destination: Address::from_v4_bits(1), ..key },
            FlowKey { source_mac: MacAddr([0, 0, 0, 0, 0, 1]), ..key },
            FlowKey { source_mac: MacAddr([1, 0, 0, 0, 0, 0]), ..key },
            FlowKey { destination_mac: MacAddr([0, 0, 0, 0, 0, 1]), ..key },
            FlowKey { source_port: 1, ..key },
            FlowKey { destination_port: 1, ..key },
            FlowKey { ether_type: EtherType(1), ..key },
            FlowKey { vlan: vlan(1), ..key },
            FlowKey { inner_vlan: vlan(1), ..key },
            FlowKey { arp_operation: 1, ..key },
            FlowKey { protocol: IpProto(1), ..key },
            FlowKey { tcp_flags: TcpFlags::FIN, ..key },
            FlowKey { dscp: 1, ..key },
            FlowKey { icmp_type: 1, ..key },
            FlowKey { icmp_code: 1, ..key },
            FlowKey { fragment: Fragment::First, ..key },
        ];
        let hashes: HashSet<_> = keys.iter().map(|key| hasher.key(key)).collect();
        assert_eq!(hashes.len(), keys.len());
    }

    #[test]
    fn keys_are_random_and_hidden_in_debug() {
        assert_ne!(FlowHasher::new().plain(&flow(1)), FlowHasher::new().plain(&flow(1)));
        assert_eq!(format!("{:?}", FlowHasher::with_key(12345)), "FlowHasher { .. }");
        assert_eq!(flow(1).symmetric_hash(), FlowHasher::shared().symmetric(&flow(1)));
        assert_eq!(flow(1).plain_hash(), FlowHasher::shared().plain(&flow(1)));
    }
}
