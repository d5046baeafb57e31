// SPDX-License-Identifier: Apache-2.0
//! Buffers as UMEM addresses, and the set of buffers that the kernel has.

/// Converts buffer numbers to UMEM addresses and back.
///
/// A UMEM address counts bytes from the start of the registered memory. In unaligned mode the kernel returns a received
/// packet as the address of its chunk in the low 48 bits and the offset in the chunk in the upper 16
/// (`XSK_UNALIGNED_BUF_OFFSET_SHIFT`). In aligned mode it returns the sum, whose upper bits are zero. Adding the two
/// halves decodes both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferLayout {
    /// Bytes from the start of the registered memory to buffer 0.
    skew: u64,
    stride: u32,
    buffers: u32,
    /// Bytes of all buffers.
    bytes: u64,
    /// 2^64 / stride, rounded up. Then `(n * reciprocal) >> 64` is `n / stride` for all n below 2^40, as the rounding
    /// adds less than n * stride / 2^64 < 1/stride for strides below 2^16 (at most 2^24 buffers of less than 2^16
    /// bytes).
    reciprocal: u64,
}

/// The location of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxFrame {
    /// Buffer number.
    pub buffer: u32,
    /// Bytes from the start of the buffer to the packet.
    pub offset: u16,
    /// Bytes of the packet, without FCS.
    pub len: u16,
}

/// A packet to send.
pub type TxFrame = RxFrame;

const OFFSET_SHIFT: u32 = 48;

impl BufferLayout {
    /// A layout of `buffers` buffers of `stride` bytes, the first one `skew` bytes from the start. The caller checks
    /// the limits above.
    pub(crate) const fn new(skew: u64, stride: u32, buffers: u32) -> Self {
        let bytes = buffers as u64 * stride as u64;
        Self { skew, stride, buffers, bytes, reciprocal: (u64::MAX / stride as u64) + 1 }
    }

    pub(crate) const fn buffers(&self) -> u32 {
        self.buffers
    }

    pub(crate) const fn stride(&self) -> u32 {
        self.stride
    }

    /// Bytes of memory to register.
    pub(crate) const fn registered(&self) -> u64 {
        self.skew + self.bytes
    }

    /// The UMEM address of a byte of a buffer.
    #[inline(always)]
    pub(crate) const fn address(&self, buffer: u32, offset: u16) -> u64 {
        self.skew + buffer as u64 * self.stride as u64 + offset as u64
    }

    /// The buffer and offset of an address; `None` if it is outside every buffer.
    #[inline(always)]
    pub(crate) const fn locate(&self, address: u64) -> Option<(u32, u32)> {
        let sum = (address & ((1 << OFFSET_SHIFT) - 1)) + (address >> OFFSET_SHIFT);
        let from_first = sum.wrapping_sub(self.skew);
        if from_first >= self.bytes {
            return None;
        }
        let buffer = ((from_first as u128 * self.reciprocal as u128) >> 64) as u32;
        Some((buffer, (from_first - buffer as u64 * self.stride as u64) as u32))
    }

    /// The frame at an address; `None` if it does not lie within one buffer.
    #[inline(always)]
    pub(crate) const fn frame(&self, address: u64, len: u32) -> Option<RxFrame> {
        match self.locate(address) {
            Some((buffer, offset)) if len <= self.stride - offset => {
                Some(RxFrame { buffer, offset: offset as u16, len: len as u16 })
            }
            _ => None,
        }
    }

    /// Whether a frame to send is not empty and lies within its buffer.
    #[inline(always)]
    pub(crate) const fn holds(&self, frame: &TxFrame) -> bool {
        frame.len != 0 && frame.offset as u32 + frame.len as u32 <= self.stride
    }
}

/// The set of buffers that the kernel has, one bit each.
#[derive(Debug)]
pub(crate) struct BufferSet {
    words: Vec<u64>,
    buffers: u32,
    count: u32,
}

impl BufferSet {
    pub(crate) fn new(buffers: u32) -> Self {
        Self { words: vec![0; (buffers as usize).div_ceil(64)], buffers, count: 0 }
    }

    /// Adds a buffer; false if it does not exist or is already in the set.
    #[inline(always)]
    pub(crate) fn insert(&mut self, buffer: u32) -> bool {
        let bit = 1u64 << (buffer % 64);
        match self.words.get_mut((buffer / 64) as usize) {
            Some(word) if buffer < self.buffers && *word & bit == 0 => {
                *word |= bit;
                self.count += 1;
                true
            }
            _ => false,
        }
    }

    /// Removes a buffer; false if it was not in the set.
    #[inline(always)]
    pub(crate) fn remove(&mut self, buffer: u32) -> bool {
        let bit = 1u64 << (buffer % 64);
        match self.words.get_mut((buffer / 64) as usize) {
            Some(word) if *word & bit != 0 => {
                *word &= !bit;
                self.count -= 1;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// All buffers in the set, in ascending order.
    pub(crate) fn to_vec(&self) -> Vec<u32> {
        let mut buffers = Vec::with_capacity(self.count as usize);
        for (index, &word) in self.words.iter().enumerate() {
            let mut word = word;
            while word != 0 {
                buffers.push(index as u32 * 64 + word.trailing_zeros());
                word &= word - 1;
            }
        }
        buffers
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_address_resolves_to_its_buffer(
            stride in (4u32..1024).prop_map(|n| n * 64),
            buffers in 1u32..=1 << 24,
            at: prop::sample::Index,
            offset: prop::sample::Index,
            skew in 0u64..65_536,
        ) {
            let layout = BufferLayout::new(skew, stride, buffers);
            let buffer = at.index(buffers as usize) as u32;
            let offset = offset.index(stride as usize) as u16;
            let address = layout.address(buffer, offset);
            let expected = (((address - skew) / u64::from(stride)) as u32, ((address - skew) % u64::from(stride)) as u32);
            prop_assert_eq!(expected, (buffer, u32::from(offset)));
            prop_assert_eq!(layout.locate(address), Some(expected));
            // The encoding of unaligned mode: chunk in the low bits, offset in the high ones.
            prop_assert_eq!(layout.locate(layout.address(buffer, 0) | u64::from(offset) << 48), Some(expected));
        }

        #[test]
        fn a_frame_lies_within_one_buffer_or_is_refused(
            address: u64, len: u32, near in 0u64..1 << 24, stride in (32u32..65).prop_map(|n| n * 64), skew in 0u64..4096,
        ) {
            let layout = BufferLayout::new(skew, stride, 4096);
            for (address, len) in [(address, len), (near, len % 8192), (near, len)] {
                if let Some(frame) = layout.frame(address, len) {
                    prop_assert!(frame.buffer < 4096);
                    prop_assert_eq!(u32::from(frame.len), len);
                    prop_assert!(u32::from(frame.offset) + u32::from(frame.len) <= stride);
                }
            }
        }

        #[test]
        fn buffer_set_agrees_with_a_btree_set(steps in prop::collection::vec((any::<bool>(), 0u32..150), 0..400)) {
            let (mut set, mut reference) = (BufferSet::new(130), BTreeSet::new());
            for (put, buffer) in steps {
                if put {
                    prop_assert_eq!(set.insert(buffer), buffer < 130 && reference.insert(buffer));
                } else {
                    prop_assert_eq!(set.remove(buffer), reference.remove(&buffer));
                }
                prop_assert_eq!(set.count() as usize, reference.len());
            }
            prop_assert_eq!(set.to_vec(), reference.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_last_byte_of_the_largest_layout_is_found() {
        for stride in [65_472, 65_408, 4096, 2112] {
            let layout = BufferLayout::new(0, stride, 1 << 24);
            let last = (1 << 24) - 1;
            assert_eq!(layout.locate(layout.address(last, (stride - 1) as u16)), Some((last, stride - 1)));
            assert_eq!(layout.locate(layout.registered()), None);
        }
    }

    #[test]
    fn empty_and_overlong_frames_are_refused() {
        let layout = BufferLayout::new(0, 2048, 4);
        let holds = |offset, len| layout.holds(&TxFrame { buffer: 0, offset, len });
        assert!(holds(0, 2048) && holds(2047, 1) && holds(256, 60));
        assert!(!holds(0, 0) && !holds(1, 2048) && !holds(2048, 1) && !holds(u16::MAX, u16::MAX));
    }
}
