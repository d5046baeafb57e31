//! The flow monitor (Schultz and Crowley, section III-E). In: what ports receive, a burst at a time, from private copies of the
//! packets' fronts. Out: records of flows that ended or go on for long, into a ring that netvmd's exporter empties. Packets
//! go on as they were.
//!
//! The worker owns its table, and nobody else reads it: what others need leaves it as a record. If the ring is full, flows
//! stay past their time-outs, and what then gives way is lost and counted. (Two tables that change places would spare the worker the search
//! for time-outs, but at each change it would begin with a cold one, and every long flow would be in pieces.)
//!
//! Predicted cost per packet: 20 cycles for the copy, 40 to read the headers, and 25 (one flow) to 250 (a million) for the
//! table. Time-outs: the whole table is looked at once a second, some slots in each turn; 65,536 flows take 0.7 ms of a
//! core. Without a monitor: one branch per burst.

use dpdk::Batch;
use netvm_config::model::{FlowMonitorConfig, MonitorTable};
use netvm_flowmon::{AnyMeter, Record, Settings, TableKind};
use netvm_region::clock;
use netvm_switch::TICKS_PER_SECOND;
use netvm_wire::parse_prefix;
use rtrb::{Consumer, RingBuffer};

use super::packet::keys::HEADER_BYTES;
use crate::counters::MonitorCounters;
use crate::ids::PortId;

/// Records that wait for the exporter.
const RECORDS: usize = 16_384;
/// Slots whose time-outs are looked at in a turn with packets: a third of a microsecond.
const SLOTS_BUSY: usize = 32;
/// The same without packets.
const SLOTS_IDLE: usize = 2048;

/// One worker's monitor.
#[derive(Debug)]
pub(crate) struct FlowMonitor {
    meter: AnyMeter,
    /// Slots to look at before the next tick.
    due: usize,
}

impl FlowMonitor {
    /// A monitor, and the ring of its records if they go anywhere.
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
            names: 0,
        };
        let (out, records) = if config.exports() {
            let (producer, consumer) = RingBuffer::new(RECORDS);
            (Some(producer), Some(consumer))
        } else {
            (None, None)
        };
        (Self { meter: AnyMeter::new((kind, config.flows as usize), settings, out), due: 0 }, records)
    }

    /// Counts a burst that a port has received.
    pub(crate) fn count(&mut self, port: PortId, batch: &Batch, now: u64) {
        let mut front = [0; HEADER_BYTES];
        for mbuf in batch.as_slice() {
            let copied = mbuf.copy_to(&mut front);
            let front = &front[..copied];
            let headers = parse_prefix(front, mbuf.pkt_len() as usize).ok();
            self.meter.front((front, mbuf.pkt_len()), headers.as_ref(), (port.0, now));
        }
        self.meter.commit();
    }

    /// A tick of the coarse clock: the next part of the table is due.
    pub(crate) fn tick(&mut self, counters: &MonitorCounters) {
        let slots = self.meter.entries().len();
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
