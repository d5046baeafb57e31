//! Totals of each role over all its NFs, including those that ended, so that totals never decrease.

use std::collections::BTreeMap;

use netvm_region::NfCounter;

use super::nf::InstanceView;
use crate::counters::LinkCounts;
use crate::drop_reason::{DropReason, Violation};
use crate::ids::GroupId;
use crate::manager::Engine;
use crate::manager::nfs::instance::Instance;
use crate::manager::nfs::teardown::Teardown;

/// Totals over all instances of a role since the engine started or the role was configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleTotals {
    /// What workers counted of them.
    pub counts: LinkCounts,
    /// Packets that the engine handed to them.
    pub delivered: u64,
    /// Packets that they returned to the engine.
    pub returned: u64,
    /// Their counters, by [`NfCounter`].
    pub standard: [u64; NfCounter::COUNT],
    /// Drops that they caused, by [`DropReason`].
    pub drops: [u64; DropReason::COUNT],
    /// Events that no correct NF causes, by [`Violation`].
    pub violations: [u64; Violation::COUNT],
    /// Their own counters, by name.
    pub own: BTreeMap<String, u64>,
}

impl Default for RoleTotals {
    fn default() -> Self {
        Self {
            counts: LinkCounts::default(),
            delivered: 0,
            returned: 0,
            standard: [0; NfCounter::COUNT],
            drops: [0; DropReason::COUNT],
            violations: [0; Violation::COUNT],
            own: BTreeMap::new(),
        }
    }
}

impl RoleTotals {
    /// Adds an instance. The NF writes its own counters, so their sums may wrap.
    fn add(&mut self, view: &InstanceView) {
        for thread in &view.threads {
            self.counts = self.counts + thread.counts;
            self.delivered += thread.delivered;
            self.returned += thread.returned;
            add_each(&mut self.standard, &thread.standard);
            thread.drops.iter().for_each(|(reason, count)| self.drops[*reason as usize] += count);
            thread.violations.iter().for_each(|(kind, count)| self.violations[*kind as usize] += count);
        }
        self.add_own(view.own.iter().map(|(name, value)| (name, value)));
    }

    fn merge(&mut self, other: &Self) {
        self.counts = self.counts + other.counts;
        self.delivered += other.delivered;
        self.returned += other.returned;
        add_each(&mut self.standard, &other.standard);
        add_each(&mut self.drops, &other.drops);
        add_each(&mut self.violations, &other.violations);
        self.add_own(other.own.iter());
    }

    fn add_own<'a>(&mut self, counters: impl Iterator<Item = (&'a String, &'a u64)>) {
        for (name, value) in counters {
            let sum = self.own.entry(name.clone()).or_default();
            *sum = sum.wrapping_add(*value);
        }
    }
}

fn add_each(sums: &mut [u64], values: &[u64]) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum = sum.wrapping_add(*value);
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
    pub(crate) fn add_to_past(&mut self, instance: &Instance) {
        let (view, group) = (self.instance_view(instance), instance.group);
        if self.nfs.groups.contains_key(&group) && self.host.nf_named(&instance.name).is_some() {
            self.totals.past.entry(group).or_default().entry(instance.name.clone()).or_default().add(&view);
        }
    }

    /// Forgets the totals of roles that the host no longer has.
    pub(crate) fn forget_removed_roles(&mut self) {
        let host = &self.host;
        for roles in self.totals.past.values_mut() {
            roles.retain(|name, _| host.nf_named(name).is_some());
        }
        self.totals.past.retain(|_, roles| !roles.is_empty());
    }
}
