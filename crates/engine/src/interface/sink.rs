//! The built-in sink: receives nothing, and counts and frees packets to send.

use dpdk::Batch;

use crate::interface::device::{Arrival, Device, PortContext};
use crate::memory::Memory;

/// A sink.
pub(crate) struct Sink;

/// Counts packets as sent and frees them, for devices without a wire.
pub(crate) fn swallow(batch: &mut Batch, cx: &PortContext<'_>) {
    cx.counters.tx_packets.add(batch.len() as u64);
    cx.counters.tx_bytes.add(batch.as_slice().iter().map(|mbuf| u64::from(mbuf.data_len())).sum());
    batch.clear();
}

impl Device for Sink {
    fn receive(&mut self, _memory: &Memory, _out: &mut Batch, _wanted: usize, _cx: &PortContext<'_>) {}

    fn enqueue(&mut self, _memory: &Memory, batch: &mut Batch, cx: &PortContext<'_>) {
        swallow(batch, cx);
    }

    fn flush(&mut self, _cx: &PortContext<'_>) -> usize {
        0
    }

    fn is_flushed(&self) -> bool {
        true
    }

    fn arrival(&self) -> Arrival<'_> {
        Arrival::Never
    }
}
