//! How often rules were hit: counted by decision by each worker, told by rule.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use netvm_policy::RuleId;

use super::Policy;
use crate::counters::Counter;

/// Packets and bytes of one decision.
#[derive(Debug, Default)]
pub(crate) struct DecisionCounters {
    packets: Counter,
    bytes: Counter,
}

impl DecisionCounters {
    #[inline(always)]
    pub(crate) fn add(&self, packets: usize, bytes: u64) {
        self.packets.add(packets as u64);
        self.bytes.add(bytes);
    }
}

/// Packets and bytes that matched a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RuleCount {
    /// Packets.
    pub packets: u64,
    /// Bytes, without FCS.
    pub bytes: u64,
}

/// What the workers count by one policy.
#[derive(Debug)]
struct Counted {
    policy: Arc<Policy>,
    /// By worker, by decision.
    by_worker: Vec<Arc<[DecisionCounters]>>,
}

impl Counted {
    fn add_to(&self, counts: &mut BTreeMap<RuleId, RuleCount>) {
        for worker in &self.by_worker {
            for (decision, counted) in self.policy.decisions.iter().zip(worker.iter()) {
                for rule in &decision.rules {
                    let count = counts.entry(*rule).or_default();
                    count.packets += counted.packets.get();
                    count.bytes += counted.bytes.get();
                }
            }
        }
    }

    /// Whether a worker still counts by it.
    fn is_used(&self) -> bool {
        self.by_worker.iter().any(|counters| Arc::strong_count(counters) > 1)
    }
}

/// Counts of all rules over all policies that there were.
#[derive(Debug, Default)]
pub(crate) struct HitCounts {
    /// What was counted by policies that no worker has any more.
    past: BTreeMap<RuleId, RuleCount>,
    /// The last one is in force.
    policies: Vec<Counted>,
}

impl HitCounts {
    /// A policy comes into force.
    pub(crate) fn begin(&mut self, policy: &Arc<Policy>, workers: usize) {
        let (used, past): (Vec<Counted>, _) =
            core::mem::take(&mut self.policies).into_iter().partition(Counted::is_used);
        past.iter().for_each(|counted| counted.add_to(&mut self.past));
        self.policies = used;
        let counters = || policy.decisions.iter().map(|_| DecisionCounters::default()).collect();
        let by_worker = (0..workers).map(|_| counters()).collect();
        self.policies.push(Counted { policy: Arc::clone(policy), by_worker });
        let decisions = self.policies.iter().flat_map(|counted| counted.policy.decisions.iter());
        let kept: BTreeSet<RuleId> = decisions.flat_map(|decision| decision.rules.iter().copied()).collect();
        self.past.retain(|rule, _| kept.contains(rule));
    }

    /// Where a worker counts now.
    pub(crate) fn of_worker(&self, worker: usize) -> Option<Arc<[DecisionCounters]>> {
        self.policies.last()?.by_worker.get(worker).map(Arc::clone)
    }

    /// All counts, by rule.
    pub(crate) fn sum(&self) -> BTreeMap<RuleId, RuleCount> {
        let mut counts = self.past.clone();
        self.policies.iter().for_each(|counted| counted.add_to(&mut counts));
        counts
    }
}
