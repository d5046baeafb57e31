//! Addresses as the trie sees them: a row of bits, the first one most significant.

use std::fmt::Debug;

/// An address of one family.
pub(crate) trait Bits: Copy + Ord + Debug {
    /// How many bits it has.
    const LENGTH: u8;
    /// The address of zeroes.
    const ZERO: Self;

    /// The 16 bits that the root is indexed by.
    fn top(self) -> usize;

    /// Windows that it has.
    const WINDOWS: u8;

    /// Behind the first 16, the bits come in windows of 32: the one of that number, filled up with zeroes.
    fn window(self, number: u8) -> u32;

    /// The 8 bits behind the first `depth`, which is a multiple of 8 and 16 or more.
    fn byte(self, depth: u8) -> usize {
        let behind = depth.saturating_sub(16);
        (self.window(behind / 32) >> (24 - behind % 32) & 0xff) as usize
    }

    /// The address with all bits behind the first `length` zero.
    fn cut(self, length: u8) -> Self;

    /// The address with all bits behind the first `length` one.
    fn last(self, length: u8) -> Self;

    /// In words of 32 bits, least significant first; what the family does not have is zero.
    fn words(self) -> [u32; 4];

    /// Whether it is `value` in the bits that `mask` has; both as [`Bits::words`] gives them.
    fn matches(self, value: &[u32; 4], mask: &[u32; 4]) -> bool;
}

impl Bits for u32 {
    const LENGTH: u8 = 32;
    const ZERO: Self = 0;

    #[inline(always)]
    fn top(self) -> usize {
        (self >> 16) as usize
    }

    const WINDOWS: u8 = 1;

    #[inline(always)]
    fn window(self, _number: u8) -> u32 {
        self << 16
    }

    fn cut(self, length: u8) -> Self {
        self & Self::MAX.checked_shl(u32::from(Self::LENGTH - length)).unwrap_or(0)
    }

    fn last(self, length: u8) -> Self {
        self | Self::MAX.checked_shr(u32::from(length)).unwrap_or(0)
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

    const WINDOWS: u8 = 4;

    #[inline(always)]
    fn window(self, number: u8) -> u32 {
        (self << (16 + 32 * (number % 4)) >> 96) as u32
    }

    fn cut(self, length: u8) -> Self {
        self & Self::MAX.checked_shl(u32::from(Self::LENGTH - length)).unwrap_or(0)
    }

    fn last(self, length: u8) -> Self {
        self | Self::MAX.checked_shr(u32::from(length)).unwrap_or(0)
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

/// A prefix; bits behind the length are zero. The order is by address, then shorter before longer: what lies in a prefix
/// follows it directly.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Prefix<A> {
    pub bits: A,
    pub length: u8,
}

impl<A: Bits> Prefix<A> {
    /// The first `length` bits of an address; at most all of them.
    pub fn new(address: A, length: u8) -> Self {
        let length = length.min(A::LENGTH);
        Self { bits: address.cut(length), length }
    }

    /// Whether all of `other` lies in it.
    pub fn contains(self, other: Self) -> bool {
        self.length <= other.length && other.bits.cut(self.length) == self.bits
    }

    /// The last prefix, in the order, that lies in it.
    pub fn last(self) -> Self {
        Self { bits: self.bits.last(self.length), length: A::LENGTH }
    }

    /// The slot of a node that tells `stride` bits after `depth` apart.
    pub fn slot(self, stride: Stride) -> usize {
        match stride {
            Stride::Root => self.bits.top(),
            Stride::At(depth) => self.bits.byte(depth),
        }
    }
}

/// Which bits of an address a node is indexed by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stride {
    /// The first 16.
    Root,
    /// The 8 behind the first so many.
    At(u8),
}

impl Stride {
    /// How many bits are known behind it.
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
    fn bits_are_where_they_should_be() {
        let address = 0x0102_0304u32;
        assert_eq!((address.top(), address.byte(16), address.byte(24)), (0x0102, 3, 4));
        let address = 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10u128;
        assert_eq!((address.top(), address.byte(16), address.byte(120)), (0x0102, 3, 0x10));
        assert_eq!((address.cut(0), address.cut(128), address.cut(8)), (0, address, 1 << 120));
        assert_eq!((0u32.last(0), 0u32.last(32), 0u128.last(127)), (u32::MAX, 0, 1));
    }

    #[test]
    fn what_lies_in_a_prefix_follows_it() {
        let net = |bits: u32, length| Prefix::new(bits, length);
        let mut nets = [net(0x0a00_0000, 8), net(0x0a00_0000, 16), net(0x0a01_0000, 16), net(0x0b00_0000, 8)];
        nets.sort();
        assert!(nets[0].contains(nets[1]) && nets[0].contains(nets[2]) && !nets[0].contains(nets[3]));
        assert!(nets[2] < nets[0].last() && nets[0].last() < nets[3]);
        assert!(!nets[1].contains(nets[0]) && nets[1].contains(nets[1]));
    }
}
