// SPDX-License-Identifier: Apache-2.0
//! Trust groups and the NFs in them: admission, teardown, and the audit that finds lost buffers.

mod audit;
mod cpu_time;
pub(crate) mod group;
pub(crate) mod instance;
mod reset;
pub(crate) mod teardown;
pub(crate) mod view;
mod watchdog;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use netvm_model::{Group, Host};
use netvm_notify::Signaller;
use netvm_region::{ControlError, LAYOUT_VERSION, MAX_COUNTERS, MAX_THREADS, OLDEST_LAYOUT, Table};

use super::memory::{GroupError, Memories};
use super::notice::Notices;
use super::workers::Workers;
use crate::ids::{GroupId, InstanceId, LinkId, MemoryId, NfThreadId, RoleId};
use crate::inflight::sweep::{SweepRequest, Swept};
use crate::memory::Memory;
use crate::worker::Command;
use audit::Audit;
use group::GroupState;
use instance::{Instance, InstanceState};
use reset::Reset;
use teardown::{HeldPackets, Teardown};
use view::PastTotals;
use watchdog::Watchdog;

/// Why the engine refuses an NF. The NF's author reads the text.
#[derive(Debug, thiserror::Error)]
pub enum AdmitError {
    /// The NF was built against another netvm.
    #[error(
        "this NF was built for layout {found}, the engine takes layouts {OLDEST_LAYOUT} to {LAYOUT_VERSION}: {}",
        layout_remedy(.found)
    )]
    Layout {
        /// The NF's layout version.
        found: u32,
    },
    /// The role is not configured.
    #[error("there is no role `{role}`: the configuration has {}", list(.known))]
    UnknownRole {
        /// The requested role.
        role: String,
        /// The configured roles.
        known: Vec<String>,
    },
    /// Too many threads or counters.
    #[error(
        "the NF has {threads} threads and {counters} counters, but the limits are 1 to {} threads and {} counters",
        MAX_THREADS,
        MAX_COUNTERS
    )]
    TooMany {
        /// The NF's threads.
        threads: usize,
        /// The NF's counters.
        counters: usize,
    },
    /// All of a limited resource is in use or reserved.
    #[error("no more {what}: the limit is {most}")]
    Full {
        /// The resource.
        what: &'static str,
        /// Its limit.
        most: usize,
    },
    /// Its control memory could not be created.
    #[error(transparent)]
    Control(#[from] ControlError),
}

const fn layout_remedy(found: &u32) -> &'static str {
    if *found > LAYOUT_VERSION {
        "update netvmd, or rebuild the NF against this netvm's netlib"
    } else {
        "rebuild it against this netvm's netlib"
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// The NF threads that take packets of one role.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoleMembers {
    pub(crate) nf_threads: Vec<NfThreadId>,
    /// For each NF thread, its link with each worker.
    pub(crate) links: Vec<Vec<LinkId>>,
    /// Those of them that get no new flows.
    pub(crate) draining: Vec<NfThreadId>,
}

/// The trust groups, and the NFs attached to them.
pub(crate) struct Nfs {
    groups: BTreeMap<GroupId, GroupState>,
    /// Removed groups with buffers that are still out.
    retiring: Vec<GroupState>,
    instances: BTreeMap<InstanceId, Instance>,
    teardowns: Vec<Teardown>,
    audits: Vec<Audit>,
    resets: Vec<Reset>,
    /// The time of the last check of the groups' memories for damage.
    looked_at_memory: Instant,
    /// Wakes NFs.
    signaller: Signaller,
    watchdog: Watchdog,
    last_instance: u32,
    /// By role: the packets of its last NF that ended.
    held_packets: BTreeMap<String, HeldPackets>,
    /// Totals of NFs that ended.
    past: PastTotals,
}

impl Nfs {
    /// Whether all NFs of a group accept packets with pending offloads.
    pub(crate) fn takes_offloads(&self, group: GroupId) -> bool {
        self.instances.values().filter(|nf| nf.group == group).all(|nf| nf.offloads)
    }

    pub(crate) fn new() -> Self {
        Self {
            groups: BTreeMap::new(),
            retiring: Vec::new(),
            instances: BTreeMap::new(),
            teardowns: Vec::new(),
            audits: Vec::new(),
            resets: Vec::new(),
            looked_at_memory: Instant::now(),
            signaller: Signaller::new(),
            watchdog: Watchdog::new(),
            last_instance: 0,
            held_packets: BTreeMap::new(),
            past: PastTotals::new(),
        }
    }

    /// Continues teardowns, audits and resets, and looks for NFs that hang. Returns whether tables and snapshots have
    /// to follow.
    pub(crate) fn service(&mut self, host: &Host, workers: &mut Workers, notices: &mut Notices) -> bool {
        self.service_teardowns(host, workers, notices);
        self.service_audits(host, workers, notices);
        self.service_resets();
        self.service_watchdog(host, workers, notices)
    }

    /// Whether a teardown, an audit or a reset is in progress.
    pub(crate) fn is_settling(&self) -> bool {
        let mut states = self.instances.values().map(|instance| instance.state);
        !(self.teardowns.is_empty() && self.audits.is_empty() && self.resets.is_empty())
            || states.any(|state| state == InstanceState::Leaving)
    }

    /// What of a host's groups only a restart can change, if it differs.
    pub(crate) fn needs_restart(&self, host: &Host) -> Option<String> {
        let memory = |g: &Group| (g.buffers, g.buffer_size, g.headroom, g.large_buffers);
        host.groups.iter().find_map(|group| {
            let old = &self.groups.get(&group.id)?.config;
            if memory(old) != memory(group) {
                let what = "(buffers, buffer_size, headroom, large_buffers)";
                return Some(format!("the memory of group {} {what}", group.name));
            }
            let is_renamed = old.name != group.name && self.members(group.id).next().is_some();
            is_renamed.then(|| format!("the name of group {}", group.name))
        })
    }

    /// Makes the groups of a host that are new.
    pub(crate) fn make_new(
        &self,
        host: &Host,
        memory: &mut Memories,
        workers: &Workers,
    ) -> Result<Vec<GroupState>, GroupError> {
        let new = host.groups.iter().filter(|config| !self.groups.contains_key(&config.id));
        new.map(|config| GroupState::create(config.clone(), memory.create(config)?, workers)).collect()
    }

    pub(crate) fn add_group(&mut self, group: GroupState) {
        self.groups.insert(group.id(), group);
    }

    /// Retires the groups that the host does not have: each is dropped once none of its buffers is out.
    pub(crate) fn retire_removed(&mut self, host: &Host) {
        let removed = self.groups.extract_if(.., |id, _| host.group(*id).is_none());
        self.retiring.extend(removed.map(|(_, group)| group));
    }

    /// Dismisses the NFs whose role the host does not have, or has in another group.
    pub(crate) fn dismiss_unconfigured(&mut self, host: &Host, notices: &mut Notices) {
        let is_configured = |nf: &&Instance| host.nf(nf.role).is_some_and(|role| role.group == nf.group);
        let dismissed = self.instances.values().filter(|nf| !is_configured(nf)).map(|nf| nf.id);
        for id in dismissed.collect::<Vec<InstanceId>>() {
            self.dismiss(id, host, notices);
        }
    }

    pub(crate) fn group(&self, id: GroupId) -> Option<&GroupState> {
        self.groups.get(&id)
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = &GroupState> {
        self.groups.values()
    }

    /// All memories that workers use, each with its group; `None` for groups that were removed or replaced, whose
    /// buffers may still be out.
    pub(crate) fn memories(&self) -> impl Iterator<Item = (&[Arc<Memory>], Option<GroupId>)> {
        let former = self.retiring.iter().chain(self.resets.iter().map(Reset::group));
        let groups = self.groups.values().map(|group| (group.memories(), Some(group.id())));
        groups.chain(former.map(|group| (group.memories(), None)))
    }

    /// The NFs that have links, also those of teardowns and resets.
    fn linked(&self) -> impl Iterator<Item = &Instance> {
        let instances = self.instances.values().chain(self.teardowns.iter().map(Teardown::instance));
        instances.chain(self.resets.iter().flat_map(|reset| &reset.instances))
    }

    /// The NFs that get packets.
    fn active(&self) -> impl Iterator<Item = &Instance> {
        self.instances.values().filter(|nf| nf.state == InstanceState::Active)
    }

    /// The NF threads that take packets, by role.
    pub(crate) fn members_by_role(&self) -> BTreeMap<RoleId, RoleMembers> {
        let mut roles: BTreeMap<RoleId, RoleMembers> = BTreeMap::new();
        for instance in self.active() {
            let role = roles.entry(instance.role).or_default();
            role.nf_threads.extend(&instance.nf_threads);
            role.links.extend(instance.links.iter().cloned());
            if instance.is_draining {
                role.draining.extend(&instance.nf_threads);
            }
        }
        roles
    }

    /// Says whether an NF gets new flows. Returns whether that is new.
    pub(crate) fn set_draining(&mut self, id: InstanceId, is_draining: bool) -> bool {
        let instance = self.instances.get_mut(&id);
        instance.is_some_and(|nf| std::mem::replace(&mut nf.is_draining, is_draining) != is_draining)
    }

    /// The role and the threads of an NF.
    pub(crate) fn threads_of(&self, id: InstanceId) -> Option<(RoleId, &[NfThreadId])> {
        self.instances.get(&id).map(|nf| (nf.role, &nf.nf_threads[..]))
    }

    /// Publishes the tables that `table` changes. Returns their groups and epochs.
    pub(crate) fn publish_tables(
        &mut self,
        table: impl Fn(&mut GroupState) -> Box<Table>,
    ) -> Vec<(GroupId, u64)> {
        let mut published = Vec::new();
        for (id, group) in &mut self.groups {
            let table = table(group);
            published.extend(group.replace_table(table, &self.signaller).map(|epoch| (*id, epoch)));
        }
        published
    }

    /// Whether all NFs that get packets have confirmed these tables of their groups.
    pub(crate) fn have_confirmed(&self, tables: &[(GroupId, u64)]) -> bool {
        self.active()
            .all(|nf| tables.iter().all(|(group, epoch)| *group != nf.group || nf.has_confirmed(*epoch)))
    }

    /// A group's instances.
    fn members(&self, group: GroupId) -> impl Iterator<Item = &Instance> {
        self.instances.values().filter(move |instance| instance.group == group)
    }

    /// Whether every NF of a group that has mapped its table has confirmed `epoch`.
    fn all_have_confirmed(&self, group: GroupId, epoch: u64) -> bool {
        let mut mapped = self.members(group).filter(|other| other.state != InstanceState::Attaching);
        mapped.all(|other| other.has_confirmed(epoch))
    }

    /// Handles the end of a sweep of a teardown, an audit or a reset.
    pub(crate) fn swept(&mut self, done: Swept, mut request: SweepRequest) {
        for audit in &mut self.audits {
            audit.swept(done);
        }
        for teardown in &mut self.teardowns {
            teardown.swept(done, &mut request.what);
        }
        for reset in &mut self.resets {
            reset.swept(done);
        }
    }

    /// Handles a worker's answer to a barrier of an audit or of a leaving NF.
    pub(crate) fn barrier_passed(&mut self, ticket: u64) {
        let audits = self.audits.iter_mut().map(|audit| &mut audit.pending);
        let leaving = self.instances.values_mut().filter_map(|instance| instance.settling.as_mut());
        for pending in audits.chain(leaving) {
            pending.answer(ticket);
        }
    }

    /// Wakes all threads of an NF.
    fn wake(&mut self, id: InstanceId) {
        let Some(instance) = self.instances.get(&id) else { return };
        let Some(group) = self.groups.get_mut(&instance.group) else { return };
        for nf_thread in &instance.nf_threads {
            group.wake(&self.signaller, *nf_thread);
        }
    }

    /// Drops removed groups once all their buffers are back, and no port receives into their memory; `by_ports`: the
    /// memories into which ports receive.
    pub(crate) fn drop_retired(&mut self, by_ports: &[MemoryId], workers: &mut Workers) {
        let instances = self.instances.values().chain(self.teardowns.iter().map(Teardown::instance));
        let busy: Vec<GroupId> = instances.map(|instance| instance.group).collect();
        for group in std::mem::take(&mut self.retiring) {
            let is_used =
                |memory: &Arc<Memory>| memory.in_flight.buffers_out() > 0 || by_ports.contains(&memory.id);
            if (!group.is_replaced && busy.contains(&group.id())) || group.memories().iter().any(is_used) {
                self.retiring.push(group);
                continue;
            }
            for memory in group.memories() {
                workers.send_all(|_| Command::RemoveMemory(memory.id));
            }
        }
    }
}
