// SPDX-License-Identifier: Apache-2.0
//! The ring registers: two pages of BAR 0 that the guest can map.
//!
//! ```text
//!  file: 0 ── unused ── 0x2000 ── receive ring ── 0x3000 ── transmit ring ── 0x4000
//!                       RDBAL RDBAH RDLEN RDH RDT   TDBAL TDBAH TDLEN TDH TDT
//! ```
//!
//! None of these registers has a side effect: the worker reads them in each turn. So the client maps them for the
//! guest, and writing TDT or RDT costs the guest a store. The client can write anything there at any time.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use super::registers::{CSBAH, CSBAL};
use crate::words::Words;

/// Where the pages begin in BAR 0, and where they end.
pub(crate) const FIRST: u32 = 0x2000;
pub(crate) const END: u32 = 0x4000;

/// The pages.
#[derive(Debug)]
pub(crate) struct Pages(Words);

impl Pages {
    pub(crate) fn new() -> Result<Self, Errno> {
        Words::new("netvm-e1000", FIRST, END).map(Self)
    }

    /// Those of another process.
    pub(crate) fn reopen(file: OwnedFd) -> Result<Self, Errno> {
        Words::reopen(file, FIRST, END).map(Self)
    }

    /// The register at an offset in BAR 0; `None` if it is not in these pages.
    #[inline]
    fn register(&self, offset: u32) -> Option<&AtomicU32> {
        self.0.get(offset.checked_sub(FIRST)? as usize / 4)
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
        self.0.file()
    }
}
