// SPDX-License-Identifier: Apache-2.0
//! Parts of files, mapped into this process.

#![allow(unsafe_code, reason = "advises the kernel about a mapping")]

use std::fs::File;
use std::sync::Arc;

use rustix::fs::fstat;
use rustix::mm::{Advice, madvise};
use vm_memory::{FileOffset, MmapRegion};

/// How a part of a file is mapped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Access {
    /// For writing, too.
    pub writable: bool,
    /// All of its pages are there at once.
    pub populate: bool,
}

/// A part of a file, mapped as shared memory until it is dropped.
#[derive(Debug)]
pub struct Mapping {
    /// The pages in which it lies.
    pages: MmapRegion,
    /// Bytes from their start.
    begin: usize,
}

impl Mapping {
    /// Maps `bytes` of a file from `offset` on, which may be in the middle of a page. `None` if the kernel refuses.
    ///
    /// Whether the file has all these bytes is not checked.
    #[must_use]
    pub fn new(file: &Arc<File>, offset: u64, bytes: u64, access: Access) -> Option<Self> {
        // The size of a huge page on hugetlbfs.
        let page =
            u64::try_from(fstat(&**file).ok()?.st_blksize).ok()?.max(4096).checked_next_power_of_two()?;
        let from = offset & !(page - 1);
        let begin = offset - from;
        let bytes = begin.checked_add(bytes)?.checked_next_multiple_of(page)?;
        let place = FileOffset::from_arc(Arc::clone(file), from);
        let flags = libc::MAP_SHARED | if access.populate { libc::MAP_POPULATE } else { 0 };
        let protection = libc::PROT_READ | if access.writable { libc::PROT_WRITE } else { 0 };
        let pages = MmapRegion::build(Some(place), usize::try_from(bytes).ok()?, protection, flags).ok()?;
        // A core dump without guests' memory is all the same useful.
        // SAFETY: the mapping that was just made; the advice changes no bytes.
        let _ = unsafe { madvise(pages.as_ptr().cast(), pages.size(), Advice::LinuxDontDump) };
        Some(Self { pages, begin: begin as usize })
    }

    /// Where it is mapped. Other processes may change its bytes at any time.
    #[inline(always)]
    #[must_use]
    pub fn start(&self) -> *mut u8 {
        self.pages.as_ptr().wrapping_add(self.begin)
    }

    /// Address and length of its pages.
    #[must_use]
    pub fn pages(&self) -> (usize, usize) {
        (self.pages.as_ptr() as usize, self.pages.size())
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn a_part_of_a_file_is_mapped_from_any_offset() {
        const PAGE: u64 = 4096;
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 16 * PAGE).unwrap();
        rustix::io::pwrite(&file, b"here", PAGE + 100).unwrap();
        let file = Arc::new(File::from(file));
        let access = Access { writable: true, populate: true };
        let mapping = Mapping::new(&file, PAGE + 100, PAGE, access).unwrap();
        // SAFETY: mapped as long as `mapping` lives.
        assert_eq!(unsafe { *mapping.start().cast::<[u8; 4]>() }, *b"here");
        let (address, bytes) = mapping.pages();
        assert_eq!((mapping.start() as usize - address, bytes % 8192), (100, 0));
        for (offset, bytes) in [(0, 1 << 60), (u64::MAX - PAGE, PAGE), (0, u64::MAX)] {
            assert!(Mapping::new(&file, offset, bytes, Access::default()).is_none());
        }
        let program = Arc::new(File::open("/proc/self/exe").unwrap());
        assert!(Mapping::new(&program, 0, PAGE, access).is_none());
        assert!(Mapping::new(&program, 0, PAGE, Access::default()).is_some());
    }
}
