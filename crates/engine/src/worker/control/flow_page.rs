// SPDX-License-Identifier: Apache-2.0
//! Pages of flows, for views: a worker reads the flow cache in parts and handles packets in between. The manager owns
//! the memory.

use netvm_flow::{Counters, Entry, Validity};
use netvm_flowmon::Record;
use netvm_wire::FlowKey;

use crate::ids::{PortId, WorkerId};
use crate::policy::FIRST_EGRESS;
use crate::worker::monitor::FlowMonitor;
use crate::worker::state::flow_verdicts::{MAX_VERDICTS, Verdict};
use crate::worker::state::flows::Flows;

/// Slots of the cache that one page covers, in some tens of microseconds.
const SLOTS: usize = 4096;

/// One flow of the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowRow {
    pub(crate) port: PortId,
    pub(crate) key: FlowKey,
    pub(crate) decision: u32,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// Ticks since the last packet.
    pub(crate) idle: u32,
    /// Ticks since the first.
    pub(crate) age: u32,
    /// Verdicts of NFs on it, each with the ticks until it expires.
    pub(crate) verdicts: [Option<(Verdict, u32)>; MAX_VERDICTS],
}

/// The state of a worker's flow cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FlowCounts {
    /// Flows that it has room for.
    pub capacity: u64,
    /// Its counters since the start.
    pub counters: Counters,
    /// Packets were looked up by flow before this request; else, the flows of packets that the prefilter handled are
    /// missing.
    pub were_watched: bool,
}

/// A part of one worker's flows.
#[derive(Debug)]
pub(crate) struct FlowPage {
    pub(crate) worker: WorkerId,
    /// The request that they answer.
    pub(crate) ticket: u64,
    /// The next slot to read; `None` at the end.
    pub(crate) cursor: Option<usize>,
    /// Filled up to its capacity: a worker does not allocate.
    pub(crate) rows: Vec<FlowRow>,
    pub(crate) counts: FlowCounts,
    /// Generation of the policy that made the decisions.
    pub(crate) generation: u32,
}

/// A part of the running flows of one worker's monitor.
#[derive(Debug)]
pub(crate) struct MonitorPage {
    pub(crate) worker: WorkerId,
    /// The request that they answer.
    pub(crate) ticket: u64,
    /// The next slot to read; `None` at the end.
    pub(crate) cursor: Option<usize>,
    /// Filled up to its capacity.
    pub(crate) records: Vec<Record>,
}

impl MonitorPage {
    /// Slots of the table that one page covers, in some tens of microseconds.
    const SLOTS: usize = 1024;

    pub(crate) fn new(worker: WorkerId, ticket: u64) -> Self {
        Self { worker, ticket, cursor: Some(0), records: Vec::with_capacity(Self::SLOTS) }
    }

    pub(crate) fn fill(&mut self, monitor: Option<&FlowMonitor>) {
        let first = self.cursor.unwrap_or(0);
        let records = &mut self.records;
        let has_more = monitor.is_some_and(|monitor| {
            monitor.running(first, Self::SLOTS, |record| {
                if records.len() < records.capacity() {
                    records.push(*record);
                }
            })
        });
        self.cursor = has_more.then_some(first + Self::SLOTS);
    }
}

impl FlowPage {
    pub(crate) fn new(worker: WorkerId, ticket: u64) -> Self {
        Self {
            worker,
            ticket,
            cursor: Some(0),
            rows: Vec::with_capacity(SLOTS),
            counts: FlowCounts::default(),
            generation: 0,
        }
    }

    /// Whether it is the first page of its worker.
    pub(crate) fn is_first(&self) -> bool {
        self.cursor == Some(0)
    }

    pub(crate) fn fill(&mut self, flows: &Flows, generation: u32, now: u32) {
        let cache = &flows.cache;
        let validity = Validity { generation, now };
        let start = self.cursor.unwrap_or(0);
        // With verdicts, each flow is looked up once more.
        let slots = if flows.verdicts.any() { SLOTS / 8 } else { SLOTS };
        // Entries of egress decisions are not flows of their own.
        let comes_in = |entry: &Entry| entry.port() < FIRST_EGRESS;
        let entries = cache.entries_from(start, slots, validity).filter(|(_, entry)| comes_in(entry));
        for (_, entry) in entries.take(self.rows.capacity()) {
            self.rows.push(FlowRow {
                port: PortId(entry.port()),
                key: entry.key(),
                decision: entry.decision,
                packets: entry.packets,
                bytes: entry.bytes,
                idle: now.wrapping_sub(entry.last_used),
                age: now.wrapping_sub(entry.created),
                verdicts: flows.verdicts.of_flow(PortId(entry.port()), &entry.key(), now),
            });
        }
        let next = start + slots;
        self.cursor = (next < cache.capacity()).then_some(next);
        (self.counts.capacity, self.counts.counters) = (cache.capacity() as u64, *cache.counters());
        self.generation = generation;
    }
}
