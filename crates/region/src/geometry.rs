// SPDX-License-Identifier: Apache-2.0
//! The layout of a region. In: the numbers and sizes of buffers and rings. Out: their offsets, checked once; see
//! [`Geometry`].

use netvm_ring::{CapacityError, RingMemory, ring_bytes};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const PAGE: u64 = 4096;
const HUGE_PAGE: u64 = 2 << 20;
/// Distance between data that two cores write: processors fetch cache lines in pairs.
const SEPARATION: u64 = 128;
/// Bytes of a large buffer: what a descriptor's 16-bit offset and length can address.
const LARGE: u32 = u16::MAX as u32;
/// Most numbers of buffers.
const MAX_BUFFER_NUMBERS: u32 = 1 << 24;

/// The contents of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSpec {
    /// Number of buffers.
    pub buffers: u32,
    /// Bytes of a buffer, including headroom and tailroom. A multiple of 64 from 256 to 65,472.
    pub stride: u32,
    /// Free bytes before a received packet, for headers that an NF prepends. At most half a buffer.
    pub headroom: u16,
    /// Number of large buffers, for segments of up to 64 KB.
    pub large: u32,
    /// Number of direct rings between NFs.
    pub rings: u16,
    /// Slots of a direct ring, a power of two.
    pub ring_capacity: u32,
}

impl Default for RegionSpec {
    /// 16,384 buffers of 2 KiB (an Ethernet frame of 1,518 bytes and 256 bytes of headroom), none large, 256 direct
    /// rings of 512 slots.
    fn default() -> Self {
        Self { buffers: 16_384, stride: 2048, headroom: 256, large: 0, rings: 256, ring_capacity: 512 }
    }
}

/// Why a region cannot be laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// No buffers, or more than a descriptor can number.
    #[error(
        "a region of {0} buffers: the number must be from 1 to 16777216, large ones counted with their size"
    )]
    Buffers(u64),
    /// A buffer size out of range.
    #[error("buffers of {0} bytes: the size must be a multiple of 64 from 256 to 65472")]
    Stride(u32),
    /// More headroom than half of the buffer.
    #[error("a headroom of {headroom} bytes in buffers of {stride}: it must be at most half of a buffer")]
    Headroom {
        /// The requested headroom.
        headroom: u16,
        /// Bytes of a buffer.
        stride: u32,
    },
    /// A ring capacity out of range.
    #[error(transparent)]
    Ring(#[from] CapacityError),
}

/// The layout of a region: offsets in bytes from its start.
///
/// ```text
///  0               magic, layout version, label (for VMs, which see a PCI device: see `Kind`)
///  4096            backpressure   one u64 per chain: bit s is set while NF thread s finds the chain's next ring full
///  owner_table_at  owner table    one byte per number: the NF thread that owns the buffer, 0 for the engine
///  rings_at        direct rings   rings x ring_stride
///  buffers_at      buffers        buffers x stride, from a 2 MiB boundary
///                  large buffers  large x large_numbers x stride
///  bytes           end, a multiple of 2 MiB
/// ```
///
/// A buffer's number is its distance from `buffers_at` in units of `stride`. Large buffers follow the others. Each
/// takes several numbers: descriptors name it by the first, and the others are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Geometry {
    /// Size of the whole region.
    pub bytes: u64,
    /// Start of the owner table.
    pub owner_table_at: u64,
    /// Start of the direct rings.
    pub rings_at: u64,
    /// Start of buffer 0.
    pub buffers_at: u64,
    /// Number of buffers.
    pub buffers: u32,
    /// Bytes of a buffer.
    pub stride: u32,
    /// Number of direct rings.
    pub rings: u32,
    /// Slots of a direct ring.
    pub ring_capacity: u32,
    /// Distance between direct rings in bytes.
    pub ring_stride: u32,
    /// Free bytes before a received packet.
    pub headroom: u32,
    /// Number of large buffers.
    pub large: u32,
    /// Numbers that a large buffer takes.
    pub large_numbers: u32,
}

impl Geometry {
    /// Start of the backpressure words.
    pub const BACKPRESSURE_AT: u64 = PAGE;

    /// The layout of a region with these contents.
    ///
    /// # Errors
    /// [`GeometryError`] names the value that is out of range, and the range.
    pub fn new(spec: RegionSpec) -> Result<Self, GeometryError> {
        let RegionSpec { buffers, stride, headroom, large, rings, ring_capacity } = spec;
        if !stride.is_multiple_of(64) || !(256..=65_472).contains(&stride) {
            return Err(GeometryError::Stride(stride));
        }
        let large_numbers = LARGE.div_ceil(stride);
        let numbers = u64::from(buffers) + u64::from(large) * u64::from(large_numbers);
        if buffers == 0 || numbers > u64::from(MAX_BUFFER_NUMBERS) {
            return Err(GeometryError::Buffers(numbers));
        }
        if u32::from(headroom) * 2 > stride {
            return Err(GeometryError::Headroom { headroom, stride });
        }
        RingMemory::check_capacity(ring_capacity)?;
        let ring_stride = (ring_bytes(ring_capacity) as u64).next_multiple_of(SEPARATION);
        let owner_table_at = Self::BACKPRESSURE_AT + (crate::MAX_CHAINS as u64 * 8).next_multiple_of(PAGE);
        let rings_at = owner_table_at + numbers.next_multiple_of(PAGE);
        let buffers_at = (rings_at + u64::from(rings) * ring_stride).next_multiple_of(HUGE_PAGE);
        let bytes = (buffers_at + numbers * u64::from(stride)).next_multiple_of(HUGE_PAGE);
        Ok(Self {
            bytes,
            owner_table_at,
            rings_at,
            buffers_at,
            buffers,
            stride,
            rings: u32::from(rings),
            ring_capacity,
            ring_stride: ring_stride as u32,
            headroom: u32::from(headroom),
            large,
            large_numbers,
        })
    }

    /// Whether [`Geometry::new`] makes this layout. The side that received it from a peer checks this.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let (Ok(headroom), Ok(rings)) = (u16::try_from(self.headroom), u16::try_from(self.rings)) else {
            return false;
        };
        let spec = RegionSpec {
            buffers: self.buffers,
            stride: self.stride,
            headroom,
            large: self.large,
            rings,
            ring_capacity: self.ring_capacity,
        };
        Self::new(spec).as_ref() == Ok(self)
    }

    /// Longest packet that fits behind the headroom.
    #[must_use]
    pub const fn room(&self) -> u32 {
        self.stride - self.headroom
    }

    /// Longest packet that fits behind the headroom of a large buffer.
    #[must_use]
    pub const fn large_room(&self) -> u32 {
        LARGE - self.headroom
    }

    /// The numbers of buffers are below this one.
    #[must_use]
    pub const fn numbers(&self) -> u32 {
        self.buffers + self.large * self.large_numbers
    }

    /// Bytes of a buffer; 0 for a number that no buffer has.
    #[inline(always)]
    #[must_use]
    pub const fn size_of(&self, buffer: u32) -> u32 {
        if buffer < self.buffers { self.stride } else { self.size_of_large(buffer) }
    }

    #[cold]
    const fn size_of_large(&self, buffer: u32) -> u32 {
        if self.is_large(buffer) { LARGE } else { 0 }
    }

    /// Whether a number that is no ordinary buffer's is a large buffer's.
    const fn is_large(&self, buffer: u32) -> bool {
        buffer < self.numbers() && (buffer - self.buffers).is_multiple_of(self.large_numbers)
    }

    /// Whether a descriptor's buffer exists and contains its offset and length.
    #[inline(always)]
    #[must_use]
    pub const fn contains(&self, buffer: u32, offset: u16, length: u16) -> bool {
        let end = offset as u32 + length as u32;
        if buffer < self.buffers { end <= self.stride } else { self.large_contains(buffer, end) }
    }

    #[cold]
    const fn large_contains(&self, buffer: u32, end: u32) -> bool {
        self.is_large(buffer) && end <= LARGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_do_not_overlap(
            buffers in 1u32..100_000, large in 0u32..1000, stride in 4u32..1023, rings: u16, log in 1u32..12,
        ) {
            let spec = RegionSpec { buffers, stride: stride * 64, headroom: 128, large, rings, ring_capacity: 1 << log };
            let g = Geometry::new(spec).unwrap();
            prop_assert!(Geometry::BACKPRESSURE_AT + 8 * crate::MAX_CHAINS as u64 <= g.owner_table_at);
            prop_assert!(g.owner_table_at + u64::from(g.numbers()) <= g.rings_at);
            prop_assert!(g.rings_at + u64::from(g.rings) * u64::from(g.ring_stride) <= g.buffers_at);
            prop_assert!(g.buffers_at + u64::from(g.numbers()) * u64::from(g.stride) <= g.bytes);
            prop_assert!(g.large_numbers * g.stride >= LARGE);
            prop_assert_eq!(g.numbers(), buffers + large * g.large_numbers);
            prop_assert!(g.ring_stride as usize >= ring_bytes(1 << log));
            prop_assert_eq!((g.rings_at % 128, g.buffers_at % HUGE_PAGE, g.bytes % HUGE_PAGE), (0, 0, 0));
            prop_assert!(g.is_sound());
            let (longer, fuller) = (Geometry { bytes: g.bytes + 1, ..g }, Geometry { buffers: g.buffers + 1_000_000, ..g });
            prop_assert!(!longer.is_sound() && !fuller.is_sound());
        }

        #[test]
        fn a_span_within_a_buffer_is_within_the_region_and_no_other(
            buffer in prop_oneof![0u32..2000, any::<u32>()], offset: u16, length: u16,
        ) {
            let g = Geometry::new(RegionSpec { buffers: 1000, large: 20, ..RegionSpec::default() }).unwrap();
            let is_first = buffer < 1000 || (buffer < 1640 && (buffer - 1000) % 32 == 0);
            prop_assert_eq!(g.contains(buffer, 0, 0), is_first);
            prop_assert!(is_first || !g.contains(buffer, offset, length));
            if g.contains(buffer, offset, length) {
                let numbers = if buffer < 1000 { 1 } else { 32 };
                prop_assert!(u32::from(offset) + u32::from(length) <= numbers * g.stride);
                let start = g.buffers_at + u64::from(buffer) * u64::from(g.stride) + u64::from(offset);
                prop_assert!(start + u64::from(length) <= g.bytes);
            }
        }
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let good = RegionSpec::default();
        assert!(matches!(Geometry::new(RegionSpec { buffers: 0, ..good }), Err(GeometryError::Buffers(0))));
        let many = RegionSpec { large: 1 << 20, ..good };
        assert!(matches!(Geometry::new(many), Err(GeometryError::Buffers(33_570_816))));
        assert!(matches!(
            Geometry::new(RegionSpec { stride: 2000, ..good }),
            Err(GeometryError::Stride(2000))
        ));
        assert!(matches!(
            Geometry::new(RegionSpec { headroom: 1025, ..good }),
            Err(GeometryError::Headroom { .. })
        ));
        assert!(matches!(
            Geometry::new(RegionSpec { ring_capacity: 3, ..good }),
            Err(GeometryError::Ring(_))
        ));
    }
}
