// SPDX-License-Identifier: Apache-2.0
//! The built-in sink: receives nothing, and counts and frees packets to send.

use dpdk::Batch;

use super::control::{Control, Opened, Opening, Queues};
use super::device::{Arrival, Device, PortContext};
use crate::memory::Memory;

/// Both sides of a sink.
struct Sink;

/// Opens a sink for each worker, unless the configuration names workers: they share nothing.
pub(super) fn open(opening: &Opening<'_>) -> Opened {
    let count = if opening.workers.is_empty() { opening.memories.len() } else { opening.workers.len() };
    let mut queues = Queues::new();
    for n in 0..count {
        queues.push((opening.queue(n).0, Box::new(Sink)));
    }
    Opened::new(queues, "built-in sink", Sink)
}

impl Control for Sink {
    fn further_queue(&self) -> Option<Box<dyn Device>> {
        Some(Box::new(Self))
    }
}

/// Counts packets as sent and frees them, for devices without a wire.
pub(super) fn count_as_sent(batch: &mut Batch, cx: &PortContext<'_>) {
    cx.counters.tx_packets.add(batch.len() as u64);
    cx.counters.tx_bytes.add(batch.as_slice().iter().map(|mbuf| u64::from(mbuf.data_len())).sum());
    batch.clear();
}

impl Device for Sink {
    fn receive(&mut self, _memory: &Memory, _out: &mut Batch, _wanted: usize, _cx: &PortContext<'_>) {}

    fn enqueue(&mut self, _memory: &Memory, batch: &mut Batch, cx: &PortContext<'_>) {
        count_as_sent(batch, cx);
    }

    fn flush(&mut self, _cx: &PortContext<'_>) -> usize {
        0
    }

    fn is_flushed(&self) -> bool {
        true
    }

    fn drop_unsent(&mut self, _cx: &PortContext<'_>) {}

    fn arrival(&self) -> Arrival<'_> {
        Arrival::Never
    }
}
