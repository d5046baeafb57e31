//! The data that stages pass on for a burst: contexts by value, packets and lookup results by reference.

use dpdk::Batch;

use super::lookup_results::LookupResults;
use crate::ids::{MemoryId, PortId};
use crate::policy::IngressPolicy;
use crate::snapshot::Snapshot;

/// The context of every stage: the snapshot in force, and the memory of the packets.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) memory: MemoryId,
}

/// The origin of packets that one port received.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub(crate) cx: Context<'a>,
    pub(crate) port: PortId,
    /// The rx stage has checked that their chain has room.
    pub(crate) admitted: bool,
}

impl<'a> Origin<'a> {
    /// For packets that have left a chain or are about to leave by a port.
    #[inline(always)]
    pub(crate) const fn of(cx: Context<'a>, port: PortId) -> Self {
        Self { cx, port, admitted: false }
    }
}

/// The context of a burst at its ingress port's rules.
#[derive(Clone, Copy)]
pub(crate) struct Ingress<'a> {
    pub(crate) origin: Origin<'a>,
    pub(crate) policy: &'a IngressPolicy,
}

impl Ingress<'_> {
    /// Whether the packets may reach NFs that may give per-flow verdicts.
    #[inline(always)]
    pub(crate) fn may_have_flow_verdicts(&self) -> bool {
        self.origin.cx.snapshot.flow_verdict_ports.has(self.origin.port)
    }
}

/// The packets between two ingress stages, and their lookup results. Reused from burst to burst.
pub(crate) struct Burst {
    pub(crate) batch: Batch,
    pub(crate) results: Box<LookupResults>,
}

impl Burst {
    pub(crate) fn new() -> Self {
        Self { batch: Batch::new(), results: Box::new(LookupResults::new()) }
    }
}
