// SPDX-License-Identifier: Apache-2.0
//! The rings of empty buffers, by which workers give an NF thread buffers for packets of its own: one for each thread
//! and worker. They are behind all that control memory of layout 10 has, and its header says so behind that of layout
//! 10. So an NF that was built for layout 10 can use the same memory, as one in a VM must, which cannot say its layout
//! before it has the memory.

use netvm_ring::{RingMemory, ring_bytes};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Control, ControlError, ControlHeader};

/// The first layout with these rings.
const SINCE: u32 = 11;
/// Most buffers of a quota: a ring has room for as many.
const MAX_BUFFERS: u32 = 65_536;

/// What each thread of an NF may keep of each worker's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Quota {
    /// Most buffers for packets of its own.
    pub allocate: u32,
    /// Most packets that it holds.
    pub hold: u32,
}

impl Quota {
    /// The quota of an NF that was built for this layout.
    #[must_use]
    pub const fn of_layout(self, layout: u32) -> Self {
        if layout < SINCE { Self { allocate: 0, hold: 0 } } else { self }
    }

    /// Most buffers that the thread keeps.
    #[must_use]
    pub const fn most(self) -> u32 {
        self.allocate.saturating_add(self.hold)
    }
}

impl ControlHeader {
    /// Places the rings behind all that layout 10 has.
    pub(super) fn lay_out_stock(&mut self) {
        if self.quota.allocate == 0 {
            (self.stock_at, self.stock_stride, self.stock_capacity) = (0, 0, 0);
            return;
        }
        self.stock_capacity = self.quota.allocate.clamp(2, MAX_BUFFERS).next_power_of_two();
        self.stock_stride = ring_bytes(self.stock_capacity).next_multiple_of(128) as u32;
        self.stock_at = self.bytes;
    }

    /// Where these rings end.
    pub(super) fn stock_end(&self) -> u64 {
        let pairs = u64::from(self.threads) * u64::from(self.workers);
        self.bytes + (pairs * u64::from(self.stock_stride)).next_multiple_of(4096)
    }

    /// Bytes of the whole memory.
    pub(super) fn all_bytes(&self) -> u64 {
        self.stock_end() + self.mailbox_bytes()
    }

    pub(super) const fn check_quota(&self) -> Result<(), ControlError> {
        if self.quota.allocate > MAX_BUFFERS || self.quota.hold > MAX_BUFFERS {
            return Err(ControlError::Unsound("quota of buffers"));
        }
        Ok(())
    }
}

impl Control {
    /// What each thread may keep of each worker's buffers.
    #[must_use]
    pub const fn quota(&self) -> Quota {
        self.header.quota
    }

    /// The ring of empty buffers from a worker to a thread of the NF; `None` if the NF gets none.
    ///
    /// # Panics
    /// If the thread or the worker does not exist.
    #[must_use]
    pub fn ring_of_buffers(&self, thread: u16, worker: u16) -> Option<RingMemory> {
        let h = &self.header;
        assert!(thread < h.threads && worker < h.workers, "thread {thread}, worker {worker} of {h:?}");
        if h.stock_capacity == 0 {
            return None;
        }
        let index = u64::from(thread) * u64::from(h.workers) + u64::from(worker);
        let base = self.mapping.at(h.stock_at + index * u64::from(h.stock_stride));
        // SAFETY: the checked header keeps `stock_stride` bytes, aligned to 128, there; Control keeps them mapped, and
        // every ring end keeps the Control.
        unsafe { RingMemory::from_raw(base, h.stock_capacity) }.ok()
    }
}
