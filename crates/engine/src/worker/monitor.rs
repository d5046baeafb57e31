// SPDX-License-Identifier: Apache-2.0
//! The flow monitor (Schultz and Crowley, section III-E). In: received packets, a burst at a time; it reads private
//! copies of their fronts. Out: records of flows that ended or last long, into a ring that netvmd's exporter empties.
//! The packets themselves do not change.
//!
//! The worker owns its table, and no other thread reads it: a flow leaves it as a record. If the ring is full, flows
//! stay in the table after their time-outs; records of flows that are then evicted are lost and counted. (Two
//! alternating tables would spare the worker the search for time-outs, but each change would start with a cold table
//! and split every long flow.)
//!
//! After rules have decided of the packets of a burst, the monitor notes that in their flows.
//!
//! Cost per packet: a copy, reading the headers, and the table, whose lines miss the caches if there are many flows.
//! Time-outs: the worker checks the whole table once a second, some slots in each turn. Without a monitor: one branch
//! per burst.

use arrayvec::ArrayVec;
use dpdk::{Batch, Mbuf, MbufPtr};
use netvm_clock as clock;
use netvm_conntrack::Unseen;
use netvm_flowmon::names::may_have_name;
use netvm_flowmon::{Amount, AnyMeter, Decided, Front, Record, Settings, TableKind};
use netvm_model::{FlowMonitorConfig, MonitorTable};
use netvm_switch::TICKS_PER_SECOND;
use netvm_wire::{FlowKey, Headers, parse_prefix};
use rtrb::{Consumer, RingBuffer};

use super::packet::keys::HEADER_BYTES;
use crate::counters::{MonitorCounters, MonitorCounts};
use crate::ids::PortId;

/// Room for records in the ring to the exporter.
const RECORDS: usize = 16_384;
/// Room for names of flows in a worker.
const NAMES: u32 = 4096;
/// Bytes of a packet that are searched for a name.
const NAMED: usize = 2048;
/// Bytes of an Ethernet header.
const ETHERNET: u64 = 14;
/// Slots whose time-outs a turn with packets checks, in a third of a microsecond.
const SLOTS_BUSY: usize = 32;
/// The same for a turn without packets.
const SLOTS_IDLE: usize = 2048;

/// One worker's monitor.
#[derive(Debug)]
pub(crate) struct FlowMonitor {
    meter: AnyMeter,
    reads_names: bool,
    /// The packets of the burst that was counted last, in order.
    counted: ArrayVec<MbufPtr, { Batch::CAPACITY }>,
    /// Slots to check before the next tick.
    due: usize,
    /// What earlier monitors of the worker have counted.
    before: MonitorCounts,
}

impl FlowMonitor {
    /// A monitor, and the ring of its records if it exports. If the ring is dropped, the monitor makes no records.
    /// `before`: what earlier monitors of the worker have counted.
    pub(crate) fn new(config: &FlowMonitorConfig, before: MonitorCounts) -> (Self, Option<Consumer<Record>>) {
        let kind = match config.table {
            MonitorTable::Null => TableKind::Null,
            MonitorTable::DLeft => TableKind::DLeft,
            MonitorTable::Tagged => TableKind::Tagged,
        };
        let cycles = |seconds: u32| clock::cycles_per_second().saturating_mul(seconds.into());
        let settings = Settings {
            idle: cycles(config.idle_timeout),
            active: cycles(config.active_timeout),
            sampling: config.sampling,
            names: if config.names { NAMES } else { 0 },
        };
        let (out, records) = if kind == TableKind::Null {
            (None, None)
        } else {
            let (producer, consumer) = RingBuffer::new(RECORDS);
            (Some(producer), Some(consumer))
        };
        let meter = AnyMeter::new(kind, config.flows as usize, settings, out);
        (Self { meter, reads_names: config.names, counted: ArrayVec::new(), due: 0, before }, records)
    }

    /// Counts a burst that a port has received.
    pub(crate) fn count(&mut self, port: PortId, batch: &Batch, now: u64) {
        let mut front = [0; HEADER_BYTES];
        self.meter.begin_burst();
        self.counted.clear();
        for mbuf in batch.as_slice() {
            // There is room.
            let _ = self.counted.try_push(mbuf.as_ptr());
            let copied = mbuf.copy_to(&mut front);
            let front = &front[..copied];
            let headers = parse_prefix(front, mbuf.pkt_len() as usize).ok();
            match &headers {
                Some(headers) if self.reads_names && may_have_name(front, headers) => {
                    self.count_named(mbuf, headers, (port.0, now));
                }
                headers => {
                    let front = Front { bytes: front, length: mbuf.pkt_len() };
                    self.meter.front(front, headers.as_ref(), (port.0, now));
                }
            }
        }
        self.meter.commit();
    }

    /// Counts packets of a flow that the kernel has forwarded. Returns whether others may pass unseen.
    pub(crate) fn count_unseen(&mut self, key: &FlowKey, unseen: Unseen, now: u64) -> bool {
        let Unseen { packets, bytes } = unseen;
        let octets = bytes.saturating_sub(packets * ETHERNET);
        self.meter.count_unseen(key, now, Amount { packets, bytes, octets })
    }

    /// Another burst is not counted.
    pub(crate) fn skip(&mut self) {
        self.counted.clear();
    }

    /// Notes what rules have decided of packets of the burst that was counted last, or of some of them, in order.
    pub(crate) fn decided(&mut self, packets: &[Mbuf], mut decided: impl FnMut(usize) -> Decided) {
        let mut places = self.counted.iter().enumerate();
        for (n, packet) in packets.iter().enumerate() {
            let Some((place, _)) = places.find(|(_, counted)| **counted == packet.as_ptr()) else { return };
            self.meter.decide(place, decided(n));
        }
    }

    /// Counts a packet, and searches a private copy for a name. The headers come from an earlier copy, and the bytes
    /// may have changed since, so each read checks its bounds.
    #[cold]
    fn count_named(&mut self, mbuf: &Mbuf, headers: &Headers, at: (u16, u64)) {
        let mut front = [0; NAMED];
        let copied = mbuf.copy_to(&mut front);
        let front = Front { bytes: &front[..copied], length: mbuf.pkt_len() };
        self.meter.front(front, Some(headers), at);
    }

    /// Calls `with` with what running flows in `count` slots from `first` have counted since their last record. Returns
    /// whether there are more slots.
    pub(crate) fn running(&self, first: usize, count: usize, with: impl FnMut(&Record)) -> bool {
        self.meter.running(first, count, with);
        first + count < self.meter.entries().len()
    }

    /// Handles a tick of the coarse clock: the next part of the table is due.
    pub(crate) fn tick(&mut self, counters: &MonitorCounters) {
        let slots = if self.meter.is_read() { self.meter.entries().len() } else { 0 };
        self.due = slots.min(self.due + slots.div_ceil(TICKS_PER_SECOND as usize));
        counters.flows.set(self.meter.flows() as u64);
        self.publish(counters);
    }

    fn publish(&self, counters: &MonitorCounters) {
        let (counts, before) = (self.meter.counts(), &self.before);
        counters.packets.set(before.packets + counts.seen.packets);
        counters.records.set(before.records + counts.records);
        counters.evicted.set(before.evicted + counts.evicted);
        counters.lost_records.set(before.lost_records + counts.lost_records);
    }

    /// Checks some of the slots that are due. `complete` adds to records what is known elsewhere.
    #[inline]
    pub(crate) fn age(&mut self, is_busy: bool, now: u64, complete: impl FnMut(&mut Record)) {
        if self.due > 0 {
            let slots = self.due.min(if is_busy { SLOTS_BUSY } else { SLOTS_IDLE });
            self.due -= slots;
            self.meter.expire_with(slots, now, complete);
        }
    }

    /// Sends the records of all flows; while the ring is full, calls `wait` until it returns false.
    pub(crate) fn finish(&mut self, counters: &MonitorCounters, wait: impl FnMut() -> bool) {
        self.meter.finish(wait);
        counters.flows.set(0);
        self.publish(counters);
    }
}
