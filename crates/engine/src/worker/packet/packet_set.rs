// SPDX-License-Identifier: Apache-2.0
//! A subset of the packets of a burst, as indexes.

use dpdk::Batch;

/// A worker's burst.
const BURST: usize = Batch::CAPACITY;

/// Indexes of packets in ascending order.
pub(crate) struct PacketSet {
    list: [u8; BURST],
    count: usize,
}

impl PacketSet {
    /// The packets whose bits are set.
    #[inline(always)]
    pub(crate) fn of(mut bits: u64) -> Self {
        let mut set = Self { list: [0; BURST], count: 0 };
        while bits != 0 {
            set.list[set.count] = bits.trailing_zeros() as u8;
            set.count += 1;
            bits &= bits - 1;
        }
        set
    }

    #[inline(always)]
    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    #[inline(always)]
    pub(crate) fn list(&self) -> &[u8] {
        &self.list[..self.count]
    }

    #[inline(always)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> {
        self.list().iter().map(|index| usize::from(*index))
    }
}

/// The first `count` packets, one bit each.
#[inline(always)]
pub(crate) const fn first_bits(count: usize) -> u64 {
    match count {
        0 => 0,
        count => u64::MAX >> (64 - count),
    }
}
