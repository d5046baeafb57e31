// SPDX-License-Identifier: Apache-2.0
//! Memory for the bytes of packets, which the caller maps and may share.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Memory that holds the buffers of a [`crate::Pool`].
///
/// # Safety
/// As long as the value lives, `len` bytes from `base` stay mapped, readable and writable, at that address, and they
/// hold nothing but packets: no reference is made to them, and nothing relies on their contents. Other processes may
/// map them and write at any time. All three functions always return the same.
pub unsafe trait PacketMemory: Send + Sync {
    /// First byte.
    fn base(&self) -> NonNull<u8>;

    /// Number of bytes.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the pages that the memory is made of. Devices on systems without an IOMMU need huge ones.
    fn page_bytes(&self) -> usize {
        4096
    }
}

/// Private packet memory in ordinary pages: for tests, benchmarks, and pools that are not shared.
#[derive(Debug)]
pub struct HeapMemory {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it gives out addresses only; PacketMemory restricts their use.
unsafe impl Send for HeapMemory {}
// SAFETY: as above.
unsafe impl Sync for HeapMemory {}

impl HeapMemory {
    /// Zeroed, page-aligned memory of at least `bytes` bytes; `None` if the allocation fails.
    #[must_use]
    pub fn new(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes.max(1).checked_next_multiple_of(4096)?, 4096).ok()?;
        // SAFETY: the layout is not of size 0.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { base, layout })
    }
}

// SAFETY: the allocation is made in `new`, freed in `drop`, and nothing else refers to it.
unsafe impl PacketMemory for HeapMemory {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for HeapMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}
