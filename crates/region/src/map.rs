// SPDX-License-Identifier: Apache-2.0
//! Sealed memfds and their mappings. In: a size, or a descriptor from a peer. Out: mapped memory that cannot shrink.

use std::ffi::{CString, c_void};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, SeekFrom, Stat, fallocate, fcntl_add_seals, fcntl_get_seals,
    fstat, fstatfs, ftruncate, memfd_create, seek,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use lost_pages::Watch;

pub mod lost_pages;

/// Bytes of a block of `stat`.
const BLOCK: i64 = 512;

/// File system type of sysfs (`linux/magic.h`).
const SYSFS_MAGIC: u64 = 0x6265_6572;

/// The pages to request for a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Huge pages of 2 MiB if enough are free, else normal pages with a request for transparent huge pages.
    HugeIfFree,
    /// Normal pages.
    Normal,
}

/// A kind of memfd.
#[derive(Clone, Copy)]
struct MemfdKind {
    flags: MemfdFlags,
    /// Seals besides those that all have.
    seals: SealFlags,
}

/// The pages of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Reserved huge pages.
    Huge,
    /// Normal pages, which the kernel may merge into transparent huge pages.
    Normal,
}

/// Why shared memory cannot be created or mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The machine has too little free memory.
    #[error(
        "{name}: {wanted_mib} MiB of packet memory requested, {available_mib} MiB available: lower `buffers` or free memory"
    )]
    Memory {
        /// The use of the memory.
        name: String,
        /// Requested MiB.
        wanted_mib: u64,
        /// MiB available, by the kernel.
        available_mib: u64,
    },
    /// The passed file is smaller than its contents.
    #[error(
        "{name}: the passed memory has {actual} bytes instead of {expected}: the peer was built for another layout"
    )]
    Size {
        /// The use of the memory.
        name: String,
        /// Bytes expected.
        expected: u64,
        /// Bytes found.
        actual: u64,
    },
    /// The passed file could shrink while it is mapped.
    #[error("{name}: the passed memory is not sealed against shrinking")]
    NotSealed {
        /// The use of the memory.
        name: String,
    },
    /// A system call failed.
    #[error("{name}: {step}: {source}")]
    System {
        /// The use of the memory.
        name: String,
        /// The failed call.
        step: &'static str,
        /// Its error.
        source: io::Error,
    },
}

/// Shared memory, mapped from its start: a memfd, or a VM's view of one as the memory of a PCI device.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    length: usize,
    fd: OwnedFd,
    pages: PageKind,
    writable: bool,
    /// Of created memory.
    initial: Option<InitialState>,
}

/// How created memory was before any peer had it.
#[derive(Debug)]
struct InitialState {
    watch: Watch,
    /// Blocks of the file, as `stat` counts them.
    blocks: i64,
}

// SAFETY: a Mapping is an address range and a file; users of `base` are responsible for what they read and write.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Creates a memfd of `bytes`: zeroed, sealed against growing, shrinking and further seals, populated, and on NUMA
    /// node `node` if that exists.
    ///
    /// The file's length is the next power of two, because a VM sees it as the memory of a PCI device, which has no
    /// other sizes. The part beyond `bytes` has no pages until a peer writes there, and is not mapped here.
    ///
    /// # Errors
    /// [`MapError::Memory`] if the machine has less memory available, [`MapError::System`] if a call fails.
    pub fn create(name: &str, bytes: u64, pages: Pages, node: Option<u32>) -> Result<Self, MapError> {
        let normal = MemfdKind { flags: MemfdFlags::empty(), seals: SealFlags::empty() };
        let huge = MemfdKind { flags: MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB, ..normal };
        if pages == Pages::HugeIfFree
            && bytes.is_multiple_of(2 << 20)
            && let Ok(mapping) = Self::create_with(name, bytes, huge, node)
        {
            return Ok(mapping);
        }
        Self::check_available(name, bytes)?;
        Self::create_with(name, bytes, normal, node)
    }

    /// As [`Mapping::create`] in normal pages, but also sealed against later writable mappings and writes, so that it
    /// can be passed to readers. This mapping is writable.
    ///
    /// # Errors
    /// As for [`Mapping::create`]; before Linux 5.1 the kernel refuses the seal.
    pub fn create_for_readers(name: &str, bytes: u64) -> Result<Self, MapError> {
        Self::check_available(name, bytes)?;
        let kind = MemfdKind { flags: MemfdFlags::empty(), seals: SealFlags::FUTURE_WRITE };
        Self::create_with(name, bytes, kind, None)
    }

    /// As [`Mapping::create`] in normal pages, but without pages until [`Mapping::populate`]. [`Mapping::is_intact`]
    /// does not apply to it.
    ///
    /// # Errors
    /// [`MapError::System`] if a call fails.
    pub fn create_empty(name: &str, bytes: u64) -> Result<Self, MapError> {
        let kind = MemfdKind { flags: MemfdFlags::empty(), seals: SealFlags::empty() };
        Self::create_file(name, bytes, kind, |mapping| {
            mapping.ask_for_huge_pages();
            Ok(())
        })
    }

    /// Gives created memory all of its pages.
    ///
    /// # Errors
    /// [`MapError::Memory`] if the machine has less memory available, [`MapError::System`] if the kernel has none.
    pub fn populate(&self, name: &str) -> Result<(), MapError> {
        Self::check_available(name, self.length as u64)?;
        self.fill(name)
    }

    /// As [`Mapping::populate`], without a look at what is available.
    fn fill(&self, name: &str) -> Result<(), MapError> {
        let base = self.base.as_ptr().cast::<c_void>();
        // SAFETY: the range is this mapping, whose contents stay as they are.
        unsafe { madvise(base, self.length, Advice::LinuxPopulateWrite) }
            .map_err(|error| system(name, "populate", error.into()))
    }

    fn check_available(name: &str, bytes: u64) -> Result<(), MapError> {
        if let Some(available) = available_bytes()
            && available < bytes
        {
            let mib = |bytes| bytes / (1 << 20);
            let (wanted_mib, available_mib) = (mib(bytes), mib(available));
            return Err(MapError::Memory { name: name.to_owned(), wanted_mib, available_mib });
        }
        Ok(())
    }

    fn create_with(name: &str, bytes: u64, kind: MemfdKind, node: Option<u32>) -> Result<Self, MapError> {
        let huge = kind.flags.contains(MemfdFlags::HUGETLB);
        Self::create_file(name, bytes, kind, |mapping| {
            if let Some(node) = node {
                // SAFETY: the range is the new mapping, which is not shared yet.
                unsafe { bind_to_node(mapping.base.as_ptr().cast(), mapping.length, node) };
            }
            if !huge {
                mapping.ask_for_huge_pages();
            }
            mapping.fill(name)
        })
    }

    /// Asks for transparent huge pages.
    fn ask_for_huge_pages(&self) {
        // Advice only: a kernel without transparent huge pages for shared memory ignores it.
        // SAFETY: the range is this mapping, whose contents stay as they are.
        let _ = unsafe { madvise(self.base.as_ptr().cast(), self.length, Advice::LinuxHugepage) };
    }

    /// A new memfd, sealed after `fill` has given it its pages.
    fn create_file(
        name: &str,
        bytes: u64,
        kind: MemfdKind,
        fill: impl FnOnce(&Self) -> Result<(), MapError>,
    ) -> Result<Self, MapError> {
        let fail = |step| move |e: rustix::io::Errno| system(name, step, e.into());
        let label = CString::new(format!("netvm-{name}")).map_err(|e| system(name, "name", e.into()))?;
        let fd = memfd_create(&label, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | kind.flags)
            .map_err(fail("memfd_create"))?;
        let whole = bytes.checked_next_power_of_two().unwrap_or(bytes);
        ftruncate(&fd, whole).map_err(fail("ftruncate"))?;
        let mut mapping = Self::map(name, fd, bytes, true)?;
        let huge = kind.flags.contains(MemfdFlags::HUGETLB);
        mapping.pages = if huge { PageKind::Huge } else { PageKind::Normal };
        fill(&mapping)?;
        // SEAL: a peer could add FUTURE_WRITE otherwise, and then no other peer could map the memory any more.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | kind.seals;
        fcntl_add_seals(&mapping.fd, seals).map_err(fail("seal"))?;
        let watch = Watch::begin(mapping.base.as_ptr() as usize, mapping.length);
        let watch = watch.map_err(|error| system(name, "handle SIGBUS", error))?;
        let watch = watch.ok_or_else(|| system(name, "watch", io::ErrorKind::QuotaExceeded.into()))?;
        let blocks = fstat(&mapping.fd).map_err(fail("fstat"))?.st_blocks;
        mapping.initial = Some(InitialState { watch, blocks });
        Ok(mapping)
    }

    /// Maps a memfd from another process, or in a VM the memory of a PCI device (`resource2` in sysfs), which cannot
    /// shrink.
    ///
    /// # Errors
    /// [`MapError`] if it is smaller than `bytes`, if it is not sealed against shrinking, or if a call fails.
    pub fn open(name: &str, fd: OwnedFd, bytes: u64, writable: bool) -> Result<Self, MapError> {
        let fail = |step| move |e: rustix::io::Errno| system(name, step, e.into());
        let actual = fstat(&fd).map_err(fail("fstat"))?.st_size as u64;
        if actual < bytes || bytes == 0 {
            return Err(MapError::Size { name: name.to_owned(), expected: bytes, actual });
        }
        let is_device = fstatfs(&fd).is_ok_and(|system| system.f_type as u64 == SYSFS_MAGIC);
        if !is_device && !fcntl_get_seals(&fd).map_err(fail("seals"))?.contains(SealFlags::SHRINK) {
            return Err(MapError::NotSealed { name: name.to_owned() });
        }
        Self::map(name, fd, bytes, writable)
    }

    fn map(name: &str, fd: OwnedFd, bytes: u64, writable: bool) -> Result<Self, MapError> {
        let length = usize::try_from(bytes).map_err(|e| system(name, "size", io::Error::other(e)))?;
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: the kernel chooses the address of the new mapping, so it replaces no existing one.
        let base = unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, &fd, 0) }
            .map_err(|e| system(name, "mmap", e.into()))?;
        let base =
            NonNull::new(base.cast()).ok_or_else(|| system(name, "mmap", io::ErrorKind::Other.into()))?;
        Ok(Self { base, length, fd, pages: PageKind::Normal, writable, initial: None })
    }

    /// Whether created memory still has all of its pages. A peer can punch holes into the file; an access then gets a
    /// new page of zeroes, or the memory is marked by [`lost_pages`].
    #[must_use]
    pub fn is_intact(&self) -> bool {
        let Some(initial) = &self.initial else { return true };
        // More blocks: the file's length is a power of two, and a peer wrote behind the used part. It could hide as
        // many holes, so the pages are looked for one by one. hugetlbfs cannot do that, but there no honest peer
        // writes.
        let has_all = |stat: Stat| {
            stat.st_blocks == initial.blocks
                || stat.st_blocks >= stat.st_size / BLOCK
                || (self.pages == PageKind::Normal
                    && stat.st_blocks > initial.blocks
                    && self.first_hole() >= self.length as u64)
        };
        !initial.watch.is_marked() && fstat(&self.fd).is_ok_and(has_all)
    }

    /// Gives pages of created memory back to the kernel, also if other processes map them. Best effort. Nothing must
    /// rely on their contents, nor on [`Mapping::is_intact`].
    pub fn discard(&self, from: u64, bytes: u64) {
        let _ = fallocate(&self.fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, from, bytes);
    }

    fn first_hole(&self) -> u64 {
        // No code uses the offset that this moves: the memory is mapped.
        seek(&self.fd, SeekFrom::Hole(0)).unwrap_or_default()
    }

    /// First byte; page-aligned.
    #[inline(always)]
    #[must_use]
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes mapped.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Always `false`.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The pages of the mapping.
    #[must_use]
    pub const fn pages(&self) -> PageKind {
        self.pages
    }

    /// Whether the mapping is writable.
    #[must_use]
    pub const fn is_writable(&self) -> bool {
        self.writable
    }

    /// Address of the `T` at byte `at`.
    ///
    /// # Panics
    /// If the value exceeds the mapping or is not aligned. Offsets come from checked layouts, so this is a defect of
    /// netvm, not of a peer.
    #[inline]
    #[must_use]
    pub fn at<T>(&self, at: u64) -> NonNull<T> {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let fits = at.checked_add(size_of::<T>()).is_some_and(|end| end <= self.length);
        assert!(
            fits && at.is_multiple_of(align_of::<T>()),
            "byte {at} of a mapping of {} bytes",
            self.length
        );
        // SAFETY: the assertion above keeps `at` within the mapping.
        unsafe { self.base.add(at) }.cast()
    }
}

impl AsFd for Mapping {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map` and is unmapped only here; callers of `base` promised not to outlive
        // it. A failure leaves the range mapped, which is harmless.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
    }
}

fn system(name: &str, step: &'static str, source: io::Error) -> MapError {
    MapError::System { name: name.to_owned(), step, source }
}

/// Asks the kernel for pages of one node. Best effort: with a node that does not exist (a test's topology) the pages
/// only come from elsewhere.
///
/// # Safety
/// `base` and `length` are a mapping.
unsafe fn bind_to_node(base: *mut c_void, length: usize, node: u32) {
    let Some(mask) = 1u64.checked_shl(node) else { return };
    // SAFETY: mbind reads one word of mask and changes only the policy of the range, which the caller owns.
    unsafe {
        libc::syscall(libc::SYS_mbind, base, length, libc::MPOL_PREFERRED, &raw const mask, 65u64, 0u32);
    }
}

fn available_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests;
