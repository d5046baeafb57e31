// SPDX-License-Identifier: Apache-2.0
//! The bits of IPv6 addresses: of numbers, of which the trie is built, and of addresses as on the wire, which lookups
//! get.

use super::{Address, Prefix};

/// Number of windows of an address.
pub(super) const WINDOWS: u8 = 4;

/// The 16 bits that index the root.
#[inline(always)]
pub(super) fn top(address: &Address) -> usize {
    u16::from_be_bytes([address[0], address[1]]).into()
}

/// Window `number`: 32 of the bits after the first 16, padded with zeroes.
#[inline(always)]
pub(super) fn window(address: &Address, number: u8) -> u32 {
    // The last window has two bytes only.
    let start = 2 + 4 * usize::from(number);
    let place = start.min(12);
    let word = address[place..].first_chunk().map_or(0, |word| u32::from_be_bytes(*word));
    word << ((start - place) % 4 * 8)
}

/// The 8 bits after the first `depth`.
#[inline(always)]
pub(super) const fn byte(address: u128, depth: u8) -> usize {
    (address << (depth % 128) >> 120) as usize
}

/// An address as 32-bit words, least significant first.
pub(super) fn words(address: u128) -> [u32; 4] {
    [0, 32, 64, 96].map(|shift| (address >> shift) as u32)
}

/// The address of [`words`].
#[inline(always)]
pub(super) fn from_words(words: &[u32; 4]) -> u128 {
    words.iter().rev().fold(0, |bits, word| bits << 32 | u128::from(*word))
}

/// Whether the bits in `mask` equal those of `value`; both as [`words`] returns them.
#[inline(always)]
pub(super) fn matches(address: u128, value: &[u32; 4], mask: &[u32; 4]) -> bool {
    let words = words(address);
    let differ = |n: usize| (words[n] ^ value[n]) & mask[n];
    differ(0) | differ(1) | differ(2) | differ(3) == 0
}

/// Whether the bits in `mask` of all addresses equal those of `value`.
#[inline(always)]
pub(super) fn all_match<const N: usize>(addresses: &[Address; N], value: u128, mask: u128) -> bool {
    let halves = |bytes: Address| {
        let [high, low] = [[0, 8], [8, 16]]
            .map(|[from, to]| bytes[from..to].first_chunk().map_or(0, |half| u64::from_ne_bytes(*half)));
        [high, low]
    };
    let (value, mask) = (halves(value.to_be_bytes()), halves(mask.to_be_bytes()));
    let differ = addresses.iter().fold([0; 2], |differ, address| {
        let address = halves(*address);
        [differ[0] | (address[0] ^ value[0]), differ[1] | (address[1] ^ value[1])]
    });
    (differ[0] & mask[0]) | (differ[1] & mask[1]) == 0
}

/// The bits of an address that index a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stride {
    /// The first 16.
    Root,
    /// The 8 after this many.
    At(u8),
}

impl Stride {
    /// Number of bits that this node and those above it have consumed.
    pub const fn end(self) -> u8 {
        match self {
            Self::Root => 16,
            Self::At(depth) => depth + 8,
        }
    }

    /// The slot of a prefix in a node that is indexed by this.
    pub const fn slot(self, prefix: Prefix<u128>) -> usize {
        match self {
            Self::Root => (prefix.bits >> 112) as usize,
            Self::At(depth) => byte(prefix.bits, depth),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_extracted_at_the_right_positions() {
        let number = 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10u128;
        let address = number.to_be_bytes();
        assert_eq!((top(&address), byte(number, 16), byte(number, 120)), (0x0102, 3, 0x10));
        let windows = [0x0304_0506, 0x0708_090a, 0x0b0c_0d0e, 0x0f10_0000];
        assert_eq!([0, 1, 2, 3].map(|n| window(&address, n)), windows);
        assert_eq!(from_words(&words(number)), number);
        for place in 0..128 {
            let changed = number ^ 1 << place;
            let others = [address, address, changed.to_be_bytes()];
            assert!(!all_match(&others, number, u128::MAX) && all_match(&others, number, !(1 << place)));
            assert!(!matches(changed, &words(number), &words(u128::MAX)));
            assert!(matches(changed, &words(number), &words(!(1 << place))));
        }
    }
}
