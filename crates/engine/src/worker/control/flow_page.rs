//! Flows for people, read in parts, between which packets flow. The manager owns the memory.

use netvm_flow::{Counters, Entry, Moment};
use netvm_wire::FlowKey;

use crate::ids::{PortId, WorkerId};
use crate::worker::forward::egress::LEAVING;
use crate::worker::state::Path;
use crate::worker::state::flow_verdicts::{MOST_WORDS, Word};

/// Places of the cache that are looked through at a time: some tens of microseconds.
const PLACES: usize = 4096;

/// One flow as the cache knows it.
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
    /// What NFs have said of it, and the ticks for which each word holds yet.
    pub(crate) words: [Option<(Word, u32)>; MOST_WORDS],
}

/// How a worker's flow cache does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FlowCounts {
    /// Flows that it has room for.
    pub capacity: u64,
    /// What happened so far.
    pub counters: Counters,
}

/// A part of one worker's flows.
#[derive(Debug)]
pub(crate) struct FlowPage {
    pub(crate) worker: WorkerId,
    /// Whose flows they are for.
    pub(crate) ticket: u64,
    /// Where to begin; then where to go on, `None` at the end.
    pub(crate) cursor: Option<usize>,
    /// What it has room for is not exceeded: a worker does not allocate.
    pub(crate) rows: Vec<FlowRow>,
    pub(crate) counts: FlowCounts,
    /// Generation of the policy that made the decisions.
    pub(crate) generation: u32,
}

impl FlowPage {
    pub(crate) fn new(worker: WorkerId, ticket: u64) -> Self {
        Self {
            worker,
            ticket,
            cursor: Some(0),
            rows: Vec::with_capacity(PLACES),
            counts: FlowCounts::default(),
            generation: 0,
        }
    }

    pub(crate) fn fill(&mut self, path: &Path, generation: u32) {
        let cache = &path.flows.cache;
        let moment = Moment { generation, now: path.tick };
        let start = self.cursor.unwrap_or(0);
        // Each of their flows is looked up once more.
        let places = if path.flows.words.any() { PLACES / 8 } else { PLACES };
        // What is remembered of packets on their way out is not a flow of its own.
        let comes_in = |entry: &Entry| entry.port() < LEAVING;
        let entries = cache.entries_from(start, places, moment).filter(|(_, entry)| comes_in(entry));
        for (_, entry) in entries.take(self.rows.capacity()) {
            self.rows.push(FlowRow {
                port: PortId(entry.port()),
                key: entry.key(),
                decision: entry.decision,
                packets: entry.packets,
                bytes: entry.bytes,
                idle: path.tick.wrapping_sub(entry.last_used),
                age: path.tick.wrapping_sub(entry.created),
                words: path.flows.words.of_flow(PortId(entry.port()), &entry.key(), path.tick),
            });
        }
        let next = start + places;
        self.cursor = (next < cache.capacity()).then_some(next);
        self.counts = FlowCounts { capacity: cache.capacity() as u64, counters: *cache.counters() };
        self.generation = generation;
    }
}
