// SPDX-License-Identifier: Apache-2.0
//! Prefixes of addresses of both families.

use std::fmt::Debug;
use std::ops::{BitAnd, BitOr, Not};

/// An address as a number, the most significant bit first.
pub(crate) trait Bits:
    Copy + Ord + Debug + BitAnd<Output = Self> + BitOr<Output = Self> + Not<Output = Self>
{
    /// Number of bits.
    const LENGTH: u8;

    /// The first `length` bits one, the others zero.
    fn mask(length: u8) -> Self;

    /// The address with all bits after the first `length` zero.
    fn truncate(self, length: u8) -> Self {
        self & Self::mask(length)
    }

    /// The address with all bits after the first `length` one.
    fn last(self, length: u8) -> Self {
        self | !Self::mask(length)
    }
}

impl Bits for u32 {
    const LENGTH: u8 = 32;

    fn mask(length: u8) -> Self {
        Self::MAX.checked_shl(u32::from(Self::LENGTH - length)).unwrap_or(0)
    }
}

impl Bits for u128 {
    const LENGTH: u8 = 128;

    fn mask(length: u8) -> Self {
        Self::MAX.checked_shl(u32::from(Self::LENGTH - length)).unwrap_or(0)
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_end_at_their_length() {
        assert_eq!((0u32.last(0), 0u32.last(32), 0u128.last(127)), (u32::MAX, 0, 1));
        assert_eq!((7u32.truncate(0), 7u32.truncate(30), 7u128.truncate(128)), (0, 4, 7));
        assert_eq!(Prefix::new(u32::MAX, 40), Prefix::new(u32::MAX, 32));
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
