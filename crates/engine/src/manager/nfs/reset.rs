// SPDX-License-Identifier: Apache-2.0
//! Resets groups whose memory a peer has damaged. In: damaged memory. Out: the same group with new memory, and notices
//! about the evicted NFs.
//!
//! An NF can punch holes into the memory that it shares. The engine then reads zeroes, and a device that has the old
//! pages writes where nothing reads. The engine cannot tell which NF of the group did it, so it resets the whole group:
//! it evicts all its NFs, lets ports receive into new memory, and frees the old memory when its last buffer is back.
//! Other groups' packets continue to pass; the group's packets are lost.

use std::time::{Duration, Instant};

use netvm_model::Host;

use super::Nfs;
use super::group::GroupState;
use super::instance::Instance;
use super::teardown::Teardown;
use crate::ids::GroupId;
use crate::inflight::sweep::{SweepScope, Swept};
use crate::manager::memory::{GroupError, Memories};
use crate::manager::notice::{Notice, Notices};
use crate::manager::workers::{Pending, Workers};

/// Interval of the checks of each memory, which take two system calls.
const INTERVAL: Duration = Duration::from_millis(100);

/// Pause after a reset that failed because no memory was free.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A group's old memory and NFs, until all buffers are back.
pub(crate) struct Reset {
    group: GroupState,
    pub(super) instances: Vec<Instance>,
    pending: Pending,
}

impl Reset {
    /// The group as it was.
    pub(super) const fn group(&self) -> &GroupState {
        &self.group
    }

    pub(super) fn swept(&mut self, done: Swept) {
        self.pending.answer(done.ticket);
    }
}

impl Nfs {
    /// The groups whose memory is damaged; looks for them at intervals.
    pub(crate) fn damaged(&mut self) -> Vec<GroupId> {
        if self.looked_at_memory.elapsed() < INTERVAL {
            return Vec::new();
        }
        self.looked_at_memory = Instant::now();
        let is_damaged = |group: &&GroupState| {
            group.memories().iter().any(|memory| !memory.region().mapping().is_intact())
                || self.members(group.id()).any(|nf| !nf.control.mapping().is_intact())
        };
        self.groups.values().filter(is_damaged).map(GroupState::id).collect()
    }

    /// Looks for damaged memory again after a pause, because there is none to replace it.
    pub(crate) fn pause_resets(&mut self) {
        self.looked_at_memory = Instant::now() + RETRY_INTERVAL;
    }

    /// The same group as one that is damaged, with new memory.
    pub(crate) fn remake(
        &self,
        id: GroupId,
        memory: &mut Memories,
        workers: &Workers,
    ) -> Result<Option<GroupState>, GroupError> {
        let Some(old) = self.groups.get(&id) else { return Ok(None) };
        let memories = memory.create(&old.config)?;
        GroupState::create(old.config.clone(), memories, workers).map(Some)
    }

    /// Replaces a group by the same one with new memory, and evicts its NFs, of which tables and snapshots have to be
    /// free before [`Nfs::reclaim`].
    pub(crate) fn replace(
        &mut self,
        new: GroupState,
        host: &Host,
        workers: &mut Workers,
        notices: &mut Notices,
    ) -> Option<Reset> {
        let id = new.id();
        let group = self.groups.insert(id, new)?;
        notices.push(Notice::GroupReset { group: id });
        let instances = self.evict(id, host, workers, notices);
        Some(Reset { group, instances, pending: Pending::default() })
    }

    /// Reclaims the buffers of a group's old memory. No worker hands one out any more: the commands that remove the
    /// links were sent before.
    pub(crate) fn reclaim(&mut self, mut reset: Reset, workers: &mut Workers) {
        reset.pending = workers.sweep(reset.group.memories(), |_| SweepScope::All);
        self.resets.push(reset);
    }

    /// Ends all instances of a group, and the teardowns and audits that use its former state.
    fn evict(
        &mut self,
        group: GroupId,
        host: &Host,
        workers: &mut Workers,
        notices: &mut Notices,
    ) -> Vec<Instance> {
        let is_of = |instance: &Instance| instance.group == group;
        let mut evicted: Vec<Instance> =
            self.instances.extract_if(.., |_, instance| is_of(instance)).map(|(_, nf)| nf).collect();
        for instance in &evicted {
            notices.push(Notice::Evicted { instance: instance.id, role: instance.role });
            self.add_to_past(instance, host, workers);
            workers.remove_links(&instance.links);
        }
        self.audits.retain(|audit| audit.group != group);
        let (ended, others): (Vec<Teardown>, _) =
            std::mem::take(&mut self.teardowns).into_iter().partition(|teardown| is_of(teardown.instance()));
        self.teardowns = others;
        evicted.extend(ended.into_iter().map(Teardown::into_instance));
        evicted
    }

    /// Retires the old memory of groups when its buffers are back.
    pub(super) fn service_resets(&mut self) {
        for mut reset in std::mem::take(&mut self.resets) {
            if reset.pending.is_empty() {
                reset.group.is_replaced = true;
                self.retiring.push(reset.group);
            } else {
                self.resets.push(reset);
            }
        }
    }
}
