//! Trust groups and the NFs in them: admission, teardown, and the audit that finds lost buffers.

mod audit;
mod cpu_time;
pub(crate) mod group;
pub(crate) mod instance;
mod reset;
pub(crate) mod teardown;
mod watchdog;

use std::collections::BTreeMap;
use std::time::Instant;

use netvm_notify::Signaller;
use netvm_region::{ControlError, LAYOUT_VERSION, MAX_COUNTERS, MAX_THREADS, Table};

use super::Engine;
use super::ports::PortState;
use crate::ids::{GroupId, InstanceId, LinkId, MemoryId, NfThreadId, RoleId};
use crate::inflight::sweep::{SweepRequest, Swept};
use crate::link::MAX_LINKS;
use crate::worker::Command;
use audit::Audit;
use group::GroupState;
use instance::{Instance, InstanceState};
use reset::Reset;
use teardown::{LastBurst, Teardown};
use watchdog::Watchdog;

/// Why the engine refuses an NF. The NF's author reads the text.
#[derive(Debug, thiserror::Error)]
pub enum AdmitError {
    /// The NF was built against another netvm.
    #[error(
        "this NF was built for layout {found}, the engine has layout {}: rebuild it against this netvm's netlib",
        LAYOUT_VERSION
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

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// The NF threads that take packets of one role.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoleMembers {
    pub(crate) nf_threads: Vec<NfThreadId>,
    /// For each NF thread, its link with each worker.
    pub(crate) links: Vec<Vec<LinkId>>,
}

/// The trust groups, and the NFs attached to them.
pub(crate) struct Nfs {
    pub(crate) groups: BTreeMap<GroupId, GroupState>,
    /// Removed groups with buffers that are still out.
    pub(crate) retiring: Vec<GroupState>,
    pub(crate) instances: BTreeMap<InstanceId, Instance>,
    pub(crate) teardowns: Vec<Teardown>,
    pub(crate) audits: Vec<Audit>,
    pub(crate) resets: Vec<Reset>,
    /// The time of the last check of the groups' memories for damage.
    looked_at_memory: Instant,
    /// Buffers reclaimed since the start.
    pub(crate) reclaimed: u64,
    /// Wakes NFs.
    pub(crate) signaller: Signaller,
    watchdog: Watchdog,
    last_instance: u32,
    /// By role: the packets of its last NF that ended.
    last_bursts: BTreeMap<String, LastBurst>,
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
            reclaimed: 0,
            signaller: Signaller::new(),
            watchdog: Watchdog::new(),
            last_instance: 0,
            last_bursts: BTreeMap::new(),
        }
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = &GroupState> {
        self.groups.values()
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
        }
        roles
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

    /// Removes a group once none of its buffers is out.
    pub(crate) fn retire(&mut self, group: GroupId) {
        self.retiring.extend(self.groups.remove(&group));
    }

    /// Link ids for a new instance of a group, which no instance, teardown or reset uses. Leaves every other group its
    /// equal share of all links.
    fn free_links(&self, group: GroupId) -> impl Iterator<Item = LinkId> + use<> {
        let mut used = [false; MAX_LINKS];
        let mut by_group: BTreeMap<GroupId, usize> = self.groups.keys().map(|id| (*id, 0)).collect();
        let instances = self.instances.values().chain(self.teardowns.iter().map(Teardown::instance));
        let instances = instances.chain(self.resets.iter().flat_map(|reset| &reset.instances));
        for instance in instances {
            for link in instance.links.iter().flatten() {
                used[link.index()] = true;
                *by_group.entry(instance.group).or_default() += 1;
            }
        }
        let free = (0..MAX_LINKS).filter(move |link| !used[*link]).map(|link| LinkId(link as u16));
        free.take(unreserved(&by_group, group))
    }
}

/// Number of further links for a group, such that every other group can still get an equal share. `used`: links by
/// group.
fn unreserved(used: &BTreeMap<GroupId, usize>, group: GroupId) -> usize {
    let share = MAX_LINKS / used.len().max(1);
    let others = used.iter().filter(|(other, _)| **other != group);
    let reserved: usize = others.map(|(_, used)| share.max(*used)).sum();
    MAX_LINKS.saturating_sub(reserved).saturating_sub(used.get(&group).copied().unwrap_or_default())
}

impl Engine {
    /// Drops removed groups once all their buffers are back.
    pub(crate) fn retire_groups(&mut self) {
        let by_ports: Vec<MemoryId> = self.ports.values().flat_map(PortState::memories).collect();
        let instances = self.nfs.instances.values().chain(self.nfs.teardowns.iter().map(Teardown::instance));
        let busy: Vec<GroupId> = instances.map(|instance| instance.group).collect();
        for group in std::mem::take(&mut self.nfs.retiring) {
            let mut memories = group.memories.iter();
            if (!group.is_replaced && busy.contains(&group.id()))
                || memories.any(|memory| memory.in_flight.buffers_out() > 0 || by_ports.contains(&memory.id))
            {
                self.nfs.retiring.push(group);
                continue;
            }
            for memory in &group.memories {
                self.workers.send_all(|_| Command::RemoveMemory(memory.id));
            }
        }
    }
}

const _: () = assert!(MAX_LINKS <= u16::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_leaves_the_others_their_share_of_links() {
        let (one, two, three) = (GroupId(1), GroupId(2), GroupId(3));
        assert_eq!(unreserved(&BTreeMap::from([(one, 0)]), one), MAX_LINKS);
        let used = BTreeMap::from([(one, MAX_LINKS / 2), (two, 0)]);
        assert_eq!((unreserved(&used, one), unreserved(&used, two)), (0, MAX_LINKS / 2));
        // A group that came later gets its share when the others have given links back.
        let used = BTreeMap::from([(one, MAX_LINKS / 2), (two, MAX_LINKS / 2), (three, 0)]);
        assert_eq!(unreserved(&used, three), 0);
        let used = BTreeMap::from([(one, MAX_LINKS / 2), (two, 10), (three, 0)]);
        assert_eq!(unreserved(&used, three), MAX_LINKS / 2 - MAX_LINKS / 3);
    }
}
