// SPDX-License-Identifier: Apache-2.0
//! An array with one value, which this process maps: words that programs and the process share.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::map::{Map, MapKind, MapShape};

/// `BPF_F_MMAPABLE`.
const FLAG_MMAPABLE: u32 = 1 << 10;

/// The words. They begin as zeros.
#[derive(Debug)]
pub struct WordMap {
    map: Map,
    words: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an address range belongs to the process, not to a thread, and its words are accessed as atomics only.
unsafe impl Send for WordMap {}
// SAFETY: as above.
unsafe impl Sync for WordMap {}

impl WordMap {
    /// Makes an array whose value has so many bytes, a multiple of eight.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new(bytes: u32) -> io::Result<Self> {
        let shape = MapShape {
            kind: MapKind::Array,
            key_bytes: 4,
            value_bytes: bytes,
            entries: 1,
            flags: FLAG_MMAPABLE,
        };
        let map = Map::new(shape)?;
        // SAFETY: sysconf takes no pointer.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let length = (bytes as usize).next_multiple_of(page);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let fd = map.as_fd().as_raw_fd();
        // SAFETY: without MAP_FIXED the kernel chooses addresses that nothing else uses.
        let address = unsafe { libc::mmap(ptr::null_mut(), length, access, libc::MAP_SHARED, fd, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let words = NonNull::new(address.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Self { map, words, bytes: length })
    }

    /// The word of four bytes at `at`, a multiple of four; `None` if it is not in the array.
    #[must_use]
    pub fn word(&self, at: usize) -> Option<&AtomicU32> {
        let word = self.place(at, size_of::<AtomicU32>())?.cast::<AtomicU32>();
        // SAFETY: in the mapping, which lives as long as `self`, and aligned; the kernel's programs access it whole.
        word.is_aligned().then(|| unsafe { &*word })
    }

    /// The word of eight bytes at `at`, a multiple of eight; `None` if it is not in the array.
    #[must_use]
    pub fn double(&self, at: usize) -> Option<&AtomicU64> {
        let word = self.place(at, size_of::<AtomicU64>())?.cast::<AtomicU64>();
        // SAFETY: as above.
        word.is_aligned().then(|| unsafe { &*word })
    }

    fn place(&self, at: usize, length: usize) -> Option<*mut u8> {
        let end = at.checked_add(length)?;
        (end <= self.bytes).then(|| self.words.as_ptr().wrapping_add(at))
    }
}

impl AsFd for WordMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

impl Drop for WordMap {
    fn drop(&mut self) {
        // SAFETY: this object made the mapping, and references into it borrow the object.
        unsafe { libc::munmap(self.words.as_ptr().cast(), self.bytes) };
    }
}
