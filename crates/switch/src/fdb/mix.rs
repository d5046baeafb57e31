// SPDX-License-Identifier: Apache-2.0
//! The hash of the forwarding database: a keyed permutation.
//!
//! The mixer maps VLAN and MAC address one to one onto a number of as many bits. The low bits select the bucket. An
//! entry stores only the other bits and is still exact (quotienting, Knuth volume 3, section 6.4, exercise 13). So key,
//! port and age fit in one word, which a worker reads and writes at once.
//!
//! The permutation multiplies by random odd numbers and shifts, as the finalisers of splitmix64 do. Like them, it
//! resists an attacker who does not see hash values.

use std::hash::{BuildHasher, RandomState};

use netvm_wire::MacAddr;

/// Bits of a VLAN and a MAC address together.
pub(super) const KEY_BITS: u32 = 60;

/// A VLAN and a MAC address, hashed for one forwarding database; meaningless to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdbKey {
    pub(super) bucket: u32,
    pub(super) tag: u64,
}

/// The two buckets of a key, and the tag that identifies the key in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BucketPair {
    /// The bucket searched first.
    pub primary: usize,
    /// The bucket searched next; it differs from the first.
    pub secondary: usize,
    /// Distinguishes keys that share a primary bucket.
    pub tag: u64,
}

/// A key from the operating system's random numbers.
pub(super) fn random_key() -> [u64; 4] {
    let random = RandomState::new();
    std::array::from_fn(|n| random.hash_one(n))
}

/// The permutation, and how many of its bits select the bucket.
#[derive(Clone)]
pub(super) struct Mixer {
    key: u64,
    odd: [u64; 3],
    inverse: [u64; 2],
    bucket_bits: u32,
    bits: u32,
}

impl Mixer {
    /// A permutation of `bits` bits, of which the lowest `bucket_bits` select a bucket.
    pub fn new(key: [u64; 4], bucket_bits: u32, bits: u32) -> Self {
        let [key, odd @ ..] = key;
        let odd = odd.map(|word| word | 1);
        let inverse = [inverse(odd[0]), inverse(odd[1])];
        Self { key: key & mask(bits), odd, inverse, bucket_bits, bits }
    }

    /// Number of buckets.
    pub const fn buckets(&self) -> usize {
        1 << self.bucket_bits
    }

    #[inline]
    pub fn hash(&self, vlan: u16, mac: MacAddr) -> FdbKey {
        self.split(self.permute(key_of(vlan, mac)))
    }

    pub fn bucket_pair(&self, key: FdbKey) -> BucketPair {
        // Masked, as the key may come from another database.
        let bucket = key.bucket as usize & (self.buckets() - 1);
        BucketPair { primary: bucket, secondary: self.other_bucket(bucket, key.tag), tag: key.tag }
    }

    /// The other bucket of a tag. Its own inverse.
    #[inline]
    pub fn other_bucket(&self, bucket: usize, tag: u64) -> usize {
        let distance = tag.wrapping_mul(self.odd[2]) >> (64 - self.bucket_bits) | 1;
        bucket ^ distance as usize
    }

    /// A key as one word: the mixed VLAN and MAC address.
    pub const fn join(&self, pair: &BucketPair) -> u64 {
        pair.tag << self.bucket_bits | pair.primary as u64
    }

    /// The inverse of [`Mixer::join`].
    pub const fn split(&self, mixed: u64) -> FdbKey {
        FdbKey { bucket: (mixed & mask(self.bucket_bits)) as u32, tag: mixed >> self.bucket_bits }
    }

    /// The key with this primary bucket and tag.
    pub fn key(&self, bucket: usize, tag: u64) -> (u16, MacAddr) {
        self.unmix(tag << self.bucket_bits | bucket as u64)
    }

    /// The VLAN and MAC address of a mixed word.
    pub fn unmix(&self, mixed: u64) -> (u16, MacAddr) {
        let key = self.invert(mixed);
        let [_, _, mac @ ..] = key.to_be_bytes();
        ((key >> 48) as u16, MacAddr(mac))
    }

    #[inline]
    fn permute(&self, key: u64) -> u64 {
        let (mask, half) = (mask(self.bits), self.bits.div_ceil(2));
        let mut word = (key ^ self.key).wrapping_mul(self.odd[0]) & mask;
        word ^= word >> half;
        word = word.wrapping_mul(self.odd[1]) & mask;
        word ^ word >> half
    }

    fn invert(&self, mut word: u64) -> u64 {
        let (mask, half) = (mask(self.bits), self.bits.div_ceil(2));
        word ^= word >> half;
        word = word.wrapping_mul(self.inverse[1]) & mask;
        word ^= word >> half;
        (word.wrapping_mul(self.inverse[0]) & mask) ^ self.key
    }
}

#[inline]
fn key_of(vlan: u16, mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.octets();
    u64::from_be_bytes([0, 0, a, b, c, d, e, f]) | u64::from(vlan & 0x0fff) << 48
}

#[inline]
const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// The inverse of an odd number modulo 2^64, by Newton's method: each step doubles the number of correct bits, from 3.
const fn inverse(odd: u64) -> u64 {
    let mut inverse = odd;
    let mut right = 3;
    while right < 64 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse)));
        right *= 2;
    }
    inverse
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_key_survives_the_round_trip(bucket_bits in 13..21u32, vlan in 0..4096u16, mac in any::<[u8; 6]>()) {
            let mixer = Mixer::new(random_key(), bucket_bits, KEY_BITS);
            let pair = mixer.bucket_pair(mixer.hash(vlan, MacAddr(mac)));
            prop_assert!(pair.primary < 1 << bucket_bits && pair.secondary < 1 << bucket_bits);
            prop_assert_eq!(mixer.key(pair.primary, pair.tag), (vlan, MacAddr(mac)));
            let key = mixer.split(mixer.join(&pair));
            prop_assert_eq!((key, mixer.unmix(mixer.join(&pair))), (mixer.hash(vlan, MacAddr(mac)), (vlan, MacAddr(mac))));
            prop_assert_ne!(pair.secondary, pair.primary);
            prop_assert_eq!(mixer.other_bucket(pair.secondary, pair.tag), pair.primary);
        }
    }
}
