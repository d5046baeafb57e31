// SPDX-License-Identifier: Apache-2.0
//! A region: the packet memory of one trust group on one NUMA node. In: buffer and ring numbers. Out: their addresses.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use netvm_ring::RingMemory;

use crate::kind::{self, Kind};
use crate::{Geometry, MapError, Mapping, Pages, RegionSpec};

/// The engine's number in the owner table.
pub const ENGINE: u8 = 0;

/// A region, mapped by the engine or by an NF of its group. For the layout see [`Geometry`].
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
    geometry: Geometry,
    // Addresses that the packet path uses; within the mapping by the geometry's construction.
    owner_table: NonNull<AtomicU8>,
    buffers: NonNull<u8>,
}

// SAFETY: owner table and backpressure are atomics. Packet bytes are reached only by address; code that makes a
// reference from one is responsible for it.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// Why a region cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The layout is impossible.
    #[error(transparent)]
    Geometry(#[from] crate::GeometryError),
    /// Its memory cannot be created.
    #[error(transparent)]
    Map(#[from] MapError),
}

impl Region {
    /// Creates the region of a group on a node.
    ///
    /// # Errors
    /// [`RegionError`] if the layout is impossible or memory runs out.
    pub fn create(
        name: &str,
        spec: RegionSpec,
        pages: Pages,
        node: Option<u32>,
    ) -> Result<Self, RegionError> {
        let geometry = Geometry::new(spec)?;
        let region = Self::over(Mapping::create(name, geometry.bytes, pages, node)?, geometry);
        region.label(0, 0);
        Ok(region)
    }

    /// Writes the group and the region's index within it, by which a VM identifies its memories. The engine calls this
    /// before it shares the region.
    pub fn label(&self, group: u32, number: u16) {
        kind::write(&self.mapping, Kind::Region { group, number });
    }

    /// Maps a region that the engine passed.
    ///
    /// # Errors
    /// [`MapError`] if the file does not fit the geometry.
    pub fn open(name: &str, fd: OwnedFd, geometry: Geometry) -> Result<Self, MapError> {
        if !geometry.is_sound() {
            return Err(MapError::Size { name: name.to_owned(), expected: geometry.bytes, actual: 0 });
        }
        Ok(Self::over(Mapping::open(name, fd, geometry.bytes, true)?, geometry))
    }

    fn over(mapping: Mapping, geometry: Geometry) -> Self {
        let owner_table = mapping.at(geometry.owner_table_at);
        let buffers = mapping.at(geometry.buffers_at);
        Self { mapping, geometry, owner_table, buffers }
    }

    /// The layout.
    #[inline(always)]
    #[must_use]
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The memory itself.
    #[must_use]
    pub const fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// First byte of a buffer.
    ///
    /// # Panics
    /// In debug builds, if `buffer` is out of range.
    ///
    /// # Safety
    /// `buffer` is below [`Geometry::numbers`].
    #[inline(always)]
    #[must_use]
    pub unsafe fn buffer(&self, buffer: u32) -> NonNull<u8> {
        debug_assert!(buffer < self.geometry.numbers());
        // SAFETY: the caller keeps `buffer` in range, and the geometry keeps all buffers within the mapping.
        unsafe { self.buffers.add(buffer as usize * self.geometry.stride as usize) }
    }

    /// Writes the owner of a buffer. Ignores buffers out of range.
    #[inline(always)]
    pub fn set_owner(&self, buffer: u32, nf_thread: u8) {
        if let Some(byte) = self.owner_table().get(buffer as usize) {
            byte.store(nf_thread, Ordering::Relaxed);
        }
    }

    /// The owner of a buffer, as its last holder wrote it.
    #[inline(always)]
    #[must_use]
    pub fn owner(&self, buffer: u32) -> Option<u8> {
        self.owner_table().get(buffer as usize).map(|byte| byte.load(Ordering::Relaxed))
    }

    /// The owner table: one byte per number of a buffer. All NFs of the group can write anything here at any time.
    #[inline(always)]
    #[must_use]
    pub const fn owner_table(&self) -> &[AtomicU8] {
        // SAFETY: the owner table has a byte for each buffer, within the mapping; it is only ever used as atomics.
        unsafe { std::slice::from_raw_parts(self.owner_table.as_ptr(), self.geometry.numbers() as usize) }
    }

    /// The chain's backpressure word: bit `s` is set while NF thread `s` finds its next ring full.
    #[inline]
    #[must_use]
    pub fn backpressure(&self, chain: u16) -> &AtomicU64 {
        let index = u64::from(chain) % crate::MAX_CHAINS as u64;
        // SAFETY: the geometry keeps MAX_CHAINS words there; they are only ever used as atomics.
        unsafe { self.mapping.at::<AtomicU64>(Geometry::BACKPRESSURE_AT + index * 8).as_ref() }
    }

    /// Direct ring `index`, if it exists.
    #[must_use]
    pub fn ring(&self, index: u16) -> Option<RingMemory> {
        let g = &self.geometry;
        if u32::from(index) >= g.rings {
            return None;
        }
        let base = self.mapping.at(g.rings_at + u64::from(index) * u64::from(g.ring_stride));
        // SAFETY: the geometry keeps `ring_stride` bytes, aligned to 128, there; the Region keeps them mapped, and
        // every ring end keeps the Region (see RingMemory::from_raw).
        unsafe { RingMemory::from_raw(base, g.ring_capacity) }.ok()
    }
}

impl AsFd for Region {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.mapping.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm_ring::Descriptor;

    fn small() -> RegionSpec {
        RegionSpec { buffers: 100, stride: 2048, headroom: 128, large: 0, rings: 3, ring_capacity: 8 }
    }

    #[test]
    fn both_sides_share_buffers_owner_table_and_rings() {
        let engine = Region::create("region-test", small(), Pages::Normal, None).unwrap();
        let fd = engine.as_fd().try_clone_to_owned().unwrap();
        let nf = Region::open("region-test", fd, *engine.geometry()).unwrap();
        nf.set_owner(99, 7);
        nf.set_owner(100, 7);
        assert_eq!((engine.owner(99), engine.owner(98), engine.owner(100)), (Some(7), Some(ENGINE), None));
        nf.backpressure(255).store(1 << 7, Ordering::Relaxed);
        assert_eq!(engine.backpressure(255).load(Ordering::Relaxed), 1 << 7);
        // SAFETY: buffer 99 exists on both sides; only this thread uses it.
        unsafe {
            nf.buffer(99).write_volatile(42);
            assert_eq!(engine.buffer(99).read_volatile(), 42);
        }
        assert!(engine.ring(3).is_none());
        let (here, there) = (engine.ring(2).unwrap(), nf.ring(2).unwrap());
        here.initialise();
        // SAFETY: one producer and one consumer of the ring.
        let (mut producer, mut consumer) = unsafe { (here.producer(), there.consumer()) };
        assert_eq!(producer.push(&[Descriptor::new(5, 1, 2)]), 1);
        let mut out = [Descriptor::default(); 2];
        assert_eq!((consumer.pop(&mut out), out[0]), (1, Descriptor::new(5, 1, 2)));
    }

    #[test]
    fn another_geometry_is_refused() {
        let engine = Region::create("region-test", small(), Pages::Normal, None).unwrap();
        let fd = engine.as_fd().try_clone_to_owned().unwrap();
        let wrong = Geometry { buffers_at: 0, ..*engine.geometry() };
        assert!(Region::open("region-test", fd, wrong).is_err());
    }
}
