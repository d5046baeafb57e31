// SPDX-License-Identifier: Apache-2.0
//! Traces hypothetical packets: sends them through the stages of a worker that has no ports, and notes what happens to
//! them.
//!
//! The tables are those of the workers. What a packet would change is left out: it teaches the switch no address, and
//! takes nothing from a rate limit.

use std::sync::Arc;

use dpdk::{Batch, HEADROOM, Mbuf, PortNumber};
use netvm_clock as clock;
use netvm_conntrack::NoMemory;
use netvm_flow::CacheError;
use netvm_model::{ConnectionsConfig, Eviction, FlowCacheConfig};
use netvm_notify::Signaller;
use netvm_wire::ConnState;
use rtrb::RingBuffer;

use crate::counters::WorkerCounters;
use crate::ids::{PortId, WorkerId};
use crate::limits::SharedLimits;
use crate::memory::Memory;
use crate::memory::mark;
use crate::snapshot::Snapshot;
use crate::worker::graph::record;
use crate::worker::graph::rx::{Received, ingress};
use crate::worker::latency::Latency;
use crate::worker::record::{Events, Recorder};
use crate::worker::state::burst::{Burst, Context};
use crate::worker::state::connections::WorkerConnections;
use crate::worker::state::handoff::Handoff;
use crate::worker::state::{Datapath, DatapathParts, flows::Flows};

/// The flow cache of one packet.
const FLOWS: FlowCacheConfig = FlowCacheConfig { entries: 1024, eviction: Eviction::Clock, idle: 30 };

/// Most connections that one packet begins.
const CONNECTIONS: u32 = 64;

/// A hypothetical packet.
#[derive(Clone, Copy, Debug)]
pub struct Hypothetical<'a> {
    /// The port that receives it.
    pub from: PortId,
    /// Its first bytes; zeros follow.
    pub headers: &'a [u8],
    /// Its length in bytes.
    pub length: usize,
    /// What ports that track connections find of it, if it can be tracked.
    pub state: ConnState,
}

impl<'a> Hypothetical<'a> {
    /// A packet with these bytes, which may begin a connection.
    #[must_use]
    pub const fn of(from: PortId, frame: &'a [u8]) -> Self {
        Self { from, headers: frame, length: frame.len(), state: ConnState::New }
    }
}

/// Sends hypothetical packets through the stages.
pub(crate) struct Tracer {
    dp: Datapath,
    burst: Burst,
    memory: Arc<Memory>,
    /// The connection of a packet that NAT translates; `None`: not needed yet.
    connections: Option<Box<WorkerConnections>>,
}

impl Tracer {
    /// `memory`: has the buffer of the packet.
    ///
    /// # Errors
    /// [`CacheError`] without memory for a flow cache.
    pub(crate) fn new(memory: Arc<Memory>) -> Result<Self, CacheError> {
        let (samples, _) = RingBuffer::new(1);
        let mut dp = Datapath::new(DatapathParts {
            id: WorkerId(0),
            counters: Arc::new(WorkerCounters::new()),
            flows: Flows::new(&FLOWS)?,
            limits: Arc::new(SharedLimits::new()),
            latency: Latency::new(WorkerId(0), samples, Arc::default()),
            monitor: None,
            signaller: Signaller::new(),
            handoff: Handoff::default(),
        });
        dp.is_dry = true;
        dp.memories.add(Arc::clone(&memory), None);
        Ok(Self { dp, burst: Burst::new(), memory, connections: None })
    }

    /// Has NAT choose as tables with this key do. There is a table for that from then on.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(crate) fn translate(&mut self, mapping_key: Option<u64>) -> Result<(), NoMemory> {
        if self.connections.is_none() {
            let config = ConnectionsConfig { limit: CONNECTIONS, ..ConnectionsConfig::default() };
            self.connections = Some(Box::new(WorkerConnections::new(&config, mapping_key)?));
        }
        Ok(())
    }

    /// What happens to a packet that arrives in this tick of the coarse clock.
    ///
    /// # Errors
    /// [`CacheError`] without memory for a flow cache.
    pub(crate) fn trace(
        &mut self,
        snapshot: &Snapshot,
        packet: Hypothetical<'_>,
        tick: u32,
    ) -> Result<Events, CacheError> {
        let Some(mbuf) = self.packet(packet) else { return Ok(Events::default()) };
        let Self { dp, burst, memory, connections } = self;
        // A flow of an earlier packet has the action of that moment.
        dp.flows.forget_all(&FLOWS)?;
        (dp.clock.now, dp.clock.tick) = (clock::cycles(), tick);
        dp.recorder = Some(Recorder::hypothetical());
        dp.dry_state = packet.state;
        dp.passed = 0;
        let bytes = mbuf.pkt_len().into();
        burst.batch.add(mbuf);
        let cx = Context { admitted: true, ..Context::new(snapshot, memory.id) };
        record::received(dp, snapshot, packet.from, &burst.batch);
        dp.connections = connections.take().filter(|_| snapshot.nat.is_some());
        ingress(dp, Received { cx, port: packet.from, bytes, taken: 1 }, burst);
        *connections = dp.connections.take();
        connections.iter_mut().for_each(|connections| connections.forget_all());
        Ok(dp.recorder.take().map(Recorder::into_events).unwrap_or_default())
    }

    /// The packet in a buffer, cut to the longest that there is.
    fn packet(&self, packet: Hypothetical<'_>) -> Option<Mbuf> {
        let mut one = Batch::new();
        let geometry = self.memory.region().geometry();
        let is_long = packet.length + usize::from(HEADROOM) > geometry.stride as usize;
        let pool = self.memory.large.as_ref().filter(|_| is_long).unwrap_or(&self.memory.pool);
        pool.alloc_into(&mut one, 1);
        let mut mbuf = one.pop()?;
        let room = u32::from(mbuf.buf_len()).saturating_sub(HEADROOM.into()) as usize;
        let mut bytes = packet.headers.to_vec();
        bytes.resize(packet.length.min(room), 0);
        mbuf.set_bounds(HEADROOM, 0).ok()?;
        mbuf.copy_from(&bytes).ok()?;
        mbuf.set_port(PortNumber(packet.from.0));
        mark::clear(&mut mbuf);
        Some(mbuf)
    }
}
