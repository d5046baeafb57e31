//! Resets groups whose memory a peer has damaged. In: damaged memory. Out: the same group with new memory, and notices
//! about the evicted NFs.
//!
//! An NF can punch holes into the memory that it shares. The engine then reads zeroes, and a device that has the old
//! pages writes where nothing reads. The engine cannot tell which NF of the group did it, so it resets the whole group:
//! it evicts all its NFs, lets ports receive into new memory, and frees the old memory when its last buffer is back.
//! Other groups' packets continue to pass; the group's packets are lost.

use std::time::{Duration, Instant};

use super::group::GroupState;
use super::instance::Instance;
use super::teardown::Teardown;
use crate::ids::{GroupId, PortId};
use crate::inflight::sweep::{Swept, What};
use crate::manager::workers::Pending;
use crate::manager::{Engine, GroupError, Notice};
use crate::memory::Memory;
use crate::worker::Command;

/// Interval of the checks of each memory, which take two system calls.
const INTERVAL: Duration = Duration::from_millis(100);

/// Pause after a reset that failed because no memory was free.
const RETRY: Duration = Duration::from_secs(1);

/// A group's old memory and NFs, until all buffers are back.
pub(crate) struct Reset {
    group: GroupState,
    pub(crate) instances: Vec<Instance>,
    pending: Pending,
}

impl Reset {
    pub(crate) fn swept(&mut self, done: Swept) {
        self.pending.answer(done.ticket);
    }
}

impl Engine {
    /// Checks memories for damage at intervals, and continues resets.
    pub(crate) fn service_resets(&mut self) {
        for mut reset in std::mem::take(&mut self.nfs.resets) {
            if reset.pending.is_empty() {
                reset.group.is_replaced = true;
                self.nfs.retiring.push(reset.group);
            } else {
                self.nfs.resets.push(reset);
            }
        }
        if self.nfs.looked_at_memory.elapsed() < INTERVAL {
            return;
        }
        self.nfs.looked_at_memory = Instant::now();
        let is_damaged = |group: &GroupState| {
            group.memories.iter().any(|memory| !memory.region().mapping().is_intact())
                || self.nfs.members(group.id()).any(|nf| !nf.control.mapping().is_intact())
        };
        let damaged: Vec<GroupId> =
            self.nfs.groups.values().filter(|group| is_damaged(group)).map(GroupState::id).collect();
        for id in damaged {
            if let Err(error) = self.reset(id) {
                self.notices.push(Notice::GroupNotReset { group: id, error: error.to_string() });
                self.nfs.looked_at_memory = Instant::now() + RETRY;
            }
        }
    }

    /// Gives a group new memory and evicts its NFs.
    fn reset(&mut self, id: GroupId) -> Result<(), GroupError> {
        let Some(old) = self.nfs.groups.get(&id) else { return Ok(()) };
        let config = old.config.clone();
        let memories = self.memory.create(&config)?;
        let new = GroupState::create(config, memories, &self.workers)?;
        let ports: Vec<PortId> = self.ports_over(&old.memories);
        for memory in &new.memories {
            for port in self.ports.values() {
                if let Err(error) = port.register_memory(memory) {
                    self.notices.push(Notice::PortFault { port: port.id(), fault: error.to_string() });
                }
            }
        }
        let memories = new.memories.clone();
        let Some(old) = self.nfs.groups.insert(id, new) else { return Ok(()) };
        self.notices.push(Notice::GroupReset { group: id });
        let instances = self.evict(id);
        self.publisher().publish();
        // Only after the links are removed: packets copied into the new memory must not reach links of the old one.
        self.announce_memories(&memories, Some(id));
        // After the commands that remove the links, so that no worker still hands out buffers of the old memory.
        let pending = self.workers.sweep(&old.memories, |_| What::All);
        self.nfs.resets.push(Reset { group: old, instances, pending });
        self.renew_memory(&ports);
        Ok(())
    }

    /// Ends all instances of a group, and the teardowns and audits that use its former state.
    fn evict(&mut self, group: GroupId) -> Vec<Instance> {
        let is_of = |instance: &Instance| instance.group == group;
        let mut evicted: Vec<Instance> =
            self.nfs.instances.extract_if(.., |_, instance| is_of(instance)).map(|(_, nf)| nf).collect();
        for instance in &evicted {
            self.notices.push(Notice::Evicted { instance: instance.id, role: instance.role });
            self.add_to_past(instance);
            for links in &instance.links {
                self.workers.send_all(|worker| Command::RemoveLink(links[worker.index()]));
            }
        }
        self.nfs.audits.retain(|audit| audit.group != group);
        let (ended, others): (Vec<Teardown>, _) = std::mem::take(&mut self.nfs.teardowns)
            .into_iter()
            .partition(|teardown| is_of(teardown.instance()));
        self.nfs.teardowns = others;
        evicted.extend(ended.into_iter().map(Teardown::into_instance));
        evicted
    }

    /// The ports that receive into one of these memories.
    fn ports_over(&self, memories: &[std::sync::Arc<Memory>]) -> Vec<PortId> {
        let uses = |id| memories.iter().any(|memory| memory.id == id);
        let over = self.ports.values().filter(|port| port.memories().any(uses));
        over.map(crate::manager::PortState::id).collect()
    }
}
