// SPDX-License-Identifier: Apache-2.0
//! Counters that the receiving thread writes and the reporting thread reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// What the receiving thread has counted; only that thread writes.
#[derive(Debug, Default)]
pub struct Counters {
    /// Set once the program can receive packets.
    pub ready: Counter,
    /// Packets received.
    pub received: Counter,
    /// Bytes of these packets, without FCS.
    pub bytes: Counter,
    /// Flows that the monitor has seen. A flow counts again if a packet follows after its eviction from the table.
    pub flows: Counter,
    /// Packets that the kernel dropped because this program was too slow.
    pub dropped: Counter,
}

/// A counter with one writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`. Only one thread may write.
    pub fn add(&self, count: u64) {
        self.set(self.get().wrapping_add(count));
    }

    /// Replaces the value. Only one thread may write.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
