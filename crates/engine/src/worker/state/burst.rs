//! What a burst carries from stage to stage: contexts by value, packets and lookup results by reference.

use dpdk::Batch;

use super::lookup_results::LookupResults;
use crate::ids::{MemoryId, PortId};
use crate::policy::IngressPolicy;
use crate::snapshot::Snapshot;

/// What every stage needs: the snapshot in force, and the memory that the packets lie in.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) memory: MemoryId,
}

/// Packets that came in by one port.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub(crate) cx: Context<'a>,
    pub(crate) port: PortId,
    /// The rx stage made sure that their chain has room for them.
    pub(crate) admitted: bool,
}

impl<'a> Origin<'a> {
    /// Packets that have left a chain or are about to leave by a port.
    #[inline(always)]
    pub(crate) const fn of(cx: Context<'a>, port: PortId) -> Self {
        Self { cx, port, admitted: false }
    }
}

/// A burst at the rules of its ingress port.
#[derive(Clone, Copy)]
pub(crate) struct Ingress<'a> {
    pub(crate) origin: Origin<'a>,
    pub(crate) policy: &'a IngressPolicy,
}

impl Ingress<'_> {
    /// Whether NFs on the packets' way may give verdicts on whole flows.
    #[inline(always)]
    pub(crate) fn may_have_flow_verdicts(&self) -> bool {
        self.origin.cx.snapshot.flow_verdict_ports.has(self.origin.port)
    }
}

/// The packets between two ingress stages, and what was found out about them. Reused from burst to burst.
pub(crate) struct Burst {
    pub(crate) batch: Batch,
    pub(crate) results: Box<LookupResults>,
}

impl Burst {
    pub(crate) fn new() -> Self {
        Self { batch: Batch::new(), results: Box::new(LookupResults::new()) }
    }
}
