// SPDX-License-Identifier: Apache-2.0
//! Regions: files with memory, mapped.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use netvm_guest_memory::{Access, Mapping, SealedFile};

use crate::status::Fault;

/// Largest region: offsets in it are of 32 bits.
const MAX_BYTES: u64 = 1 << 32;

/// A region, which cannot shrink.
#[derive(Debug)]
pub(crate) struct Region {
    mapping: Mapping,
    bytes: u64,
}

impl Region {
    /// Maps a file, if no access to its first `bytes` can fail.
    pub(crate) fn map(file: OwnedFd, bytes: u64) -> Result<Self, Fault> {
        let sealed = SealedFile::check(&file)?;
        if bytes == 0 || bytes > sealed.bytes || bytes > MAX_BYTES {
            return Err(Fault::Short);
        }
        let access = Access { writable: true, populate: false };
        let file = Arc::new(File::from(file));
        let mapping = Mapping::new(&file, 0, bytes, access).ok_or(Fault::NoMemory(bytes))?;
        Ok(Self { mapping, bytes })
    }

    /// The address of a part of it; `None` if it does not have all of it.
    #[inline]
    pub(crate) fn part(&self, offset: u32, length: u32) -> Option<*mut u8> {
        let end = u64::from(offset) + u64::from(length);
        (end <= self.bytes).then(|| self.mapping.start().wrapping_add(offset as usize))
    }
}

/// The regions of a connection, by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Regions(Vec<Arc<Region>>);

impl Regions {
    /// Most regions: one for rings, and some that a program has for its buffers.
    pub(crate) const MAX_REGIONS: u16 = 16;

    pub(crate) fn push(&mut self, region: Region) {
        self.0.push(Arc::new(region));
    }

    pub(crate) fn push_shared(&mut self, region: &Arc<Region>) {
        self.0.push(Arc::clone(region));
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn get(&self, number: u16) -> Option<&Arc<Region>> {
        self.0.get(usize::from(number))
    }

    /// The address of a part of a region; `None` if it does not exist.
    #[inline]
    pub(crate) fn part(&self, number: u16, offset: u32, length: u32) -> Option<*mut u8> {
        self.0.get(usize::from(number))?.part(offset, length)
    }
}
