//! Totals of each role over all its NFs, including those that ended, so that totals never decrease.

use std::collections::BTreeMap;

use netvm_region::NfCounter;

use super::InstanceView;
use crate::drop_reason::{DropReason, Violation};
use crate::ids::GroupId;
use crate::manager::Engine;
use crate::manager::nfs::instance::Instance;
use crate::manager::nfs::teardown::Teardown;

/// Sums over all instances of a role since the engine started, or since the role came into the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleTotals {
    /// Packets that the engine handed to them.
    pub delivered: u64,
    /// Packets that the engine took from them.
    pub returned: u64,
    /// What they count, by [`NfCounter`].
    pub standard: [u64; NfCounter::COUNT],
    /// Drops for what they said or did, by [`DropReason`].
    pub drops: [u64; DropReason::COUNT],
    /// What no honest NF does, by [`Violation`].
    pub violations: [u64; Violation::COUNT],
    /// Packets with which they decided about their flows.
    pub flows_decided: u64,
    /// Packets whose per-flow verdict the engine refused.
    pub flows_refused: u64,
    /// Their own counters by name.
    pub own: BTreeMap<String, u64>,
}

impl RoleTotals {
    /// Adds what an instance shows. Its own counters are its word: a sum of them may wrap.
    fn add(&mut self, view: &InstanceView) {
        for thread in &view.threads {
            self.delivered += thread.delivered;
            self.returned += thread.returned;
            self.flows_decided += thread.flows_decided;
            self.flows_refused += thread.flows_refused;
            for (sum, value) in self.standard.iter_mut().zip(thread.standard) {
                *sum = sum.wrapping_add(value);
            }
            thread.drops.iter().for_each(|(reason, count)| self.drops[*reason as usize] += count);
            thread.violations.iter().for_each(|(kind, count)| self.violations[*kind as usize] += count);
        }
        for (name, value) in &view.own {
            let sum = self.own.entry(name.clone()).or_default();
            *sum = sum.wrapping_add(*value);
        }
    }

    fn merge(&mut self, other: &Self) {
        self.delivered += other.delivered;
        self.returned += other.returned;
        self.flows_decided += other.flows_decided;
        self.flows_refused += other.flows_refused;
        let pairs = self.standard.iter_mut().zip(other.standard);
        let pairs = pairs.chain(self.drops.iter_mut().zip(other.drops));
        for (sum, value) in pairs.chain(self.violations.iter_mut().zip(other.violations)) {
            *sum = sum.wrapping_add(value);
        }
        for (name, value) in &other.own {
            let sum = self.own.entry(name.clone()).or_default();
            *sum = sum.wrapping_add(*value);
        }
    }
}

/// Totals of NFs that ended, by group and role.
#[derive(Default)]
pub(crate) struct Totals {
    past: BTreeMap<GroupId, BTreeMap<String, RoleTotals>>,
}

impl Engine {
    /// The totals of every role, by name.
    #[must_use]
    pub fn role_totals(&self) -> BTreeMap<String, RoleTotals> {
        let mut totals: BTreeMap<String, RoleTotals> =
            self.host.nfs.iter().map(|nf| (nf.role.clone(), RoleTotals::default())).collect();
        for (name, past) in self.nfs.groups.keys().filter_map(|group| self.totals.past.get(group)).flatten() {
            if let Some(role) = totals.get_mut(name) {
                role.merge(past);
            }
        }
        let leaving = self.nfs.teardowns.iter().map(Teardown::instance);
        for instance in self.nfs.instances.values().chain(leaving) {
            if let Some(role) = totals.get_mut(&instance.name) {
                role.add(&self.instance_view(instance));
            }
        }
        totals
    }

    /// Adds an instance that ended to the totals.
    pub(crate) fn remember(&mut self, group: GroupId, instance: &Instance) {
        let view = self.instance_view(instance);
        let (host, groups) = (&self.host, &self.nfs.groups);
        self.totals.past.retain(|group, _| groups.contains_key(group));
        if groups.contains_key(&group) {
            let past = self.totals.past.entry(group).or_default();
            past.retain(|name, _| host.nf_named(name).is_some());
            past.entry(instance.name.clone()).or_default().add(&view);
        }
    }
}
