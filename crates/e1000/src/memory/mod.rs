// SPDX-License-Identifier: Apache-2.0
//! Guest memory: ranges of files that the client passes (`VFIO_USER_DMA_MAP`), mapped into this process.
//!
//! A worker must never fault on such memory. So a range must lie within a file that cannot shrink ([`SealedFile`]).

mod range;

use std::fs::File;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use netvm_guest_memory::SealedFile;
use rustix::mm::{MremapFlags, mremap, munmap};

use range::Range;
pub(crate) use range::{MapError, MapRequest, WORDS_OF_RANGE};

/// Most ranges at a time. QEMU's firmware makes a few dozen.
pub(crate) const MAX_RANGES: usize = 512;
/// Ranges begin and end at multiples of this.
const PAGE: u64 = 4096;

/// A page of guest memory that is mapped once more, by itself: it stays when the guest's memory is unmapped.
#[derive(Debug)]
pub(crate) struct Page {
    base: NonNull<AtomicU32>,
    /// Address of the page in the mapping of the guest's memory.
    origin: *const u8,
}

// SAFETY: all accesses are atomic, and the mapping belongs to no thread; `origin` is only compared.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// Size.
    pub(crate) const BYTES: u64 = PAGE;

    /// The word at this offset; `None` if there is none.
    #[inline]
    pub(crate) fn word(&self, offset: u64) -> Option<&AtomicU32> {
        if !offset.is_multiple_of(4) || offset >= PAGE {
            return None;
        }
        // SAFETY: just checked that it is in the page, which is mapped as long as `self` lives, from a file that cannot
        // shrink; its words are only accessed atomically through here, and the guest may change them at any time.
        Some(unsafe { self.base.add((offset / 4) as usize).as_ref() })
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: `GuestMemory::page` made this mapping, and references into it borrow `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), PAGE as usize) };
    }
}

/// The memory of one guest.
#[derive(Debug, Default)]
pub(crate) struct GuestMemory {
    /// Sorted, without overlap.
    ranges: Vec<Range>,
    /// By their numbers. Most guests have all their memory in one.
    files: Vec<Option<(SealedFile, Arc<File>)>>,
    /// Ranges have come or gone since [`Self::take_changed`].
    is_changed: bool,
}

impl GuestMemory {
    /// Maps a range. Returns the number of its file if there is no other range of it.
    pub(crate) fn map(&mut self, request: &MapRequest, file: impl AsFd) -> Result<Option<u32>, MapError> {
        let MapRequest { first, bytes, offset, .. } = *request;
        let end = first.checked_add(bytes).ok_or(MapError::Range)?;
        if bytes == 0 || (first | bytes | offset) % PAGE != 0 || bytes > isize::MAX as u64 {
            return Err(MapError::Range);
        }
        let found = SealedFile::check(&file)?;
        if offset.checked_add(bytes).is_none_or(|end| end > found.bytes) {
            return Err(MapError::Short);
        }
        let known = self.files.iter().zip(0u32..).find_map(|(known, number)| {
            let (_, file) = known.as_ref().filter(|(known, _)| *known == found)?;
            Some((number, Arc::clone(file)))
        });
        let place = self.ranges.partition_point(|range| range.end() <= first);
        if let Some(range) = self.ranges.get(place).filter(|range| range.first < end) {
            // A request that a process before this one had begun.
            let is_there =
                range.request() == *request && known.is_some_and(|(number, _)| number == range.file);
            return if is_there { Ok(None) } else { Err(MapError::Overlap) };
        }
        if self.ranges.len() >= MAX_RANGES {
            return Err(MapError::TooMany);
        }
        if let Some((number, file)) = known {
            self.ranges.insert(place, Range::map(request, &file, number)?);
            self.is_changed = true;
            return Ok(None);
        }
        let number = self.files.iter().position(Option::is_none).unwrap_or(self.files.len());
        let file = file.as_fd().try_clone_to_owned().map_err(|_| MapError::Map)?;
        let file = Arc::new(File::from(file));
        self.ranges.insert(place, Range::map(request, &file, number as u32)?);
        self.is_changed = true;
        self.files.resize(self.files.len().max(number + 1), None);
        self.files[number] = Some((found, file));
        Ok(Some(number as u32))
    }

    /// Numbers of files without a range any more.
    pub(crate) fn take_unused(&mut self) -> Vec<u32> {
        let Self { ranges, files, .. } = self;
        let is_unused = |number: u32| ranges.iter().all(|range| range.file != number);
        let known =
            files.iter_mut().zip(0u32..).filter(|(file, number)| file.is_some() && is_unused(*number));
        known.map(|(file, number)| (*file = None, number).1).collect()
    }

    /// Whether ranges have come or gone since the last call.
    pub(crate) const fn take_changed(&mut self) -> bool {
        std::mem::replace(&mut self.is_changed, false)
    }

    pub(crate) const fn count(&self) -> usize {
        self.ranges.len()
    }

    /// The ranges, for [`MapRequest::from_words`].
    pub(crate) fn words(&self) -> impl Iterator<Item = u32> {
        self.ranges.iter().flat_map(|range| range.request().words(range.file))
    }

    /// Unmaps the ranges within these bytes. Ranges without a file were never mapped, so none may be there.
    pub(crate) fn unmap(&mut self, first: u64, bytes: u64) -> Result<(), MapError> {
        let end = first.checked_add(bytes).ok_or(MapError::Range)?;
        let is_cut = |range: &Range| {
            range.first < end && first < range.end() && (range.first < first || range.end() > end)
        };
        if self.ranges.iter().any(is_cut) {
            return Err(MapError::Overlap);
        }
        self.ranges.retain(|range| range.end() <= first || range.first >= end);
        self.is_changed = true;
        Ok(())
    }

    /// Unmaps all ranges.
    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
        self.is_changed = true;
    }

    /// The bytes from an address on that are contiguous in this process, at most `most`.
    #[inline]
    fn chunk(&self, address: u64, most: usize, write: bool) -> Option<(*mut u8, usize)> {
        let holds = |range: &&Range| address.wrapping_sub(range.first) < range.bytes;
        let range = self.ranges.iter().find(holds)?;
        if write && !range.writable {
            return None;
        }
        let offset = address - range.first;
        let left = usize::try_from(range.bytes - offset).unwrap_or(usize::MAX);
        Some((range.mapping.start().wrapping_add(offset as usize), left.min(most)))
    }

    /// Maps the page that contains an address a second time. `None` if the guest cannot write there.
    pub(crate) fn page(&self, address: u64) -> Option<Page> {
        let (origin, _) = self.chunk(address & !(PAGE - 1), PAGE as usize, true)?;
        // SAFETY: ranges are of whole pages, so that `chunk` has found one that is mapped and shared. With an old size
        // of 0 its mapping stays as it is, and the new one is where the kernel chooses.
        let base = unsafe { mremap(origin.cast(), 0, PAGE as usize, MremapFlags::MAYMOVE) }.ok()?;
        Some(Page { base: NonNull::new(base.cast())?, origin })
    }

    /// Whether the guest can write to the page with an address.
    #[inline]
    pub(crate) fn is_writable(&self, address: u64) -> bool {
        self.chunk(address & !(PAGE - 1), PAGE as usize, true).is_some()
    }

    /// Whether `page` still is the page at this address.
    #[inline]
    pub(crate) fn holds(&self, address: u64, page: &Page) -> bool {
        self.chunk(address & !(PAGE - 1), PAGE as usize, true)
            .is_some_and(|(origin, _)| std::ptr::eq(origin, page.origin))
    }

    /// Where a descriptor lies: 16 bytes, aligned to 16.
    #[inline]
    fn descriptor(&self, address: u64, write: bool) -> Option<*mut u64> {
        let (bytes, length) = self.chunk(address, 16, write)?;
        // Ranges are of whole pages, so a descriptor that is aligned lies in one.
        (length == 16 && address.is_multiple_of(16)).then_some(bytes.cast())
    }

    /// Reads a descriptor.
    #[inline]
    pub(crate) fn load(&self, address: u64) -> Option<[u64; 2]> {
        let words = self.descriptor(address, false)?;
        // SAFETY: `descriptor` has checked that both words are mapped and aligned; the guest may change them at any
        // time, which atomic accesses allow.
        let word = |n| unsafe { AtomicU64::from_ptr(words.wrapping_add(n)) }.load(Ordering::Relaxed);
        Some([u64::from_le(word(0)), u64::from_le(word(1))])
    }

    /// Writes the first half of a descriptor.
    #[inline]
    pub(crate) fn store_first(&self, address: u64, value: u64) -> bool {
        let Some(words) = self.descriptor(address, true) else { return false };
        // SAFETY: as in `load`.
        unsafe { AtomicU64::from_ptr(words) }.store(value.to_le(), Ordering::Relaxed);
        true
    }

    /// Writes the second half of a descriptor, after everything written before.
    #[inline]
    pub(crate) fn store_second(&self, address: u64, value: u64) -> bool {
        let Some(words) = self.descriptor(address, true) else { return false };
        // SAFETY: as in `load`.
        unsafe { AtomicU64::from_ptr(words.wrapping_add(1)) }.store(value.to_le(), Ordering::Release);
        true
    }

    /// Writes the status byte of a descriptor, after everything written before.
    #[inline]
    pub(crate) fn store_status(&self, address: u64, value: u8) -> bool {
        const STATUS: usize = 12;
        let Some(words) = self.descriptor(address, true) else { return false };
        // SAFETY: as in `load`; a byte is always aligned.
        unsafe { AtomicU8::from_ptr(words.cast::<u8>().wrapping_add(STATUS)) }
            .store(value, Ordering::Release);
        true
    }

    /// Copies bytes out of guest memory. Returns whether all of them are mapped.
    ///
    /// # Safety
    /// `to` has room for `length` bytes, outside guest memory.
    #[inline]
    pub(crate) unsafe fn read(&self, mut address: u64, mut to: *mut u8, mut length: usize) -> bool {
        while length > 0 {
            let Some((from, count)) = self.chunk(address, length, false) else { return false };
            // SAFETY: `chunk` has checked that the bytes are mapped; the caller provides room. If the guest writes
            // meanwhile, the bytes are any mixture, and nothing depends on them.
            unsafe { std::ptr::copy_nonoverlapping(from, to, count) };
            (address, to, length) =
                (address.wrapping_add(count as u64), to.wrapping_add(count), length - count);
        }
        true
    }

    /// Copies bytes into guest memory. Returns whether all of it is mapped for writing.
    ///
    /// # Safety
    /// `from` holds `length` bytes, outside guest memory.
    #[inline]
    pub(crate) unsafe fn write(&self, mut address: u64, mut from: *const u8, mut length: usize) -> bool {
        while length > 0 {
            let Some((to, count)) = self.chunk(address, length, true) else { return false };
            // SAFETY: as in `read`.
            unsafe { std::ptr::copy_nonoverlapping(from, to, count) };
            (address, from, length) =
                (address.wrapping_add(count as u64), from.wrapping_add(count), length - count);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use netvm_guest_memory::FileError;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    fn file(pages: u64, seals: SealFlags) -> OwnedFd {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, pages * PAGE).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    }

    fn request(first: u64, pages: u64) -> MapRequest {
        MapRequest { first: first * PAGE, bytes: pages * PAGE, offset: 0, writable: true }
    }

    #[test]
    fn only_sealed_memory_that_holds_the_range_is_mapped() {
        let mut memory = GuestMemory::default();
        let sealed = file(4, SealFlags::SHRINK);
        assert_eq!(
            memory.map(&request(0, 4), file(4, SealFlags::empty())),
            Err(MapError::File(FileError::Unsealed))
        );
        let pipe = rustix::pipe::pipe().unwrap().0;
        assert_eq!(memory.map(&request(0, 4), &pipe), Err(MapError::File(FileError::Unsealed)));
        assert_eq!(memory.map(&request(0, 5), &sealed), Err(MapError::Short));
        assert_eq!(memory.map(&request(0, 0), &sealed), Err(MapError::Range));
        assert_eq!(memory.map(&MapRequest { first: 5, ..request(0, 1) }, &sealed), Err(MapError::Range));
        assert_eq!(memory.map(&request(u64::MAX / PAGE, 2), &sealed), Err(MapError::Range));
        assert_eq!(memory.map(&request(8, 4), &sealed), Ok(Some(0)));
        assert_eq!(memory.map(&request(8, 4), &sealed), Ok(None), "it is there");
        assert_eq!(memory.map(&request(8, 4), file(4, SealFlags::SHRINK)), Err(MapError::Overlap));
        assert_eq!(memory.map(&request(11, 4), &sealed), Err(MapError::Overlap));
        assert_eq!(memory.map(&request(5, 4), &sealed), Err(MapError::Overlap));
        assert_eq!(memory.map(&request(12, 4), &sealed), Ok(None));
        assert_eq!(memory.map(&request(16, 4), file(4, SealFlags::SHRINK)), Ok(Some(1)));
        assert!(memory.take_changed() && !memory.take_changed());
        let words: Vec<u32> = memory.words().collect();
        let last = words.last_chunk::<WORDS_OF_RANGE>().unwrap();
        assert_eq!(MapRequest::from_words(*last), (request(16, 4), 1));
        assert_eq!(memory.unmap(8 * PAGE, PAGE), Err(MapError::Overlap));
        assert_eq!(memory.unmap(8 * PAGE, 8 * PAGE), Ok(()));
        assert_eq!((memory.count(), memory.take_unused()), (1, vec![0]));
        assert_eq!(memory.unmap(16 * PAGE, 4 * PAGE), Ok(()));
        assert_eq!((memory.count(), memory.take_unused()), (0, vec![1]));
        for n in 0..MAX_RANGES as u64 {
            assert!(memory.map(&request(2 * n, 1), &sealed).is_ok());
        }
        assert_eq!(memory.map(&request(1, 1), &sealed), Err(MapError::TooMany));
    }

    #[test]
    fn copies_cross_from_one_range_to_the_next_and_end_at_the_last() {
        let mut memory = GuestMemory::default();
        memory.map(&request(1, 1), file(1, SealFlags::SHRINK)).unwrap();
        let read_only = MapRequest { writable: false, ..request(2, 1) };
        memory.map(&read_only, file(1, SealFlags::SHRINK)).unwrap();
        let (bytes, mut back) = ([7u8; 64], [1u8; 64]);
        // SAFETY: both arrays have 64 bytes.
        unsafe {
            assert!(memory.write(2 * PAGE - 64, bytes.as_ptr(), 64));
            assert!(!memory.write(2 * PAGE - 63, bytes.as_ptr(), 64), "the second range is read-only");
            assert!(memory.read(2 * PAGE - 32, back.as_mut_ptr(), 64));
            assert_eq!((&back[..32], &back[32..]), (&[7; 32][..], &[0; 32][..]));
            assert!(!memory.read(3 * PAGE - 63, back.as_mut_ptr(), 64));
            assert!(!memory.read(u64::MAX, back.as_mut_ptr(), 64));
        }
        assert_eq!(memory.load(3 * PAGE - 16), Some([0, 0]));
        assert_eq!(memory.load(3 * PAGE - 8), None);
        assert!(memory.store_second(PAGE, 0x0102) && memory.store_status(PAGE, 9));
        assert_eq!(memory.load(PAGE), Some([0, 0x0009_0000_0102]));
        assert!(!memory.store_status(2 * PAGE, 1));
    }
}
