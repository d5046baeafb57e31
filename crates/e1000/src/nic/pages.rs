//! The ring registers: two pages of BAR 0 that the guest can map.
//!
//! ```text
//!  file: 0 ── unused ── 0x2000 ── receive ring ── 0x3000 ── transmit ring ── 0x4000
//!                       RDBAL RDBAH RDLEN RDH RDT   TDBAL TDBAH TDLEN TDH TDT
//! ```
//!
//! None of these registers has a side effect: the worker reads them in each turn. So the client maps them for the
//! guest, and writing TDT or RDT costs the guest a store. The client can write anything there at any time.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::registers::{CSBAH, CSBAL};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Where the pages begin in BAR 0, and where they end.
pub(crate) const FIRST: u32 = 0x2000;
pub(crate) const END: u32 = 0x4000;

/// The pages.
#[derive(Debug)]
pub(crate) struct Pages {
    file: OwnedFd,
    base: NonNull<AtomicU32>,
}

// SAFETY: all accesses are atomic, and the mapping belongs to no thread.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let file = memfd_create("netvm-e1000", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, END.into())?;
        // The client must not be able to take pages away.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let (access, bytes) = (ProtFlags::READ | ProtFlags::WRITE, (END - FIRST) as usize);
        // SAFETY: a new mapping, at an address that the kernel chooses, of a file that holds it and cannot shrink.
        let base =
            unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, &file, FIRST.into()) }?;
        let base = NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { file, base })
    }

    /// The register at an offset in BAR 0; `None` if it is not in these pages.
    #[inline]
    fn register(&self, offset: u32) -> Option<&AtomicU32> {
        if !(FIRST..END).contains(&offset) {
            return None;
        }
        // SAFETY: just checked that it is in the mapping, which lives as long as `self` and whose words are only
        // accessed atomically by this process.
        Some(unsafe { self.base.add(((offset - FIRST) / 4) as usize).as_ref() })
    }

    /// Reads a register; 0 outside.
    #[inline]
    pub(crate) fn load(&self, offset: u32) -> u32 {
        self.register(offset).map_or(0, |register| register.load(Ordering::Acquire))
    }

    /// The address of the communication status block; 0: none. A driver writes CSBAH first, and CSBAL takes effect.
    #[inline]
    pub(crate) fn csb_address(&self) -> u64 {
        match self.load(CSBAL) {
            0 => 0,
            low => u64::from(low) | u64::from(self.load(CSBAH)) << 32,
        }
    }

    /// Writes a register.
    #[inline]
    pub(crate) fn store(&self, offset: u32, value: u32) {
        if let Some(register) = self.register(offset) {
            register.store(value, Ordering::Release);
        }
    }

    /// Whether they hold this register.
    pub(crate) fn holds(offset: u32) -> bool {
        (FIRST..END).contains(&offset)
    }

    /// Sets all to 0.
    pub(crate) fn clear(&self) {
        (FIRST..END).step_by(4).for_each(|offset| self.store(offset, 0));
    }

    /// For the client.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping, and references into it borrow `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), (END - FIRST) as usize) };
    }
}
