// SPDX-License-Identifier: Apache-2.0
//! What is told of NFs: the attached ones and their threads, and totals of each role over all its NFs, including those
//! that ended, so that totals never decrease.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use netvm_model::Host;
use netvm_region::NfCounter;

use super::Nfs;
use super::group::GroupState;
use super::instance::{Instance, InstanceState};
use super::teardown::Teardown;
use crate::counters::{DropCounts, LinkCounts};
use crate::drop_reason::{DropReason, Violation};
use crate::ids::{GroupId, InstanceId, NfThreadId, RoleId};
use crate::manager::workers::Workers;

/// One thread of an NF.
#[derive(Clone, Debug)]
pub struct ThreadView {
    /// What workers counted of it.
    pub counts: LinkCounts,
    /// Its number in the trust group.
    pub nf_thread: NfThreadId,
    /// Packets that the engine handed to it.
    pub delivered: u64,
    /// Packets that it returned to the engine.
    pub returned: u64,
    /// Its counters, by [`NfCounter`].
    pub standard: [u64; NfCounter::COUNT],
    /// Drops that it caused.
    pub drops: DropCounts,
    /// Events that no correct NF causes.
    pub violations: Vec<(Violation, u64)>,
    /// Buffers that it holds, by the owner table.
    pub buffers: u32,
    /// Highest fill level of its receive rings in about the last second, from 0 to 1.
    pub fill: f32,
}

/// An attached NF.
#[derive(Clone, Debug)]
pub struct InstanceView {
    /// Its number.
    pub id: InstanceId,
    /// Its role.
    pub role: RoleId,
    /// Its group.
    pub group: GroupId,
    /// Its state.
    pub state: InstanceState,
    /// Packets wait for it, and it waits for a core.
    pub is_starved: bool,
    /// It gets no new flows: it is to end when those that it has have ended.
    pub is_draining: bool,
    /// Its threads.
    pub threads: Vec<ThreadView>,
    /// The NF's own counters, summed over its threads.
    pub own: Vec<(String, u64)>,
}

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
pub(super) type PastTotals = BTreeMap<GroupId, BTreeMap<String, RoleTotals>>;

impl Nfs {
    /// The attached NFs, by number.
    pub(crate) fn views(&self, workers: &Workers) -> Vec<InstanceView> {
        self.instances.values().map(|instance| self.view(instance, workers)).collect()
    }

    fn view(&self, instance: &Instance, workers: &Workers) -> InstanceView {
        let mut own: Vec<(String, u64)> = instance.counters.iter().map(|name| (name.clone(), 0)).collect();
        let mut threads = Vec::new();
        let group = self.groups.get(&instance.group);
        let threads_of = instance.nf_threads.iter().zip(&instance.links).zip(&instance.before);
        for (thread, (((nf_thread, links), before), past)) in (0u16..).zip(threads_of.zip(&instance.past)) {
            let block = instance.control.thread(thread);
            for ((_, total), value) in own.iter_mut().zip(&block.own) {
                *total = total.wrapping_add(value.load(Ordering::Relaxed));
            }
            let now = workers.link_sums(links).with(past);
            let memories = group.into_iter().flat_map(GroupState::memories);
            threads.push(ThreadView {
                counts: now.counts - before.counts,
                nf_thread: *nf_thread,
                delivered: now.delivered - before.delivered,
                returned: now.returned - before.returned,
                standard: std::array::from_fn(|n| block.standard[n].load(Ordering::Relaxed)),
                drops: since(&DropReason::ALL, &now.drops, &before.drops),
                violations: since(&Violation::ALL, &now.violations, &before.violations),
                fill: instance.progress.get(usize::from(thread)).map_or(0.0, |progress| progress.fill),
                buffers: memories.map(|memory| memory.in_flight.buffers_with(*nf_thread)).sum(),
            });
        }
        InstanceView {
            id: instance.id,
            role: instance.role,
            group: instance.group,
            state: instance.state,
            is_starved: instance.is_starved,
            is_draining: instance.is_draining,
            threads,
            own,
        }
    }

    /// The totals of every role, by name.
    pub(crate) fn role_totals(&self, host: &Host, workers: &Workers) -> BTreeMap<String, RoleTotals> {
        let mut totals: BTreeMap<String, RoleTotals> =
            host.nfs.iter().map(|nf| (nf.role.clone(), RoleTotals::default())).collect();
        for (name, past) in self.groups.keys().filter_map(|group| self.past.get(group)).flatten() {
            if let Some(role) = totals.get_mut(name) {
                role.merge(past);
            }
        }
        let leaving = self.teardowns.iter().map(Teardown::instance);
        for instance in self.instances.values().chain(leaving) {
            if let Some(role) = totals.get_mut(&instance.name) {
                role.add(&self.view(instance, workers));
            }
        }
        totals
    }

    /// Adds an instance that ended to the totals.
    pub(super) fn add_to_past(&mut self, instance: &Instance, host: &Host, workers: &Workers) {
        let (view, group) = (self.view(instance, workers), instance.group);
        if self.groups.contains_key(&group) && host.nf_named(&instance.name).is_some() {
            self.past.entry(group).or_default().entry(instance.name.clone()).or_default().add(&view);
        }
    }

    /// Forgets the totals of roles that the host does not have.
    pub(crate) fn forget_removed_roles(&mut self, host: &Host) {
        for roles in self.past.values_mut() {
            roles.retain(|name, _| host.nf_named(name).is_some());
        }
        self.past.retain(|_, roles| !roles.is_empty());
    }
}

/// Counts between `before` and `now`, without zeros.
fn since<T: Copy>(kinds: &[T], now: &[u64], before: &[u64]) -> Vec<(T, u64)> {
    let counts = now.iter().zip(before).map(|(now, before)| now - before);
    kinds.iter().copied().zip(counts).filter(|(_, count)| *count > 0).collect()
}
