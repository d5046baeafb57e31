//! Traces of hypothetical packets.

use netvm_flow::CacheError;
use netvm_model::Group;

use crate::ids::{GroupId, PortId};
use crate::manager::publish::policy::now;
use crate::manager::publish::snapshot::View;
use crate::manager::{Engine, GroupError};
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
}

impl Engine {
    /// The steps of a hypothetical packet of `length` bytes with these `headers` from a port, if NFs pass it on
    /// unchanged.
    ///
    /// # Errors
    /// [`TraceError`], if there is no memory for it.
    pub fn trace(&mut self, from: PortId, headers: &[u8], length: usize) -> Result<Vec<Step>, TraceError> {
        if self.tracer.is_none() {
            let group = Group {
                id: GroupId(u16::MAX),
                name: "trace".to_owned(),
                buffers: BUFFERS,
                ..Group::default()
            };
            let memory = self.memory.create(&group)?.swap_remove(0);
            self.tracer = Some(Box::new(Tracer::new(memory)?));
        }
        let publisher = self.publisher();
        let view = View::new(publisher.sources, publisher.nfs);
        let mut snapshot = view.snapshot(0);
        // Its hits are no traffic.
        snapshot.hits = Default::default();
        match &mut self.tracer {
            Some(tracer) => Ok(tracer.trace(&snapshot, Hypothetical { from, headers, length }, now())?),
            None => Ok(Vec::new()),
        }
    }
}
