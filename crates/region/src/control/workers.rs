// SPDX-License-Identifier: Apache-2.0
//! The workers of the engine, which change while NFs are attached. The engine writes, the NF reads.
//!
//! ```text
//!  2064   number of workers; written last, with release
//!  2068   the region of each worker's packets, a byte each
//!  2100   number of workers that stay: the NF returns the buffers that it keeps of the others; since layout 11
//! ```
//!
//! The engine announces a worker before it writes to a ring of it, and withdraws it after all its packets are back. A
//! new epoch of the next-hop table tells the NF to look.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use super::{Control, MAX_WORKERS};

const AT: u64 = 2064;

#[repr(C)]
struct Block {
    count: AtomicU32,
    regions: [AtomicU8; MAX_WORKERS],
    staying: AtomicU32,
}

const _: () = assert!(AT as usize + size_of::<Block>() <= 2560);

impl Control {
    /// Announces the workers that the engine has now: for each, the region in which its packets are. There are at most
    /// as many as the header says.
    pub fn set_workers(&self, regions: &[u8]) {
        let block = self.block();
        for (to, region) in block.regions.iter().zip(regions) {
            to.store(*region, Ordering::Relaxed);
        }
        let count = regions.len().min(usize::from(self.header().workers));
        block.staying.store(count as u32, Ordering::Relaxed);
        block.count.store(count as u32, Ordering::Release);
    }

    /// Announces that workers from number `staying` on are about to end.
    pub fn set_staying(&self, staying: u16) {
        self.block().staying.store(staying.into(), Ordering::Relaxed);
    }

    /// The number of workers that stay: all of them, unless some are about to end.
    #[must_use]
    pub fn staying(&self) -> u16 {
        u16::try_from(self.block().staying.load(Ordering::Relaxed)).unwrap_or(u16::MAX).min(self.workers())
    }

    /// The number of workers that the engine has now, at most as many as the header says.
    #[must_use]
    pub fn workers(&self) -> u16 {
        let count = self.block().count.load(Ordering::Acquire);
        u16::try_from(count).unwrap_or(u16::MAX).min(self.header().workers)
    }

    /// The region of a worker's packets; `None` if the engine has no such worker now.
    #[inline(always)]
    #[must_use]
    pub fn region_of(&self, worker: u8) -> Option<usize> {
        let block = self.block();
        if u32::from(worker) >= block.count.load(Ordering::Relaxed) {
            return None;
        }
        Some(usize::from(block.regions.get(usize::from(worker))?.load(Ordering::Relaxed)))
    }

    #[inline(always)]
    fn block(&self) -> &Block {
        // SAFETY: within the mapping's first page; all fields are atomics.
        unsafe { self.mapping().at::<Block>(AT).as_ref() }
    }
}
