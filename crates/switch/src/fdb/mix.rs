//! The hash of the forwarding database: a permutation with a random key.
//!
//! A key of VLAN and MAC address is mapped one to one onto a number of as many bits. Its low bits choose the bucket, and
//! the others are all that an entry must store to be exact (quotienting, Knuth volume 3, section 6.4, exercise 13): so
//! key, port and age fit into one word, which is read and written as a whole.
//!
//! Multiplications by random odd numbers and shifts, as in the finalisers of splitmix64; like them it holds against one
//! who does not see hash values.

use std::hash::{BuildHasher, RandomState};

use netvm_wire::MacAddr;

/// Bits of VLAN and MAC address.
pub(super) const KEY_BITS: u32 = 60;

/// A VLAN and a MAC address, hashed for one forwarding database; of no meaning to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdbKey {
    pub(super) bucket: u32,
    pub(super) tag: u64,
}

/// Where a key belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The bucket that is searched first.
    pub bucket: usize,
    /// The bucket that is searched when the key is not in the first; another one.
    pub alternate: usize,
    /// What tells keys of one first bucket apart.
    pub tag: u64,
}

/// A key from the operating system's random numbers.
pub(super) fn random_key() -> [u64; 4] {
    let random = RandomState::new();
    std::array::from_fn(|n| random.hash_one(n))
}

/// The permutation, and how many of its bits name the bucket.
#[derive(Clone)]
pub(super) struct Mixer {
    key: u64,
    odd: [u64; 3],
    inverse: [u64; 2],
    bucket_bits: u32,
    bits: u32,
}

impl Mixer {
    /// Onto `bits`, of which `bucket_bits` name a bucket, with a key.
    pub fn new(key: [u64; 4], bucket_bits: u32, bits: u32) -> Self {
        let [key, odd @ ..] = key;
        let odd = odd.map(|word| word | 1);
        let inverse = [inverse(odd[0]), inverse(odd[1])];
        Self { key: key & mask(bits), odd, inverse, bucket_bits, bits }
    }

    /// How many buckets there are.
    pub const fn buckets(&self) -> usize {
        1 << self.bucket_bits
    }

    #[inline]
    pub fn hash(&self, vlan: u16, mac: MacAddr) -> FdbKey {
        let mixed = self.forth(key_of(vlan, mac));
        FdbKey { bucket: (mixed & mask(self.bucket_bits)) as u32, tag: mixed >> self.bucket_bits }
    }

    pub fn place(&self, key: FdbKey) -> Place {
        // Bounded, as the key may be another database's.
        let bucket = key.bucket as usize & (self.buckets() - 1);
        Place { bucket, alternate: self.other(bucket, key.tag), tag: key.tag }
    }

    /// The other bucket of a tag: that of its other bucket is the first again.
    #[inline]
    pub fn other(&self, bucket: usize, tag: u64) -> usize {
        let distance = tag.wrapping_mul(self.odd[2]) >> (64 - self.bucket_bits) | 1;
        bucket ^ distance as usize
    }

    /// The key whose first bucket and tag these are.
    pub fn key(&self, bucket: usize, tag: u64) -> (u16, MacAddr) {
        let key = self.back(tag << self.bucket_bits | bucket as u64);
        let [_, _, mac @ ..] = key.to_be_bytes();
        ((key >> 48) as u16, MacAddr(mac))
    }

    #[inline]
    fn forth(&self, key: u64) -> u64 {
        let (mask, half) = (mask(self.bits), self.bits.div_ceil(2));
        let mut word = (key ^ self.key).wrapping_mul(self.odd[0]) & mask;
        word ^= word >> half;
        word = word.wrapping_mul(self.odd[1]) & mask;
        word ^ word >> half
    }

    fn back(&self, mut word: u64) -> u64 {
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

/// Of an odd number, modulo 2^64, by Newton's method: each step doubles the bits that are right, of which 3 are.
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
        fn a_key_comes_back(bucket_bits in 13..21u32, vlan in 0..4096u16, mac in any::<[u8; 6]>()) {
            let mixer = Mixer::new(random_key(), bucket_bits, KEY_BITS);
            let place = mixer.place(mixer.hash(vlan, MacAddr(mac)));
            prop_assert!(place.bucket < 1 << bucket_bits && place.alternate < 1 << bucket_bits);
            prop_assert_eq!(mixer.key(place.bucket, place.tag), (vlan, MacAddr(mac)));
            prop_assert_ne!(place.alternate, place.bucket);
            prop_assert_eq!(mixer.other(place.alternate, place.tag), place.bucket);
        }
    }
}
