//! Counters that the receiving thread writes and the reporting thread reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// Each has one writer.
#[derive(Debug, Default)]
pub struct Counters {
    /// Set when packets can be received.
    pub ready: Counter,
    /// Packets received.
    pub received: Counter,
    /// Their bytes, without FCS.
    pub bytes: Counter,
    /// Flows seen by the monitor: first packets of a flow, or of one that the table had evicted.
    pub flows: Counter,
    /// Packets that the kernel dropped because this program was too slow.
    pub dropped: Counter,
}

/// A counter with one writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to it; only one thread may.
    pub fn add(&self, count: u64) {
        self.set(self.get().wrapping_add(count));
    }

    /// Replaces it; only one thread may.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
