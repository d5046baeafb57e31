//! How a region is cut into cells, ledger and rings. Pure arithmetic, checked once; see [`Geometry`].

use netvm_ring::{CapacityError, RingMemory, ring_bytes};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const PAGE: u64 = 4096;
const HUGE_PAGE: u64 = 2 << 20;
/// Processors fetch lines in pairs: what two cores write is kept this far apart.
const APART: u64 = 128;

/// What a region shall hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSpec {
    /// Number of cells.
    pub cells: u32,
    /// Bytes of a cell: headroom, packet and tailroom together. A multiple of 64 from 256 to 65,472.
    pub stride: u32,
    /// Bytes left free before a received packet, for headers that an NF puts in front. At most half a cell.
    pub headroom: u16,
    /// How many direct rings between NFs there is room for.
    pub rings: u16,
    /// Slots of a direct ring, a power of two.
    pub ring_capacity: u32,
}

impl Default for RegionSpec {
    /// 16,384 cells of 2 KiB (an Ethernet frame of 1,518 bytes with a headroom of 256), 256 direct rings of 512 slots.
    fn default() -> Self {
        Self { cells: 16_384, stride: 2048, headroom: 256, rings: 256, ring_capacity: 512 }
    }
}

/// A region that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// No cells, or more than a descriptor can number.
    #[error("a region of {0} cells: from 1 to 16777216 are possible")]
    Cells(u32),
    /// A cell size that is not possible.
    #[error("cells of {0} bytes: a multiple of 64 from 256 to 65472 is possible")]
    Stride(u32),
    /// More headroom than half of the cell.
    #[error("a headroom of {headroom} bytes in cells of {stride}: at most half of a cell is possible")]
    Headroom {
        /// What was asked for.
        headroom: u16,
        /// Bytes of a cell.
        stride: u32,
    },
    /// A ring capacity that is not possible.
    #[error(transparent)]
    Ring(#[from] CapacityError),
}

/// Where everything in a region is, in bytes from its start.
///
/// ```text
///  0              magic, layout version, label (for VMs, which see it as a PCI device: see `Kind`)
///  4096           backpressure   one u64 per chain: bit s set while station s finds the chain's next ring full
///  ledger_at      ledger         one byte per cell: the station that has it, 0 for the engine
///  rings_at       direct rings   rings x ring_stride
///  cells_at       cells          cells x stride, from a 2 MiB boundary
///  bytes          end, a multiple of 2 MiB
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Geometry {
    /// Size of the whole region.
    pub bytes: u64,
    /// Start of the ledger.
    pub ledger_at: u64,
    /// Start of the direct rings.
    pub rings_at: u64,
    /// Start of cell 0.
    pub cells_at: u64,
    /// Number of cells.
    pub cells: u32,
    /// Bytes of a cell.
    pub stride: u32,
    /// Number of direct rings.
    pub rings: u32,
    /// Slots of a direct ring.
    pub ring_capacity: u32,
    /// Bytes from one direct ring to the next.
    pub ring_stride: u32,
    /// Bytes left free before a received packet.
    pub headroom: u32,
}

impl Geometry {
    /// Start of the backpressure words.
    pub const BACKPRESSURE_AT: u64 = PAGE;

    /// The layout for what is asked.
    ///
    /// # Errors
    /// [`GeometryError`] names the value that is not possible and what is.
    pub fn new(spec: RegionSpec) -> Result<Self, GeometryError> {
        let RegionSpec { cells, stride, headroom, rings, ring_capacity } = spec;
        if cells == 0 || cells > 1 << 24 {
            return Err(GeometryError::Cells(cells));
        }
        if !stride.is_multiple_of(64) || !(256..=65_472).contains(&stride) {
            return Err(GeometryError::Stride(stride));
        }
        if u32::from(headroom) * 2 > stride {
            return Err(GeometryError::Headroom { headroom, stride });
        }
        RingMemory::check_capacity(ring_capacity)?;
        let ring_stride = (ring_bytes(ring_capacity) as u64).next_multiple_of(APART);
        let ledger_at = Self::BACKPRESSURE_AT + (crate::MAX_CHAINS as u64 * 8).next_multiple_of(PAGE);
        let rings_at = ledger_at + u64::from(cells).next_multiple_of(PAGE);
        let cells_at = (rings_at + u64::from(rings) * ring_stride).next_multiple_of(HUGE_PAGE);
        let bytes = (cells_at + u64::from(cells) * u64::from(stride)).next_multiple_of(HUGE_PAGE);
        Ok(Self {
            bytes,
            ledger_at,
            rings_at,
            cells_at,
            cells,
            stride,
            rings: u32::from(rings),
            ring_capacity,
            ring_stride: ring_stride as u32,
            headroom: u32::from(headroom),
        })
    }

    /// Whether this is a layout that [`Geometry::new`] makes; for the side that got it from elsewhere.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let (Ok(headroom), Ok(rings)) = (u16::try_from(self.headroom), u16::try_from(self.rings)) else {
            return false;
        };
        let spec = RegionSpec {
            cells: self.cells,
            stride: self.stride,
            headroom,
            rings,
            ring_capacity: self.ring_capacity,
        };
        Self::new(spec).as_ref() == Ok(self)
    }

    /// Longest packet that a cell holds behind its headroom.
    #[must_use]
    pub const fn room(&self) -> u32 {
        self.stride - self.headroom
    }

    /// Whether a descriptor's claim lies within one cell: cell, offset and length.
    #[inline(always)]
    #[must_use]
    pub const fn contains(&self, cell: u32, offset: u16, length: u16) -> bool {
        cell < self.cells && offset as u32 + length as u32 <= self.stride
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_follow_each_other_and_fit(cells in 1u32..100_000, stride in 4u32..1023, rings: u16, log in 1u32..12) {
            let spec = RegionSpec { cells, stride: stride * 64, headroom: 128, rings, ring_capacity: 1 << log };
            let g = Geometry::new(spec).unwrap();
            prop_assert!(Geometry::BACKPRESSURE_AT + 8 * crate::MAX_CHAINS as u64 <= g.ledger_at);
            prop_assert!(g.ledger_at + u64::from(cells) <= g.rings_at);
            prop_assert!(g.rings_at + u64::from(g.rings) * u64::from(g.ring_stride) <= g.cells_at);
            prop_assert!(g.cells_at + u64::from(cells) * u64::from(g.stride) <= g.bytes);
            prop_assert!(g.ring_stride as usize >= ring_bytes(1 << log));
            prop_assert_eq!((g.rings_at % 128, g.cells_at % HUGE_PAGE, g.bytes % HUGE_PAGE), (0, 0, 0));
            prop_assert!(g.is_sound());
            let (longer, fuller) = (Geometry { bytes: g.bytes + 1, ..g }, Geometry { cells: g.cells + 1_000_000, ..g });
            prop_assert!(!longer.is_sound() && !fuller.is_sound());
        }

        #[test]
        fn a_claim_within_a_cell_is_within_the_region(cell: u32, offset: u16, length: u16) {
            let g = Geometry::new(RegionSpec { cells: 1000, ..RegionSpec::default() }).unwrap();
            if g.contains(cell, offset, length) {
                let start = g.cells_at + u64::from(cell) * u64::from(g.stride) + u64::from(offset);
                prop_assert!(start + u64::from(length) <= g.bytes);
            }
        }
    }

    #[test]
    fn impossible_regions_are_refused() {
        let good = RegionSpec::default();
        assert!(matches!(Geometry::new(RegionSpec { cells: 0, ..good }), Err(GeometryError::Cells(0))));
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
