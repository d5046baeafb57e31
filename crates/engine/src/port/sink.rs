//! The built-in sink: receives nothing, counts and frees what it is sent.

use dpdk::Batch;

use super::{Arrival, Device};
use crate::counters::PortCounters;
use crate::memory::Memory;

/// A sink.
pub(crate) struct Sink;

/// Counts packets as sent and frees them, for devices without a wire.
pub(crate) fn swallow(batch: &mut Batch, counters: &PortCounters) {
    counters.tx_packets.add(batch.len() as u64);
    counters.tx_bytes.add(batch.as_slice().iter().map(|mbuf| u64::from(mbuf.data_len())).sum());
    batch.clear();
}

impl Device for Sink {
    fn receive(&mut self, _memory: &Memory, _out: &mut Batch, _wanted: usize, _counters: &PortCounters) {}

    fn enqueue(&mut self, _memory: &Memory, batch: &mut Batch, counters: &PortCounters) {
        swallow(batch, counters);
    }

    fn flush(&mut self, _counters: &PortCounters) -> usize {
        0
    }

    fn is_flushed(&self) -> bool {
        true
    }

    fn arrival(&self) -> Arrival<'_> {
        Arrival::Never
    }
}
