//! Addresses as rows of bits, the most significant bit first.

use std::fmt::Debug;

/// An address of one family.
pub(crate) trait Bits: Copy + Ord + Debug {
    /// Number of bits.
    const LENGTH: u8;
    /// The all-zero address.
    const ZERO: Self;

    /// The 16 bits that index the root.
    fn top(self) -> usize;

    /// Window `number`: 32 of the bits after the first 16, padded with zeroes.
    fn window(self, number: u8) -> u32;

    /// The 8 bits after the first `depth`, a multiple of 8 and at least 16.
    #[inline(always)]
    fn byte(self, depth: u8) -> usize {
        let behind = depth.saturating_sub(16);
        (self.window(behind / 32) >> (24 - behind % 32) & 0xff) as usize
    }

    /// The bits that differ from those of another address.
    fn differences(self, other: Self) -> Self;

    /// Number of zero bits before the first one.
    fn leading_zeros(self) -> u8;

    /// The address of [`Bits::words`].
    fn from_words(words: &[u32; 4]) -> Self;

    /// The address with all bits after the first `length` zero.
    fn truncate(self, length: u8) -> Self;

    /// The address with all bits after the first `length` one.
    fn last(self, length: u8) -> Self;

    /// The address as 32-bit words, least significant first, padded with zeroes.
    fn words(self) -> [u32; 4];

    /// Whether the bits in `mask` equal those of `value`; both as [`Bits::words`] returns them.
    fn matches(self, value: &[u32; 4], mask: &[u32; 4]) -> bool;
}

impl Bits for u32 {
    const LENGTH: u8 = 32;
    const ZERO: Self = 0;

    #[inline(always)]
    fn top(self) -> usize {
        (self >> 16) as usize
    }

    #[inline(always)]
    fn window(self, _number: u8) -> u32 {
        self << 16
    }

    fn truncate(self, length: u8) -> Self {
        self & Self::MAX.checked_shl(u32::from(Self::LENGTH - length)).unwrap_or(0)
    }

    fn last(self, length: u8) -> Self {
        self | Self::MAX.checked_shr(u32::from(length)).unwrap_or(0)
    }

    #[inline(always)]
    fn differences(self, other: Self) -> Self {
        self ^ other
    }

    fn leading_zeros(self) -> u8 {
        Self::leading_zeros(self) as u8
    }

    #[inline(always)]
    fn from_words(words: &[u32; 4]) -> Self {
        words[0]
    }

    fn words(self) -> [u32; 4] {
        [self, 0, 0, 0]
    }

    #[inline(always)]
    fn matches(self, value: &[u32; 4], mask: &[u32; 4]) -> bool {
        (self ^ value[0]) & mask[0] == 0
    }
}

impl Bits for u128 {
    const LENGTH: u8 = 128;
    const ZERO: Self = 0;

    #[inline(always)]
    fn top(self) -> usize {
        (self >> 112) as usize
    }

    #[inline(always)]
    fn window(self, number: u8) -> u32 {
        (self << (16 + 32 * (number % 4)) >> 96) as u32
    }

    fn truncate(self, length: u8) -> Self {
        self & Self::MAX.checked_shl(u32::from(Self::LENGTH - length)).unwrap_or(0)
    }

    fn last(self, length: u8) -> Self {
        self | Self::MAX.checked_shr(u32::from(length)).unwrap_or(0)
    }

    #[inline(always)]
    fn differences(self, other: Self) -> Self {
        self ^ other
    }

    fn leading_zeros(self) -> u8 {
        Self::leading_zeros(self) as u8
    }

    #[inline(always)]
    fn from_words(words: &[u32; 4]) -> Self {
        words.iter().rev().fold(0, |bits, word| bits << 32 | Self::from(*word))
    }

    fn words(self) -> [u32; 4] {
        [self as u32, (self >> 32) as u32, (self >> 64) as u32, (self >> 96) as u32]
    }

    #[inline(always)]
    fn matches(self, value: &[u32; 4], mask: &[u32; 4]) -> bool {
        let words = self.words();
        let differ = |n: usize| (words[n] ^ value[n]) & mask[n];
        differ(0) | differ(1) | differ(2) | differ(3) == 0
    }
}

/// An address as lookups get it: IPv4 as a number, IPv6 as on the wire.
pub(crate) trait Key: Copy {
    /// The address as a number.
    type Bits: Bits;
    /// Number of windows.
    const WINDOWS: u8;

    fn bits(self) -> Self::Bits;

    /// As [`Bits::top`].
    fn top(self) -> usize;

    /// As [`Bits::window`].
    fn window(self, number: u8) -> u32;

    /// Whether the bits in `mask` of all addresses equal those of `value`.
    fn all_match<const N: usize>(addresses: &[Self; N], value: Self::Bits, mask: Self::Bits) -> bool;
}

impl Key for u32 {
    type Bits = Self;
    const WINDOWS: u8 = 1;

    #[inline(always)]
    fn bits(self) -> Self {
        self
    }

    #[inline(always)]
    fn top(self) -> usize {
        Bits::top(self)
    }

    #[inline(always)]
    fn window(self, number: u8) -> u32 {
        Bits::window(self, number)
    }

    #[inline(always)]
    fn all_match<const N: usize>(addresses: &[Self; N], value: Self, mask: Self) -> bool {
        addresses.iter().fold(0, |differ, address| differ | (address ^ value)) & mask == 0
    }
}

impl Key for [u8; 16] {
    type Bits = u128;
    const WINDOWS: u8 = 4;

    #[inline(always)]
    fn bits(self) -> u128 {
        u128::from_be_bytes(self)
    }

    #[inline(always)]
    fn top(self) -> usize {
        u16::from_be_bytes([self[0], self[1]]).into()
    }

    #[inline(always)]
    fn window(self, number: u8) -> u32 {
        // The last window has two bytes only.
        let start = 2 + 4 * usize::from(number);
        let place = start.min(12);
        let word = self[place..].first_chunk().map_or(0, |word| u32::from_be_bytes(*word));
        word << ((start - place) % 4 * 8)
    }

    #[inline(always)]
    fn all_match<const N: usize>(addresses: &[Self; N], value: u128, mask: u128) -> bool {
        let halves = |bytes: [u8; 16]| {
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
}

/// A prefix; bits after the length are zero. Ordered by address, then shorter before longer, so that the prefixes
/// within a prefix follow it directly.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Prefix<A> {
    pub bits: A,
    pub length: u8,
}

impl<A: Bits> Prefix<A> {
    /// The first `length` bits of an address; at most all of them.
    pub fn new(address: A, length: u8) -> Self {
        let length = length.min(A::LENGTH);
        Self { bits: address.truncate(length), length }
    }

    /// Whether `other` lies within this prefix.
    pub fn contains(self, other: Self) -> bool {
        self.length <= other.length && other.bits.truncate(self.length) == self.bits
    }

    /// The last prefix, in order, that lies within this one.
    pub fn last(self) -> Self {
        Self { bits: self.bits.last(self.length), length: A::LENGTH }
    }

    /// The slot of this prefix in a node that is indexed by `stride`.
    pub fn slot(self, stride: Stride) -> usize {
        match stride {
            Stride::Root => self.bits.top(),
            Stride::At(depth) => self.bits.byte(depth),
        }
    }
}

/// The bits of an address that index a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stride {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_extracted_at_the_right_positions() {
        let address = 0x0102_0304u32;
        assert_eq!((Bits::top(address), address.byte(16), address.byte(24)), (0x0102, 3, 4));
        let address = 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10u128;
        assert_eq!((address.top(), address.byte(16), address.byte(120)), (0x0102, 3, 0x10));
        let wire = address.to_be_bytes();
        assert_eq!((Key::bits(wire), Key::top(wire)), (address, 0x0102));
        for number in 0..4 {
            assert_eq!(Key::window(wire, number), Bits::window(address, number));
        }
        for place in 0..128 {
            let other = [wire, wire, (address ^ 1 << place).to_be_bytes()];
            assert!(
                !Key::all_match(&other, address, u128::MAX) && Key::all_match(&other, address, !(1 << place))
            );
        }
        assert_eq!((address.truncate(0), address.truncate(128), address.truncate(8)), (0, address, 1 << 120));
        assert_eq!((0u32.last(0), 0u32.last(32), 0u128.last(127)), (u32::MAX, 0, 1));
    }

    #[test]
    fn contained_prefixes_follow_their_prefix() {
        let net = |bits: u32, length| Prefix::new(bits, length);
        let mut nets = [net(0x0a00_0000, 8), net(0x0a00_0000, 16), net(0x0a01_0000, 16), net(0x0b00_0000, 8)];
        nets.sort();
        assert!(nets[0].contains(nets[1]) && nets[0].contains(nets[2]) && !nets[0].contains(nets[3]));
        assert!(nets[2] < nets[0].last() && nets[0].last() < nets[3]);
        assert!(!nets[1].contains(nets[0]) && nets[1].contains(nets[1]));
    }
}
