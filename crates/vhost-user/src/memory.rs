// SPDX-License-Identifier: Apache-2.0
//! The memory that a guest shares: regions of files, mapped into this process.
//!
//! Whether a file has all the pages that a region claims is not checked: its owner may truncate it at any time (see
//! `truncated`).

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use netvm_guest_memory::{Access, FileId, Mapping};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};

use crate::protocol::{Part, Region};

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

    /// Maps a region more. `None` if it cannot be mapped.
    #[must_use]
    pub fn add(&mut self, region: &Region, file: OwnedFd, populate: bool) -> Option<()> {
        self.0.push(MappedRegion::map(region, file, populate)?);
        Some(())
    }

    /// Takes a region out of the memory. It stays mapped as long as the returned value lives.
    pub fn remove(&mut self, named: &Region) -> Option<impl Sized + use<>> {
        let place = self.0.iter().position(|mapped| mapped.region.is_named(named))?;
        Some(self.0.remove(place))
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

/// A part of a file that a front-end shares besides its memory, mapped.
#[derive(Debug)]
pub struct SharedPart(Mapping);

impl SharedPart {
    /// `None` if the file is shorter, or the kernel refuses.
    #[must_use]
    pub fn map(part: Part, file: OwnedFd) -> Option<Self> {
        let end = part.offset.checked_add(part.bytes)?;
        if u64::try_from(fstat(&file).ok()?.st_size).ok()? < end {
            return None;
        }
        let access = Access { writable: true, populate: false };
        Mapping::new(&Arc::new(File::from(file)), part.offset, part.bytes, access).map(Self)
    }

    /// Where it is mapped.
    #[must_use]
    pub fn start(&self) -> *mut c_void {
        self.0.start().cast()
    }

    /// Address and length of its pages.
    #[must_use]
    pub fn pages(&self) -> (usize, usize) {
        self.0.pages()
    }
}

/// A new file of so many zeroes, which nobody can truncate.
#[must_use]
pub fn new_shared_file(bytes: u64) -> Option<OwnedFd> {
    let file = memfd_create("netvm-inflight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).ok()?;
    ftruncate(&file, bytes).ok()?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).ok()?;
    Some(file)
}

#[cfg(test)]
mod tests {
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
    fn regions_come_and_go_one_by_one() {
        let mut memory = GuestMemory::default();
        let regions = [region(PAGE, 0), Region { start: 2 << 40, ..region(PAGE, PAGE) }];
        for region in &regions {
            memory.add(region, file(), false).unwrap();
        }
        let has =
            |memory: &GuestMemory| regions.each_ref().map(|region| memory.translate(region.start).is_some());
        assert_eq!(has(&memory), [true, true]);
        let removed = memory.remove(&regions[0]);
        assert!(removed.is_some() && memory.remove(&regions[0]).is_none());
        assert_eq!(has(&memory), [false, true]);
        assert!(memory.add(&region(1 << 60, 0), file(), false).is_none());
        assert_eq!(memory.regions().count(), 1);
    }

    #[test]
    fn a_part_is_within_its_file() {
        let map = |offset, bytes| SharedPart::map(Part { bytes, offset }, file());
        let whole = map(PAGE + 8, 15 * PAGE - 8).unwrap();
        assert_eq!(whole.start() as usize - whole.pages().0, 8);
        for (offset, bytes) in [(PAGE + 8, 15 * PAGE - 7), (u64::MAX, 2), (0, 17 * PAGE), (16 * PAGE, 1)] {
            assert!(map(offset, bytes).is_none(), "{offset} {bytes}");
        }
        let own = new_shared_file(100).unwrap();
        assert!(ftruncate(&own, 99).is_err() && ftruncate(&own, 101).is_err());
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
