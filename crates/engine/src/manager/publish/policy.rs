// SPDX-License-Identifier: Apache-2.0
//! The compiled rules in force.

use std::sync::Arc;

use netvm_clock as clock;

use crate::ids::{PortId, WorkerId};
use crate::manager::reaper::Reaper;
use crate::policy::{Compiler, HitCounts, Policy, SwitchingEvent, SwitchingView, SwitchingWatch};
use crate::worker::cycles_per_tick;

/// Buckets of the FDB that one call ages.
const AGED_AT_ONCE: usize = 64;

/// The compiled rules in force, and the compiler.
pub(crate) struct Rules {
    compiler: Compiler,
    policy: Arc<Policy>,
    hits: HitCounts,
    watch: SwitchingWatch,
}

impl Rules {
    pub(crate) fn new(eal: dpdk::Eal) -> Self {
        Self {
            compiler: Compiler::new(eal),
            policy: Arc::default(),
            hits: HitCounts::default(),
            watch: SwitchingWatch::default(),
        }
    }

    pub(crate) const fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// The policy in force.
    pub(crate) const fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// Packets that matched each rule.
    pub(crate) const fn hits(&self) -> &HitCounts {
        &self.hits
    }

    /// Counts packets that matched rules and that no worker saw.
    pub(crate) const fn hits_mut(&mut self) -> &mut HitCounts {
        &mut self.hits
    }

    /// Puts a policy into force with the next snapshot.
    pub(crate) fn adopt(&mut self, policy: Arc<Policy>, workers: usize, reaper: &Reaper) {
        if Arc::ptr_eq(&policy, &self.policy) {
            return;
        }
        if let Some(switching) = &policy.switching
            && self.policy.switching.as_ref().is_none_or(|before| !switching.is_same(before))
        {
            switching.adopt(self.policy.switching.as_ref());
        }
        self.hits.begin(&policy, workers).into_iter().for_each(|gone| reaper.free(gone));
        self.policy = policy;
    }

    /// Starts counting for a worker that was added.
    pub(crate) fn add_worker(&mut self, worker: WorkerId) {
        self.hits.add_worker(worker);
    }

    /// Ages a few addresses of the FDB, and looks for loops and storms.
    pub(crate) fn service(&mut self) -> Vec<(PortId, SwitchingEvent)> {
        let Some(switching) = &self.policy.switching else { return Vec::new() };
        switching.fdb.age(now(), AGED_AT_ONCE);
        self.watch.service(switching, now())
    }

    /// What L2 switching has seen at a port.
    pub(crate) fn switching_view(&self, port: PortId) -> SwitchingView {
        self.watch.view(self.policy.switching.as_ref(), port)
    }
}

/// The current tick of the coarse clock, as workers count it.
#[must_use]
pub fn now() -> u32 {
    (clock::cycles() / cycles_per_tick()) as u32
}
