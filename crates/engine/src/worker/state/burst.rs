// SPDX-License-Identifier: Apache-2.0
//! The data that stages pass on for a burst: contexts by value, packets and lookup results by reference.

use dpdk::Batch;

use super::lookup_results::LookupResults;
use crate::ids::MemoryId;
use crate::snapshot::Snapshot;

/// The context of every stage: the snapshot in force, and the memory of the packets.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) memory: MemoryId,
    /// The rx stage has checked that the chain of these packets has room.
    pub(crate) admitted: bool,
    /// Ports without a device that they have passed in this turn.
    pub(crate) passed: u8,
}

impl<'a> Context<'a> {
    /// For packets of this memory, whose chain may be full.
    #[inline(always)]
    pub(crate) const fn new(snapshot: &'a Snapshot, memory: MemoryId) -> Self {
        Self { snapshot, memory, admitted: false, passed: 0 }
    }
}

/// Packets that are looked up in rules, and the results. Reused from burst to burst.
pub(crate) struct Burst {
    pub(crate) batch: Batch,
    /// Packets whose headers cannot be read; they have no result.
    pub(crate) malformed: Batch,
    pub(crate) results: Box<LookupResults>,
}

impl Burst {
    pub(crate) fn new() -> Self {
        Self { batch: Batch::new(), malformed: Batch::new(), results: Box::new(LookupResults::new()) }
    }
}
