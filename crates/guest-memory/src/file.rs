// SPDX-License-Identifier: Apache-2.0
//! Files that may hold guest memory.

use std::os::fd::AsFd;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};

/// The file system of memfds without huge pages (`TMPFS_MAGIC`).
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

/// Whether the kernel itself provides the file's pages.
///
/// Even fstat, fstatfs and close can wait for the server of a file, so this is a query that the kernel answers itself:
/// whether the file supports seals (`F_GET_SEALS`). Only files in memory do: memfds, and files on tmpfs and hugetlbfs.
/// Other file systems are not allowed, because a process may serve their device (loop over FUSE, nbd, ublk), and at
/// best they wait for a disk and a journal.
#[must_use]
pub fn is_in_memory(file: impl AsFd) -> bool {
    fcntl_get_seals(file).is_ok()
}

/// What tells a file from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// `None` if the kernel does not say.
    #[must_use]
    pub fn of(file: impl AsFd) -> Option<Self> {
        fstat(file).ok().map(|found| Self { device: found.st_dev, inode: found.st_ino })
    }
}

/// A file may not hold memory that is accessed without a handler of SIGBUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// It may shrink.
    #[error("a file that is not sealed against shrinking")]
    Unsealed,
    /// Where a hole was punched, a page may be missing when no huge page is free.
    #[error("a file with huge pages")]
    Huge,
}

/// A file of which no access within its size can fail: a memfd of ordinary pages that cannot shrink. QEMU's
/// `memory-backend-memfd` seals its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedFile {
    /// Which file it is.
    pub id: FileId,
    /// Its size.
    pub bytes: u64,
}

impl SealedFile {
    /// Checks a file.
    ///
    /// # Errors
    /// [`FileError`] if it is another kind of file.
    pub fn check(file: impl AsFd) -> Result<Self, FileError> {
        if !fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
            return Err(FileError::Unsealed);
        }
        if !fstatfs(&file).is_ok_and(|system| system.f_type == TMPFS) {
            return Err(FileError::Huge);
        }
        let found = fstat(&file).map_err(|_| FileError::Unsealed)?;
        Ok(Self { id: FileId { device: found.st_dev, inode: found.st_ino }, bytes: found.st_size as u64 })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    fn memfd(flags: MemfdFlags, seals: SealFlags) -> Option<OwnedFd> {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | flags).ok()?;
        ftruncate(&file, 2 << 20).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        Some(file)
    }

    #[test]
    fn only_memory_that_cannot_shrink_is_sealed() {
        let ordinary = MemfdFlags::empty();
        let (open, sealed) =
            (memfd(ordinary, SealFlags::GROW).unwrap(), memfd(ordinary, SealFlags::SHRINK).unwrap());
        assert_eq!(SealedFile::check(&open), Err(FileError::Unsealed));
        let found = SealedFile::check(&sealed).unwrap();
        assert_eq!((Some(found.id), found.bytes), (FileId::of(&sealed), 2 << 20));
        assert_ne!(FileId::of(&open), FileId::of(&sealed));
        // A kernel may have none.
        if let Some(huge) = memfd(MemfdFlags::HUGETLB, SealFlags::SHRINK) {
            assert_eq!(SealedFile::check(&huge), Err(FileError::Huge));
            assert!(is_in_memory(&huge));
        }
        assert!(is_in_memory(&open) && is_in_memory(&sealed));
        let program = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(SealedFile::check(&program), Err(FileError::Unsealed));
        let (pipe, _) = rustix::pipe::pipe().unwrap();
        assert!(!is_in_memory(&pipe));
    }
}
