//! The compiled rules in force.

use std::collections::BTreeMap;
use std::sync::Arc;

use netvm_clock as clock;
use netvm_model::Host;
use netvm_policy::RuleId;

use super::l2_watch::SwitchingWatch;
use crate::manager::Engine;
use crate::policy::{Compiler, HitCounts, Policy, PolicyError, RuleCount};
use crate::worker::cycles_per_tick;

/// Buckets of the FDB that one call ages.
const AGED_AT_ONCE: usize = 64;

/// The compiled rules in force, and the compiler.
pub(crate) struct Rules {
    compiler: Compiler,
    pub(crate) policy: Arc<Policy>,
    pub(crate) counts: HitCounts,
    pub(crate) watch: SwitchingWatch,
}

impl Rules {
    pub(crate) fn new(eal: dpdk::Eal) -> Self {
        Self {
            compiler: Compiler::new(eal),
            policy: Arc::default(),
            counts: HitCounts::default(),
            watch: SwitchingWatch::default(),
        }
    }
}

impl Engine {
    /// Compiles policies, on any thread.
    #[must_use]
    pub fn compiler(&self) -> Compiler {
        self.rules.compiler.clone()
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.rules.policy)
    }

    /// The policy for a host.
    pub(crate) fn compile(&self, host: &Host) -> Result<Arc<Policy>, PolicyError> {
        self.rules.compiler.policy_for(host, &self.host, &self.rules.policy)
    }

    /// Puts a policy into force with the next snapshot.
    pub(crate) fn adopt(&mut self, policy: Arc<Policy>) {
        if Arc::ptr_eq(&policy, &self.rules.policy) {
            return;
        }
        if let Some(switching) = &policy.switching
            && self.rules.policy.switching.as_ref().is_none_or(|before| !switching.is_same(before))
        {
            switching.adopt(self.rules.policy.switching.as_ref());
        }
        for gone in self.rules.counts.begin(&policy, self.workers.len()) {
            self.reaper.free(gone);
        }
        self.rules.policy = policy;
    }

    /// Puts a policy that was compiled for `host` into force, unless the rules have changed since. Returns whether it
    /// did.
    pub fn replace_policy(&mut self, host: &Host, policy: Arc<Policy>) -> bool {
        let current = Policy::same_sources(&self.host, host);
        if current {
            self.adopt(policy);
            self.send_snapshots();
        }
        current
    }

    /// Packets that matched each rule since it was added.
    #[must_use]
    pub fn rule_counts(&self) -> BTreeMap<RuleId, RuleCount> {
        self.rules.counts.sum()
    }

    /// Packets that matched one rule since it was added.
    #[must_use]
    pub fn rule_count(&self, rule: RuleId) -> RuleCount {
        self.rules.counts.of_rule(rule)
    }

    /// Ages a few addresses of the FDB, and looks for loops and storms.
    pub(crate) fn service_policy(&mut self) {
        if let Some(switching) = &self.rules.policy.switching {
            switching.fdb.age(now(), AGED_AT_ONCE);
            for notice in self.rules.watch.service(switching, now()) {
                self.notices.push(notice);
            }
        }
    }
}

/// The current tick of the coarse clock, as workers count it.
pub(crate) fn now() -> u32 {
    (clock::cycles() / cycles_per_tick()) as u32
}
