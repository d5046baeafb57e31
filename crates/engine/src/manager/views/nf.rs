//! Views of the attached NFs and their threads.

use std::sync::atomic::Ordering;

use netvm_region::NfCounter;

use crate::counters::{DropCounts, LinkCounts};
use crate::drop_reason::{DropReason, Violation};
use crate::ids::{GroupId, InstanceId, NfThreadId, RoleId};
use crate::manager::Engine;
use crate::manager::nfs::instance::{Instance, InstanceState};

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
    /// Its threads.
    pub threads: Vec<ThreadView>,
    /// The NF's own counters, summed over its threads.
    pub own: Vec<(String, u64)>,
}

impl Engine {
    /// The attached NFs, by number.
    #[must_use]
    pub fn instances(&self) -> Vec<InstanceView> {
        self.nfs.instances.values().map(|instance| self.instance_view(instance)).collect()
    }

    pub(crate) fn instance_view(&self, instance: &Instance) -> InstanceView {
        let mut own: Vec<(String, u64)> = instance.counters.iter().map(|name| (name.clone(), 0)).collect();
        let mut threads = Vec::new();
        let group = self.nfs.groups.get(&instance.group);
        let threads_of = instance.nf_threads.iter().zip(&instance.links).zip(&instance.before);
        for (thread, ((nf_thread, links), before)) in (0u16..).zip(threads_of) {
            let block = instance.control.thread(thread);
            for ((_, total), value) in own.iter_mut().zip(&block.own) {
                *total = total.wrapping_add(value.load(Ordering::Relaxed));
            }
            let now = self.workers.link_sums(links);
            let memories = group.iter().flat_map(|group| &group.memories);
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
            threads,
            own,
        }
    }
}

/// Counts between `before` and `now`, without zeros.
fn since<T: Copy>(kinds: &[T], now: &[u64], before: &[u64]) -> Vec<(T, u64)> {
    let counts = now.iter().zip(before).map(|(now, before)| now - before);
    kinds.iter().copied().zip(counts).filter(|(_, count)| *count > 0).collect()
}
