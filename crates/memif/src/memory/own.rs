// SPDX-License-Identifier: Apache-2.0
//! The memory of a client: one region, with all rings, and a buffer for each descriptor.
//!
//! ```text
//!  rings to the server │ rings to the client │ to a page │ buffers of the first ring │ of the second …
//! ```

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::region::{Region, Regions};
use super::ring::{Descriptor, Ring};
use crate::status::Fault;

const PAGE: u64 = 4096;
/// Buffers begin at cache lines.
const LINE: u32 = 64;

/// How much memory a client needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) to_server: u16,
    pub(crate) to_client: u16,
    pub(crate) log2_ring_size: u8,
    /// Bytes of a buffer.
    pub(crate) buffer: u32,
}

impl Shape {
    const fn rings(&self) -> u64 {
        self.to_server as u64 + self.to_client as u64
    }

    /// Where the buffers begin.
    const fn first_buffer(&self) -> u64 {
        (self.rings() * Ring::bytes(self.log2_ring_size) as u64).next_multiple_of(PAGE)
    }

    /// From one buffer to the next.
    const fn stride(&self) -> u64 {
        self.buffer.next_multiple_of(LINE) as u64
    }

    /// Bytes of all; offsets in it are of 32 bits.
    pub(crate) const fn bytes(&self) -> u64 {
        self.first_buffer() + (self.rings() << self.log2_ring_size) * self.stride()
    }

    /// Where a ring begins.
    pub(crate) const fn ring(&self, number: u16) -> u32 {
        number as u32 * Ring::bytes(self.log2_ring_size)
    }
}

/// Memory of a client, with its file.
#[derive(Debug)]
pub(crate) struct Own {
    shape: Shape,
    region: Arc<Region>,
}

impl Own {
    /// Makes the memory, with rings in it, and its file.
    pub(crate) fn new(shape: Shape) -> Result<(Self, OwnedFd), Fault> {
        let no_memory = |_| Fault::NoMemory(shape.bytes());
        let file =
            memfd_create("memif", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(no_memory)?;
        ftruncate(&file, shape.bytes()).map_err(no_memory)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).map_err(no_memory)?;
        let copy = file.try_clone().map_err(|_| Fault::NoFiles)?;
        let region = Arc::new(Region::map(copy, shape.bytes())?);
        let own = Self { shape, region };
        for number in 0..shape.to_server + shape.to_client {
            let ring = own.ring(number).ok_or(Fault::NoMemory(shape.bytes()))?;
            ring.write_cookie();
            for slot in 0..ring.size() {
                ring.set_descriptor(slot, own.buffers(number).descriptor(slot, shape.buffer));
            }
        }
        Ok((own, file))
    }

    pub(crate) const fn shape(&self) -> Shape {
        self.shape
    }

    /// As a region with this memory.
    pub(crate) fn regions(&self) -> Regions {
        let mut regions = Regions::default();
        regions.push_shared(&self.region);
        regions
    }

    /// The ring of a number: those to the server first.
    pub(crate) fn ring(&self, number: u16) -> Option<Ring> {
        Ring::at(&self.region, self.shape.ring(number), self.shape.log2_ring_size)
    }

    /// The buffers of the ring of a number.
    pub(crate) fn buffers(&self, number: u16) -> Buffers {
        let before = u64::from(number) << self.shape.log2_ring_size;
        let first = self.shape.first_buffer() + before * self.shape.stride();
        Buffers {
            // `Shape::bytes` is at most 2^32, which `Port::open` checks.
            first: first as u32,
            stride: self.shape.stride() as u32,
            bytes: self.shape.buffer,
            mask: (1 << self.shape.log2_ring_size) - 1,
        }
    }
}

/// The buffers of a ring of the client. Where they are is known without its descriptors, which the peer can write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers {
    first: u32,
    stride: u32,
    pub(crate) bytes: u32,
    mask: u16,
}

impl Buffers {
    /// The descriptor for a count, with its buffer and this length.
    #[inline]
    pub(crate) const fn descriptor(&self, count: u16, length: u32) -> Descriptor {
        let offset = self.first + (count & self.mask) as u32 * self.stride;
        Descriptor { goes_on: false, region: 0, length, offset }
    }
}
