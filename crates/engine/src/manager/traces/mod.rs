// SPDX-License-Identifier: Apache-2.0
//! Traces of packets of traffic, while a client reads them. In: events of the packets. Out: steps. Those of
//! hypothetical packets are rendered here, too.
//!
//! Each worker has a few records for each trace, and gets each back when the client has read what became of its
//! packet. So workers follow no more packets than the client reads, and nothing grows.

mod history;
pub(crate) mod render;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_capture_ring::{Filter, FilterError, Instruction};
use netvm_model::Host;

use super::reaper::Reaper;
use super::workers::Workers;
use crate::ids::{PortId, TraceId};
use crate::policy::Policy;
use crate::port_bits::PortBits;
use crate::worker::Command;
use crate::worker::record::{LiveTrace, MAX_TRACES, PacketNumber, Share, TraceRecord};
use crate::worker::trace::TracedPacket;
use history::History;

/// Longest time for which records of a packet wait for the others: longer than a worker follows it. A worker that has
/// ended has not sent its own.
const MAX_WAIT: Duration = Duration::from_secs(7);

/// Which packets to trace.
#[derive(Clone, Debug, Default)]
pub struct TraceSpec {
    /// A program of classic BPF; empty: every packet.
    pub filter: Vec<Instruction>,
    /// Only packets that this port receives; `None`: that any port receives, and that NFs make.
    pub from: Option<PortId>,
    /// NFs return packets to the engine after each hop, and do not pass them on directly.
    pub each_hop: bool,
    /// The trace ends after so many packets.
    pub packets: u64,
}

impl TraceSpec {
    /// Checks the filter and allocates the records of so many workers. This is for another thread than the manager's,
    /// as it may take some time.
    ///
    /// # Errors
    /// [`FilterError`] says what is wrong with the filter.
    pub fn prepare(&self, workers: usize) -> Result<PreparedTrace, FilterError> {
        let filter = if self.filter.is_empty() { None } else { Some(Filter::new(&self.filter)?) };
        Ok(PreparedTrace(LiveTrace::for_workers(workers, self.from, filter.as_ref())))
    }
}

/// The records of a trace that is to start.
#[derive(Debug)]
pub struct PreparedTrace(Vec<LiveTrace>);

/// A trace is refused.
#[derive(Debug, thiserror::Error)]
pub enum StartTraceError {
    /// Too many at a time.
    #[error("{MAX_TRACES} traces run already, which is the limit: end one")]
    TooMany,
}

/// What a trace has brought since it was read.
#[derive(Debug, Default)]
pub struct TraceRead {
    /// Packets, in the order in which they ended.
    pub packets: Vec<TracedPacket>,
    /// No more will come.
    pub is_over: bool,
}

/// A trace that runs, or has not been read to its end.
#[derive(Debug)]
struct Session {
    each_hop: bool,
    /// Only packets that this port receives.
    from: Option<PortId>,
    /// Packets that are still wanted.
    left: u64,
    /// Packets of which records are missing.
    parts: BTreeMap<PacketNumber, Parts>,
    /// Packets that the client has not read.
    ready: Vec<TracedPacket>,
    /// Their records.
    records: Vec<TraceRecord>,
}

/// The records of a packet so far.
#[derive(Debug)]
struct Parts {
    since: Instant,
    records: Vec<TraceRecord>,
}

impl Session {
    /// Adds a record, and takes all records of its packet if none is missing.
    fn complete(&mut self, record: TraceRecord) -> Option<Vec<TraceRecord>> {
        let number = record.packet;
        let new = || Parts { since: Instant::now(), records: Vec::new() };
        let parts = self.parts.entry(number).or_insert_with(new);
        parts.records.push(record);
        let is_whole = Share::are_whole(parts.records.iter().map(|record| record.share));
        is_whole.then(|| self.parts.remove(&number)).flatten().map(|parts| parts.records)
    }

    /// The records of a packet that has waited for too long for the others.
    fn incomplete(&mut self) -> Option<Vec<TraceRecord>> {
        let (number, _) = self.parts.iter().find(|(_, parts)| parts.since.elapsed() > MAX_WAIT)?;
        let number = *number;
        self.parts.remove(&number).map(|parts| parts.records)
    }

    /// Makes a packet of its records.
    fn add(&mut self, records: Vec<TraceRecord>, history: &History) {
        if self.left > 0
            && let Some(packet) = render::traced(&records, history)
        {
            self.ready.push(packet);
            self.left -= 1;
        }
        self.records.extend(records);
    }
}

/// The traces that run.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    last: u32,
    sessions: BTreeMap<TraceId, Session>,
    history: History,
}

impl Traces {
    /// Adds the ports of whose packets workers have to see every one to `ports`.
    pub(crate) fn add_ports(&self, host: &Host, ports: &mut PortBits) {
        for session in self.sessions.values().filter(|session| session.left > 0) {
            match session.from {
                Some(port) => ports.add(port),
                None => host.ports.iter().for_each(|port| ports.add(port.id)),
            }
        }
    }

    /// Whether NFs return packets to the engine after each hop.
    pub(crate) fn show_each_hop(&self) -> bool {
        self.sessions.values().any(|session| session.each_hop)
    }

    /// Begins a trace. If it shows each hop, the tables of NFs and the snapshots of workers have to follow, before
    /// workers follow its packets.
    pub(crate) fn begin(&mut self, spec: &TraceSpec) -> Result<TraceId, StartTraceError> {
        if self.sessions.len() >= MAX_TRACES {
            return Err(StartTraceError::TooMany);
        }
        self.last += 1;
        let id = TraceId(self.last);
        let session = Session {
            each_hop: spec.each_hop,
            from: spec.from,
            left: spec.packets,
            parts: BTreeMap::new(),
            ready: Vec::new(),
            records: Vec::new(),
        };
        self.sessions.insert(id, session);
        Ok(id)
    }

    /// Lets workers follow packets for a trace from now on, with the records that were made for it.
    pub(crate) fn follow_packets(&self, id: TraceId, prepared: PreparedTrace, workers: &mut Workers) {
        if self.sessions.get(&id).is_none_or(|session| session.left == 0) {
            return;
        }
        for (worker, mut trace) in workers.ids().zip(prepared.0) {
            trace.set_id(id);
            workers.send(worker, Command::AddTrace(Box::new(trace)));
        }
    }

    /// What became of packets since the last call; `None` if there is no such trace.
    pub(crate) fn read(&mut self, id: TraceId, workers: &mut Workers) -> Option<TraceRead> {
        let Self { sessions, history, .. } = self;
        let session = sessions.get_mut(&id)?;
        let was_over = session.left == 0;
        while let Some(records) = session.incomplete() {
            session.add(records, history);
        }
        let read = TraceRead { packets: std::mem::take(&mut session.ready), is_over: session.left == 0 };
        let records = std::mem::take(&mut session.records);
        match (was_over, read.is_over) {
            (_, false) => {
                let give_back = |record: TraceRecord| workers.send(record.home, Command::ReuseRecord(record));
                records.into_iter().for_each(give_back);
            }
            (false, true) => workers.send_all(|_| Command::RemoveTrace(id)),
            (true, true) => {}
        }
        Some(read)
    }

    /// Ends a trace. Returns whether it showed each hop: then the tables of NFs and the snapshots of workers have to
    /// follow.
    pub(crate) fn stop(&mut self, id: TraceId, workers: &mut Workers) -> bool {
        let Some(session) = self.sessions.remove(&id) else { return false };
        if session.left > 0 {
            workers.send_all(|_| Command::RemoveTrace(id));
        }
        session.each_hop
    }

    /// Handles the record of a packet that a worker has followed.
    pub(crate) fn traced(&mut self, record: TraceRecord, workers: &mut Workers) {
        let Self { sessions, history, .. } = self;
        let id = record.trace;
        let Some(session) = sessions.get_mut(&id).filter(|session| session.left > 0) else { return };
        if let Some(records) = session.complete(record) {
            session.add(records, history);
            if session.left == 0 {
                workers.send_all(|_| Command::RemoveTrace(id));
            }
        }
    }

    /// Notes what the next snapshots are made of. Returns their number.
    pub(crate) fn published(&mut self, policy: &Arc<Policy>, host: &Arc<Host>, reaper: &Reaper) -> u32 {
        let number = self.history.add(Arc::clone(policy), Arc::clone(host));
        self.forget_published(reaper);
        number
    }

    /// Forgets what was published before, as far as no packet that is followed needs it.
    pub(crate) fn forget_published(&mut self, reaper: &Reaper) {
        let follows_packets = !self.sessions.is_empty();
        while let Some(forgotten) = self.history.forget_one(follows_packets) {
            // It may be the last to have the compiled rules.
            reaper.free(forgotten);
        }
    }
}
