// SPDX-License-Identifier: Apache-2.0
//! A file in memory, mapped as words that all its processes access atomically.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A mapped part of a file that cannot shrink.
#[derive(Debug)]
pub(crate) struct Words {
    file: OwnedFd,
    base: NonNull<AtomicU32>,
    bytes: usize,
}

// SAFETY: all accesses are atomic, and the mapping belongs to no thread.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// A new file of `end` bytes, mapped from `first` on. Both are multiples of the page size.
    pub(crate) fn new(name: &str, first: u32, end: u32) -> Result<Self, Errno> {
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, end.into())?;
        // Others who have it must not be able to take pages away.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::map(file, first, end)
    }

    /// A file that [`Self::new`] has made, perhaps in another process.
    pub(crate) fn reopen(file: OwnedFd, first: u32, end: u32) -> Result<Self, Errno> {
        let seals = rustix::fs::fcntl_get_seals(&file)?;
        if !seals.contains(SealFlags::SHRINK) || fstat(&file)?.st_size as u64 != u64::from(end) {
            return Err(Errno::INVAL);
        }
        Self::map(file, first, end)
    }

    fn map(file: OwnedFd, first: u32, end: u32) -> Result<Self, Errno> {
        let bytes = end.checked_sub(first).ok_or(Errno::INVAL)? as usize;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses, of a file that holds it and cannot shrink.
        let base =
            unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, &file, first.into()) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { file, base, bytes })
    }

    /// A word; `None` if it is not in the mapping.
    #[inline]
    pub(crate) fn get(&self, number: usize) -> Option<&AtomicU32> {
        if number >= self.bytes / 4 {
            return None;
        }
        // SAFETY: just checked that it is in the mapping, which lives as long as `self` and whose words are only
        // accessed atomically by this process.
        Some(unsafe { self.base.add(number).as_ref() })
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: `map` made the mapping, and references into it borrow `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
