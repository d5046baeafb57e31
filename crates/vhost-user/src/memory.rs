//! The memory that a guest shares: regions of files, mapped into this process.
//!
//! Whether a file has all the pages that a region claims is not checked: its owner may truncate it at any time (see
//! `truncated`).

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use netvm_guest_memory::{Access, FileId, Mapping};

use crate::protocol::Region;

/// A region, mapped.
#[derive(Debug)]
struct MappedRegion {
    region: Region,
    file: FileId,
    mapping: Mapping,
}

impl MappedRegion {
    /// `None` if the kernel refuses. With `populate`, its pages are there at once.
    fn map(region: &Region, file: OwnedFd, populate: bool) -> Option<Self> {
        let id = FileId::of(&file)?;
        let access = Access { writable: true, populate };
        let mapping = Mapping::new(&Arc::new(File::from(file)), region.offset, region.bytes, access)?;
        Some(Self { region: *region, file: id, mapping })
    }

    /// Where an address of the front-end is mapped, if the region has it.
    fn translate(&self, address: u64) -> Option<*mut c_void> {
        let offset = address.checked_sub(self.region.start).filter(|offset| *offset < self.region.bytes)?;
        Some(self.mapping.start().wrapping_add(offset as usize).cast())
    }
}

/// The memory of one guest.
#[derive(Debug, Default)]
pub struct GuestMemory(Vec<MappedRegion>);

impl GuestMemory {
    /// Maps a table of regions; there are as many files. `None` if a region cannot be mapped.
    #[must_use]
    pub fn map(regions: &[Region], files: Vec<OwnedFd>, populate: bool) -> Option<Self> {
        let mapped =
            regions.iter().zip(files).map(|(region, file)| MappedRegion::map(region, file, populate));
        mapped.collect::<Option<_>>().map(Self)
    }

    /// Whether a table would map the same memory.
    #[must_use]
    pub fn is(&self, regions: &[Region], files: &[OwnedFd]) -> bool {
        let same = |(mapped, (region, file)): (&MappedRegion, (&Region, &OwnedFd))| {
            mapped.region == *region && FileId::of(file) == Some(mapped.file)
        };
        self.0.len() == regions.len() && self.0.iter().zip(regions.iter().zip(files)).all(same)
    }

    /// Addresses and lengths of its pages.
    pub fn pages(&self) -> impl Iterator<Item = (usize, usize)> {
        self.0.iter().map(|mapped| mapped.mapping.pages())
    }

    /// Each region, and the address of its mapping.
    pub fn regions(&self) -> impl Iterator<Item = (&Region, usize)> {
        self.0.iter().map(|mapped| (&mapped.region, mapped.mapping.start() as usize))
    }

    /// Where an address of the front-end is mapped; `None` if it is outside.
    #[must_use]
    pub fn translate(&self, address: u64) -> Option<*mut c_void> {
        self.0.iter().find_map(|mapped| mapped.translate(address))
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    const PAGE: u64 = 4096;

    fn file() -> OwnedFd {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 16 * PAGE).unwrap();
        file
    }

    fn region(bytes: u64, offset: u64) -> Region {
        Region { physical: 1 << 32, bytes, start: 1 << 40, offset }
    }

    #[test]
    fn a_region_begins_at_any_offset_of_its_file() {
        let file = file();
        rustix::io::pwrite(&file, b"here", PAGE + 100).unwrap();
        let region = region(PAGE, PAGE + 100);
        let memory = GuestMemory::map(&[region], vec![file.try_clone().unwrap()], true).unwrap();
        let at = |distance| memory.translate(region.start + distance).map(|mapped| mapped as usize);
        let (_, first) = memory.regions().next().unwrap();
        assert_eq!(
            [0, 1, PAGE - 1].map(at),
            [0, 1, PAGE as usize - 1].map(|distance| Some(first + distance))
        );
        // SAFETY: mapped as long as `memory` lives.
        let bytes = unsafe { *memory.translate(region.start).unwrap().cast::<[u8; 4]>() };
        assert_eq!(bytes, *b"here");
        // Of whole pages.
        assert_eq!(memory.pages().map(|(_, bytes)| bytes).collect::<Vec<_>>(), [2 * PAGE as usize]);
        assert_eq!(
            [region.start - 1, region.start + PAGE].map(|outside| memory.translate(outside)),
            [None; 2]
        );
    }

    #[test]
    fn the_same_table_is_recognised_by_its_files() {
        let (one, other) = (file(), file());
        let regions = [region(PAGE, 0)];
        let memory = GuestMemory::map(&regions, vec![one.try_clone().unwrap()], false).unwrap();
        let [again, elsewhere] = [one.try_clone().unwrap(), other].map(|file| vec![file]);
        assert!(memory.is(&regions, &again) && !memory.is(&regions, &elsewhere) && !memory.is(&[], &[]));
        assert!(!memory.is(&[region(PAGE, PAGE)], &again) && !memory.is(&[region(2 * PAGE, 0)], &again));
    }

    #[test]
    fn what_cannot_be_mapped_is_refused() {
        let map = |region: Region, file: OwnedFd| GuestMemory::map(&[region], vec![file], false);
        assert!(map(region(1 << 60, 0), file()).is_none());
        assert!(map(region(PAGE, u64::MAX - PAGE), file()).is_none());
        let read_only = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(map(region(PAGE, 0), read_only.into()).is_none());
    }
}
