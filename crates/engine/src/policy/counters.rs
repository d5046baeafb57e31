// SPDX-License-Identifier: Apache-2.0
//! Rule hit counters: counted per worker and decision, reported per rule.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use netvm_policy::{Edit, Rule, RuleId};

use super::Policy;
use crate::counters::Counter;
use crate::ids::WorkerId;

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

impl RuleCount {
    pub(crate) fn add(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// Counters of one policy.
#[derive(Debug)]
struct Counted {
    policy: Arc<Policy>,
    /// Rules that a later policy did not have. Another rule may have the same id now.
    deleted: BTreeSet<RuleId>,
    /// Counters by worker, then by decision.
    by_worker: Vec<Arc<[DecisionCounters]>>,
}

impl Counted {
    /// Hits by rule; a rule occurs once per decision that contains it.
    fn hits(&self) -> impl Iterator<Item = (RuleId, RuleCount)> {
        let decisions = &self.policy.decisions;
        let all = self.by_worker.iter().flat_map(|counters| decisions.iter().zip(counters.iter()));
        let hit = all.filter_map(|(decision, counters)| {
            let count = RuleCount { packets: counters.packets.get(), bytes: counters.bytes.get() };
            (count.packets > 0).then_some((decision, count))
        });
        let hits = hit.flat_map(|(decision, count)| decision.rules.iter().map(move |rule| (*rule, count)));
        hits.filter(|(rule, _)| !self.deleted.contains(rule))
    }

    /// Whether a worker still uses it.
    fn is_used(&self) -> bool {
        self.by_worker.iter().any(|counters| Arc::strong_count(counters) > 1)
    }
}

/// Counters of all rules over all policies so far.
#[derive(Debug, Default)]
pub(crate) struct HitCounts {
    /// Sums of policies that no worker uses any more.
    past: BTreeMap<RuleId, RuleCount>,
    /// The last one is in force.
    policies: Vec<Counted>,
}

impl HitCounts {
    /// Starts counting for a new policy. Returns the policies that no worker uses any more; freeing them takes long.
    pub(crate) fn begin(&mut self, policy: &Arc<Policy>, workers: usize) -> Vec<Arc<Policy>> {
        self.forget(&self.deleted_by(policy));
        let (used, past): (Vec<Counted>, Vec<Counted>) =
            core::mem::take(&mut self.policies).into_iter().partition(Counted::is_used);
        for (rule, count) in past.iter().flat_map(Counted::hits) {
            self.past.entry(rule).or_default().add(count);
        }
        self.policies = used;
        let counters = || policy.decisions.iter().map(|_| DecisionCounters::default()).collect();
        let by_worker = (0..workers).map(|_| counters()).collect();
        self.policies.push(Counted { policy: Arc::clone(policy), deleted: BTreeSet::new(), by_worker });
        past.into_iter().map(|counted| counted.policy).collect()
    }

    /// Rules of the policy in force that `next` does not have.
    fn deleted_by(&self, next: &Policy) -> BTreeSet<RuleId> {
        let before = self.policies.last().map_or(&[][..], |counted| &counted.policy.rules);
        let edit = Edit::between(before, &next.rules, Rule::is_clone_of);
        let mut deleted: BTreeSet<RuleId> = before[edit.gone()].iter().map(|rule| rule.id).collect();
        for changed in &next.rules[edit.added()] {
            deleted.remove(&changed.id);
        }
        deleted
    }

    /// Starts counting for a worker that was added.
    pub(crate) fn add_worker(&mut self, worker: WorkerId) {
        if let Some(Counted { policy, by_worker, .. }) = self.policies.last_mut()
            && by_worker.len() <= worker.index()
        {
            by_worker.push(policy.decisions.iter().map(|_| DecisionCounters::default()).collect());
        }
    }

    /// Discards the counts of deleted rules, including counts that workers with an older policy still add.
    fn forget(&mut self, deleted: &BTreeSet<RuleId>) {
        for rule in deleted {
            self.past.remove(rule);
        }
        for counted in &mut self.policies {
            counted.deleted.extend(deleted);
        }
    }

    /// Counts what matched rules elsewhere, unless these are no longer in force.
    pub(crate) fn add(&mut self, counts: &BTreeMap<RuleId, RuleCount>) {
        let Some(Counted { policy, .. }) = self.policies.last().filter(|_| !counts.is_empty()) else {
            return;
        };
        for (rule, count) in policy.rules.iter().filter_map(|rule| Some((rule.id, counts.get(&rule.id)?))) {
            self.past.entry(rule).or_default().add(*count);
        }
    }

    /// The current counters of a worker.
    pub(crate) fn of_worker(&self, worker: usize) -> Option<Arc<[DecisionCounters]>> {
        self.policies.last()?.by_worker.get(worker).map(Arc::clone)
    }

    /// Counts by rule, with zeros for rules in force without a hit.
    pub(crate) fn sum(&self) -> BTreeMap<RuleId, RuleCount> {
        let decisions = self.policies.last().map_or(&[][..], |counted| &counted.policy.decisions);
        let rules = decisions.iter().flat_map(|decision| decision.rules.iter());
        let mut counts: BTreeMap<RuleId, RuleCount> =
            rules.map(|rule| (*rule, RuleCount::default())).collect();
        let past = self.past.iter().map(|(rule, count)| (*rule, *count));
        for (rule, count) in past.chain(self.policies.iter().flat_map(Counted::hits)) {
            counts.entry(rule).or_default().add(count);
        }
        counts
    }

    /// The count of one rule.
    pub(crate) fn of_rule(&self, rule: RuleId) -> RuleCount {
        let mut sum = self.past.get(&rule).copied().unwrap_or_default();
        let hits = self.policies.iter().flat_map(Counted::hits);
        hits.filter(|(hit, _)| *hit == rule).for_each(|(_, count)| sum.add(count));
        sum
    }
}
