// SPDX-License-Identifier: Apache-2.0
//! Traces of hypothetical packets.

use netvm_conntrack::NoMemory;
use netvm_flow::CacheError;
use netvm_model::Group;

use crate::ids::GroupId;
use crate::manager::memory::{GroupError, Memories};
use crate::manager::publish::policy::now;
use crate::manager::traces::render;
use crate::snapshot::Snapshot;
use crate::worker::record::Events;
use crate::worker::trace::Step;
use crate::worker::{Hypothetical, Tracer};

/// Buffers for the packet and its copies, one for each port that it is flooded to.
const BUFFERS: u32 = 2048;

/// Why a packet cannot be traced.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// No memory for the packet.
    #[error(transparent)]
    Memory(#[from] GroupError),
    /// No memory for a flow cache.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// No memory for connections that NAT translates.
    #[error(transparent)]
    Connections(#[from] NoMemory),
}

/// Sends hypothetical packets through the stages.
#[derive(Default)]
pub(crate) struct PacketTracer {
    /// Made for the first of them.
    tracer: Option<Box<Tracer>>,
}

impl PacketTracer {
    /// The steps of a packet, if NFs pass it on unchanged. `snapshot`: of any worker. `mapping_key`: by which NAT
    /// chooses addresses and ports.
    pub(crate) fn trace(
        &mut self,
        packet: Hypothetical<'_>,
        mut snapshot: Snapshot,
        memory: &mut Memories,
        mapping_key: Option<u64>,
    ) -> Result<Vec<Step>, TraceError> {
        // Its hits are no traffic.
        snapshot.hits = Default::default();
        let tracer = self.tracer(memory)?;
        if snapshot.nat.is_some() {
            tracer.translate(mapping_key)?;
        }
        let events = tracer.trace(&snapshot, packet, now())?;
        Ok(render::steps(&events, &snapshot.policy))
    }

    /// What happens to a packet whose connection is not tracked. `snapshot`: of no worker, without hits.
    pub(crate) fn events(
        &mut self,
        packet: Hypothetical<'_>,
        snapshot: &Snapshot,
        memory: &mut Memories,
    ) -> Result<Events, TraceError> {
        Ok(self.tracer(memory)?.trace(snapshot, packet, now())?)
    }

    fn tracer(&mut self, memory: &mut Memories) -> Result<&mut Tracer, TraceError> {
        let tracer = match &mut self.tracer {
            Some(tracer) => tracer,
            none => none.insert(new_tracer(memory)?),
        };
        Ok(tracer)
    }
}

fn new_tracer(memory: &mut Memories) -> Result<Box<Tracer>, TraceError> {
    let group =
        Group { id: GroupId(u16::MAX), name: "trace".to_owned(), buffers: BUFFERS, ..Group::default() };
    Ok(Box::new(Tracer::new(memory.create(&group)?.swap_remove(0))?))
}
