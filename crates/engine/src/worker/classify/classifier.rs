// SPDX-License-Identifier: Apache-2.0
//! The paths that classify a burst implement [`Classify`]; all of them work on a [`Classifier`].

use dpdk::Batch;
use netvm_flow::Validity;
use netvm_wire::ConnState;

use super::scope::Scope;
use crate::worker::packet::keys::prefetch;
use crate::worker::state::Datapath;
use crate::worker::state::burst::Burst;
use crate::worker::state::connections::WorkerConnections;
use crate::worker::state::flows::Flows;
use crate::worker::state::lookup_results::{PackedAction, PacketGroup};

/// A path that finds the actions of a burst. All paths must find the same actions; `worker/tests/classify.rs` compares
/// them with [`PerFlow`](super::per_flow::PerFlow).
pub(crate) trait Classify {
    /// Finds the action of every packet of the burst. First sets packets aside that must be parsed but cannot be.
    fn classify(&self, cl: &mut Classifier<'_>, scope: &Scope<'_>, burst: &mut Burst) -> Classified;
}

/// The outcome of [`Classify::classify`].
#[derive(Clone, Copy)]
pub(crate) enum Classified {
    /// All packets have the same action.
    Uniform(PacketGroup),
    /// The burst's results have the action of each packet.
    Each,
}

/// The parts of a [`Datapath`] that classification needs.
pub(crate) struct Classifier<'a> {
    pub(crate) flows: &'a mut Flows,
    /// `None`: no port tracks connections, or the packets are hypothetical.
    pub(crate) connections: Option<&'a mut WorkerConnections>,
    pub(crate) tick: u32,
    /// The packets are hypothetical.
    pub(crate) is_dry: bool,
    /// What connection tracking finds of hypothetical packets.
    pub(crate) dry_state: ConnState,
}

impl<'a> Classifier<'a> {
    #[inline(always)]
    pub(crate) fn of(dp: &'a mut Datapath) -> Self {
        let Datapath { flows, connections, clock, is_dry, dry_state, .. } = dp;
        let connections = connections.as_deref_mut();
        Self { flows, connections, tick: clock.tick, is_dry: *is_dry, dry_state: *dry_state }
    }

    /// Stores the action of L2 switching of packet `n`, whose decision its connection has stored.
    #[cold]
    pub(crate) fn store_action(&mut self, n: usize, action: PackedAction) {
        if let Some(connections) = self.connections.as_deref_mut() {
            connections.store_action(n, action);
        }
    }

    /// The time and policy generation of the lookups of a burst. Decisions of another policy are misses.
    #[inline(always)]
    pub(crate) fn validity(&self, scope: &Scope<'_>) -> Validity {
        Validity { generation: scope.snapshot.policy.generation, now: self.tick }
    }
}

/// Moves the packets whose bits are set to the malformed ones, and closes the gaps that they leave in keys and lengths.
#[cold]
pub(crate) fn set_aside(bad: u64, burst: &mut Burst) {
    let Burst { batch, malformed, results } = burst;
    let (mut n, mut left) = (0, 0);
    let mut set_aside = batch.partition(|_| {
        let is_good = bad >> n & 1 == 0;
        if is_good {
            results.keys[left] = results.keys[n];
            results.lengths[left] = results.lengths[n];
            left += 1;
        }
        n += 1;
        is_good
    });
    malformed.append(&mut set_aside);
}

/// Prefetches the first line of each packet.
#[inline(always)]
pub(crate) fn prefetch_headers(batch: &Batch) {
    for mbuf in batch.as_slice() {
        prefetch(mbuf.data());
    }
}
