// SPDX-License-Identifier: Apache-2.0
//! Ids that the engine assigns, and those that it shares with the configuration.

pub use netvm_ids::{ChainId, GroupId, PortId, RoleId, RouterId};

netvm_ids::id! {
    /// A worker.
    WorkerId(u8);
    /// A thread of an NF, numbered within its trust group. 0 is the engine.
    NfThreadId(u8);
    /// A link: a worker's two rings with one NF thread. Unique in the engine.
    LinkId(u16);
    /// A memory: the region of one group on one NUMA node. Unique in the engine.
    MemoryId(u16);
    /// A packet capture that runs. Never reused.
    CaptureId(u32);
    /// A trace of real packets that runs. Never reused.
    TraceId(u32);
    /// An attached NF: one process with all its threads. Never reused.
    InstanceId(u32);
}

/// Bit mask of NF threads.
pub(crate) fn mask_of(nf_threads: &[NfThreadId]) -> u64 {
    nf_threads.iter().fold(0, |mask, nf_thread| mask | 1 << nf_thread.0)
}

/// Stores a value in a list that is indexed by id, growing it.
pub(crate) fn put<T>(list: &mut Vec<Option<T>>, index: usize, value: T) {
    if list.len() <= index {
        list.resize_with(index + 1, || None);
    }
    list[index] = Some(value);
}
