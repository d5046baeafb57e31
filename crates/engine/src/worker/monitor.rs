//! The flow monitor (Schultz and Crowley, section III-E). In: what ports receive, a burst at a time, from private copies of the
//! packets' fronts. Out: records of flows that ended or go on for long, into a ring that netvmd's exporter empties. Packets
//! go on as they were.
//!
//! The worker owns its table, and no other thread reads it: a flow leaves it as a record. If the ring is full, flows
//! stay past their time-outs, and what then gives way is lost and counted. (Two tables that change places would spare the worker the search
//! for time-outs, but at each change it would begin with a cold one, and every long flow would be in pieces.)
//!
//! Predicted cost per packet: 20 cycles for the copy, 40 to read the headers, and 25 (one flow) to 250 (a million) for the
//! table. Time-outs: the whole table is looked at once a second, some slots in each turn; 65,536 flows take 0.7 ms of a
//! core. Without a monitor: one branch per burst.

use dpdk::{Batch, Mbuf};
use netvm_config::model::{FlowMonitorConfig, MonitorTable};
use netvm_flowmon::names::may_have_name;
use netvm_flowmon::{AnyMeter, Record, Settings, TableKind};
use netvm_region::clock;
use netvm_switch::TICKS_PER_SECOND;
use netvm_wire::{Headers, parse_prefix};
use rtrb::{Consumer, RingBuffer};

use super::packet::keys::HEADER_BYTES;
use crate::counters::MonitorCounters;
use crate::ids::PortId;

/// Records that wait for the exporter.
const RECORDS: usize = 16_384;
/// Names of flows that a worker keeps.
const NAMES: u32 = 4096;
/// Bytes of a packet in which a name is looked for.
const NAMED: usize = 2048;
/// Slots whose time-outs are looked at in a turn with packets: a third of a microsecond.
const SLOTS_BUSY: usize = 32;
/// The same without packets.
const SLOTS_IDLE: usize = 2048;

/// One worker's monitor.
#[derive(Debug)]
pub(crate) struct FlowMonitor {
    meter: AnyMeter,
    reads_names: bool,
    /// Slots to look at before the next tick.
    due: usize,
}

impl FlowMonitor {
    /// A monitor, and the ring of its records if it makes some: none of them if nobody takes the ring.
    pub(crate) fn new(config: &FlowMonitorConfig) -> (Self, Option<Consumer<Record>>) {
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
        let meter = AnyMeter::new((kind, config.flows as usize), settings, out);
        (Self { meter, reads_names: config.names, due: 0 }, records)
    }

    /// Counts a burst that a port has received.
    pub(crate) fn count(&mut self, port: PortId, batch: &Batch, now: u64) {
        let mut front = [0; HEADER_BYTES];
        for mbuf in batch.as_slice() {
            let copied = mbuf.copy_to(&mut front);
            let front = &front[..copied];
            let headers = parse_prefix(front, mbuf.pkt_len() as usize).ok();
            match &headers {
                Some(headers) if self.reads_names && may_have_name(front, headers) => {
                    self.count_named(mbuf, headers, (port.0, now));
                }
                headers => self.meter.front((front, mbuf.pkt_len()), headers.as_ref(), (port.0, now)),
            }
        }
        self.meter.commit();
    }

    /// Counts a packet of a private copy in which a name is looked for. Its headers are those of an earlier copy, as its
    /// bytes may have changed since: each read checks its bounds.
    #[cold]
    fn count_named(&mut self, mbuf: &Mbuf, headers: &Headers, at: (u16, u64)) {
        let mut front = [0; NAMED];
        let copied = mbuf.copy_to(&mut front);
        self.meter.front((&front[..copied], mbuf.pkt_len()), Some(headers), at);
    }

    /// A tick of the coarse clock: the next part of the table is due.
    pub(crate) fn tick(&mut self, counters: &MonitorCounters) {
        let slots = if self.meter.is_read() { self.meter.entries().len() } else { 0 };
        self.due = slots.min(self.due + slots.div_ceil(TICKS_PER_SECOND as usize));
        let counts = self.meter.counts();
        counters.flows.set(self.meter.flows() as u64);
        counters.packets.set(counts.seen.packets);
        counters.records.set(counts.records);
        counters.evicted.set(counts.evicted);
        counters.lost_records.set(counts.lost_records);
    }

    /// Looks at some of the slots that are due.
    #[inline]
    pub(crate) fn age(&mut self, is_busy: bool, now: u64) {
        if self.due > 0 {
            let slots = self.due.min(if is_busy { SLOTS_BUSY } else { SLOTS_IDLE });
            self.due -= slots;
            self.meter.expire(slots, now);
        }
    }

    /// Sends the records of all flows; calls `wait` while the exporter is behind, until that is false.
    pub(crate) fn finish(&mut self, wait: impl FnMut() -> bool) {
        self.meter.finish(wait);
    }
}
