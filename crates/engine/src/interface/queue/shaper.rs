// SPDX-License-Identifier: Apache-2.0
//! The shaper of a port. In: packets to send, each with its queue: that of the name that a rule gave, else that of the
//! DSCP. Out: bursts for the device, in the order and at the rate of the port's `qos`; `netvm_switch::qos` decides
//! both.
//!
//! Packets wait in the engine's memory for the port, so those of other trust groups are copied first: a standing
//! queue holds no buffers of other groups.
//!
//! Cost: for each packet its queue, two moves of the mbuf pointer and one update of a token bucket, on ports with a
//! shaper; other ports check one pointer per burst.

use std::sync::Arc;

use dpdk::{Batch, Mbuf};
use netvm_clock as clock;
use netvm_model::{QosConfig, QueueConfig, QueueId};
use netvm_switch::qos::{CodelOptions, Dequeued, Qos, QosError, QueueOptions, Service, ShaperOptions};

use crate::counters::QueueCounters;
use crate::drop_reason::DropReason;
use crate::interface::device::PortContext;

/// CoDel's interval (RFC 8289 section 4.3).
const CODEL_INTERVAL_MICROS: u64 = 100_000;
/// In the table of names: the port has no queue of that name.
const NO_QUEUE: u8 = u8::MAX;
/// Bits of the longest segment, with its headers.
const SEGMENT_BITS: u64 = (1 << 16) * 8;

/// A shaper and its queues.
pub(crate) struct Shaper {
    qos: Qos<Mbuf>,
    /// The queue with the name of each number.
    named: [u8; 1 << u8::BITS],
    counters: Arc<[QueueCounters]>,
    /// Its burst is long enough for segments of 64 KB.
    pub(crate) passes_segments: bool,
    /// It releases its packets at once, and takes no more.
    pub(crate) is_retiring: bool,
}

impl Shaper {
    /// Empty queues.
    ///
    /// # Errors
    /// [`QosError`] for a number out of range.
    pub(crate) fn new(config: &QosConfig) -> Result<Self, QosError> {
        let clock_hz = clock::cycles_in_micros(1_000_000);
        let shaper = ShaperOptions { rate: config.bits.per_second, burst: config.bits.burst, clock_hz };
        let queues: Vec<QueueOptions> = config.queues.iter().map(options).collect();
        let qos = Qos::new(Some(shaper), &queues)?;
        let mut named = [NO_QUEUE; 1 << u8::BITS];
        for (n, queue) in config.queues.iter().enumerate().rev() {
            named[queue.id.index()] = n as u8;
        }
        let passes_segments = config.bits.burst >= SEGMENT_BITS;
        let counters = queues.iter().map(|_| QueueCounters::default()).collect();
        Ok(Self { qos, named, counters, passes_segments, is_retiring: false })
    }

    /// Counters of its queues, in their order.
    pub(crate) fn counters(&self) -> Arc<[QueueCounters]> {
        Arc::clone(&self.counters)
    }

    /// The queue with a name, if the port has it.
    #[inline]
    pub(crate) fn queue_named(&self, name: QueueId) -> Option<usize> {
        let queue = self.named[name.index()];
        (queue != NO_QUEUE).then_some(queue.into())
    }

    /// The queue of a DSCP.
    #[inline]
    pub(crate) fn queue_of_dscp(&self, dscp: u8) -> usize {
        self.qos.queue_of(dscp)
    }

    /// Puts a packet into a queue; gives it back if the queue is full.
    #[inline]
    pub(crate) fn push(&mut self, queue: usize, mbuf: Mbuf, now: u64) -> Result<(), Mbuf> {
        let bytes = mbuf.pkt_len();
        let outcome = self.qos.push(queue, mbuf, bytes, now);
        if outcome.is_err()
            && let Some(counters) = self.counters.get(queue)
        {
            counters.dropped_full.add(1);
        }
        outcome
    }

    /// Moves packets that may leave now to `out`, as far as it has room. Drops packets that have waited too long.
    pub(crate) fn pop_burst(&mut self, now: u64, out: &mut Batch, cx: &PortContext<'_>) {
        while out.len() < Batch::CAPACITY {
            let next = if self.is_retiring {
                self.qos.pop_any().map(|mbuf| Dequeued::Send(mbuf, 0))
            } else {
                self.qos.pop(now)
            };
            match next {
                None => break,
                Some(Dequeued::Send(mbuf, queue)) => {
                    if let Some(counters) = self.counters.get(queue) {
                        counters.packets.add(1);
                        counters.bytes.add(mbuf.pkt_len().into());
                    }
                    out.add(mbuf);
                }
                Some(Dequeued::Drop(mbuf, queue)) => {
                    cx.note_drop(DropReason::Codel, &mbuf);
                    drop(mbuf);
                    if let Some(counters) = self.counters.get(queue) {
                        counters.dropped_codel.add(1);
                    }
                }
            }
        }
        for (n, counters) in self.counters.iter().enumerate() {
            let (packets, bytes) = self.qos.backlog(n);
            counters.waiting_packets.set(packets as u64);
            counters.waiting_bytes.set(bytes);
        }
    }

    /// Takes a packet regardless of the rate.
    pub(crate) fn pop_any(&mut self) -> Option<Mbuf> {
        self.qos.pop_any()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.qos.waiting() == 0
    }

    /// Whether packets bypass it: it is retiring and empty.
    #[inline]
    pub(crate) fn is_retired(&self) -> bool {
        self.is_retiring && self.is_empty()
    }
}

fn options(queue: &QueueConfig) -> QueueOptions {
    let bits = |from: u8, to: u8| (from..=to.min(63)).fold(0u64, |bits, dscp| bits | 1 << dscp);
    let dscps = queue.dscp.iter().fold(0, |before, span| before | bits(span.first, span.last));
    let service = if queue.priority { Service::Priority } else { Service::Weight(queue.weight) };
    let codel = (queue.codel_ms > 0).then(|| CodelOptions {
        target: clock::cycles_in_micros(u64::from(queue.codel_ms) * 1000),
        interval: clock::cycles_in_micros(CODEL_INTERVAL_MICROS),
    });
    QueueOptions { dscps, service, limit: queue.packets as usize, codel }
}
