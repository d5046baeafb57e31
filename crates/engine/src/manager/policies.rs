//! The policy in force.

use std::collections::BTreeMap;
use std::sync::Arc;

use netvm_config::model::Host;
use netvm_policy::RuleId;
use netvm_region::clock;
use netvm_switch::TICKS_PER_SECOND;

use super::Engine;
use crate::policy::{Compiler, Policy, PolicyError, RuleCount};

/// Buckets of the forwarding database that are looked through for what has aged at a time.
const AGED_AT_ONCE: usize = 64;

impl Engine {
    /// What makes policies, on any thread.
    #[must_use]
    pub fn compiler(&self) -> Compiler {
        self.compiler.clone()
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.policy)
    }

    /// The policy for a host.
    pub(super) fn compiled(&self, host: &Host) -> Result<Arc<Policy>, PolicyError> {
        self.compiler.policy_for(host, &self.host, &self.policy)
    }

    /// Puts a policy into force with the next snapshot.
    pub(super) fn adopt(&mut self, policy: Arc<Policy>) {
        if Arc::ptr_eq(&policy, &self.policy) {
            return;
        }
        if let Some(switching) = &policy.switching
            && self.policy.switching.as_ref().is_none_or(|before| !switching.is_same(before))
        {
            switching.adopt();
        }
        for gone in self.counts.begin(&policy, self.workers.len()) {
            self.reaper.free(gone);
        }
        self.policy = policy;
    }

    /// Puts a policy into force that was compiled anew for `host`, unless something else is in force by now; says whether
    /// it did.
    pub fn replace_policy(&mut self, host: &Host, policy: Arc<Policy>) -> bool {
        let current = Policy::same_sources(&self.host, host);
        if current {
            self.adopt(policy);
            self.order_snapshots();
        }
        current
    }

    /// How many packets matched each rule, since it is there.
    #[must_use]
    pub fn rule_counts(&self) -> BTreeMap<RuleId, RuleCount> {
        self.counts.sum()
    }

    /// How many packets matched one rule, since it is there.
    #[must_use]
    pub fn rule_count(&self, rule: RuleId) -> RuleCount {
        self.counts.of_rule(rule)
    }

    /// Forgets addresses that were not seen for long, a few at a time.
    pub(super) fn serve_policy(&mut self) {
        if let Some(switching) = &self.policy.switching {
            switching.fdb.age(now(), AGED_AT_ONCE);
        }
    }
}

/// The tick that it is for workers too.
pub(super) fn now() -> u32 {
    let cycles = clock::cycles_in_micros(1_000_000 / u64::from(TICKS_PER_SECOND)).max(1);
    (clock::cycles() / cycles) as u32
}
