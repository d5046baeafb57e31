// SPDX-License-Identifier: Apache-2.0
//! The layout of buffers in packet memory, and the buffer number of an address.

use std::sync::Arc;

use crate::{Mbuf, PacketMemory};

/// The buffers of a pool.
#[derive(Clone)]
pub struct PoolBuffers {
    /// The memory that has them.
    pub memory: Arc<dyn PacketMemory>,
    /// Where they are in it.
    pub layout: BufferLayout,
}

/// How packet memory is divided into buffers.
///
/// ```text
///  base                 base + first              + stride
///  │ anything else ...  │ buffer 0                  │ buffer 1                  │ ...
///                       │<- 128 ->│ packet ...    │
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferLayout {
    /// Bytes from the start of the memory to buffer 0.
    pub first: usize,
    /// Distance of buffers in bytes; at most 131,072.
    pub stride: u32,
    /// Number of buffers.
    pub buffers: u32,
    /// Free bytes required before a received packet. Drivers leave [`HEADROOM`], which is fixed when
    /// DPDK is built, so more is refused.
    pub headroom: u16,
}

/// Bytes that every driver leaves free before a received packet: 128 unless DPDK was built otherwise.
pub const HEADROOM: u16 = dpdk_sys::NETVM_HEADROOM as u16;

impl BufferLayout {
    /// Bytes of a buffer: headroom, packet and tailroom; at most 65,535, the limit of an mbuf.
    #[must_use]
    pub const fn size(&self) -> u32 {
        if self.stride > u16::MAX as u32 { u16::MAX as u32 } else { self.stride }
    }

    /// Longest packet that a driver can put into a buffer.
    #[must_use]
    pub const fn room(&self) -> u32 {
        self.size().saturating_sub(HEADROOM as u32)
    }

    /// Bytes from the start of the memory to the end of the last buffer.
    pub(crate) fn end(&self) -> Option<usize> {
        (self.stride as usize).checked_mul(self.buffers as usize)?.checked_add(self.first)
    }
}

/// Converts addresses of buffers to buffer numbers without a division. A copy fits into registers during a loop.
///
/// With stride = odd × 2^shift, the distance of buffer i from buffer 0 is i × odd × 2^shift. Shifting is exact, and
/// what is left is multiplied by the inverse of `odd` modulo 2^32, which undoes the multiplication by `odd`.
#[derive(Clone, Copy, Debug)]
pub struct BufferIndex {
    first: usize,
    shift: u32,
    inverse: u32,
}

impl BufferIndex {
    /// For buffers of `stride` bytes (not 0) from the address `first`.
    pub(crate) const fn new(first: usize, stride: u32) -> Self {
        let shift = stride.trailing_zeros();
        let odd = stride >> shift;
        // Newton's iteration doubles the number of right bits; odd × odd is 1 modulo 8, so 3 bits are right at first.
        let mut inverse = odd;
        let mut bits = 3;
        while bits < 32 {
            inverse = inverse.wrapping_mul(2_u32.wrapping_sub(odd.wrapping_mul(inverse)));
            bits *= 2;
        }
        Self { first, shift, inverse }
    }

    /// The buffer number of a packet of the pool; an arbitrary number for a packet of another pool.
    #[inline(always)]
    #[must_use]
    pub fn of_packet(&self, packet: &Mbuf) -> u32 {
        self.of(packet.buf_addr() as usize)
    }

    /// The number of the buffer that begins at `address`; an arbitrary number for any other address.
    #[inline(always)]
    pub(crate) const fn of(&self, address: usize) -> u32 {
        ((address.wrapping_sub(self.first) >> self.shift) as u32).wrapping_mul(self.inverse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_index_is_the_quotient(first in 0_usize..1 << 46, stride in 1_u32..131_073, buffer in 0_u32..1 << 24) {
            let index = BufferIndex::new(first, stride);
            prop_assert_eq!(index.of(first + stride as usize * buffer as usize), buffer);
        }
    }

    #[test]
    fn every_stride_has_its_inverse() {
        for stride in 1..65_536 {
            let index = BufferIndex::new(4096, stride);
            assert_eq!(index.of(4096 + 12_345 * stride as usize), 12_345, "stride {stride}");
        }
    }
}
