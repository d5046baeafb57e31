//! Trust groups and the NFs in them: admission, teardown, and the audit that finds lost buffers.

mod audit;
pub(crate) mod group;
pub(crate) mod instance;
pub(crate) mod teardown;

use std::collections::BTreeMap;

use netvm_notify::Signaller;
use netvm_region::{ControlError, LAYOUT_VERSION, MAX_COUNTERS, MAX_THREADS};

use super::Engine;
use crate::ids::{GroupId, InstanceId, LinkId, MemoryId};
use crate::link::MAX_LINKS;
use crate::worker::Command;
use audit::Audit;
use group::GroupState;
use instance::{Instance, InstanceState};
use teardown::Teardown;

/// Why the engine does not admit an NF; the text goes to the NF's author.
#[derive(Debug, thiserror::Error)]
pub enum AdmitError {
    /// It was built with another netvm.
    #[error(
        "this NF was built for layout {theirs}, the engine speaks {}: rebuild it against this netvm's netlib",
        LAYOUT_VERSION
    )]
    Layout {
        /// The NF's layout version.
        theirs: u32,
    },
    /// No such role.
    #[error("there is no role `{role}`: the configuration has {}", list(.known))]
    UnknownRole {
        /// What it asked for.
        role: String,
        /// What there is.
        known: Vec<String>,
    },
    /// More threads or counters than possible.
    #[error(
        "{threads} threads and {counters} counters: from 1 to {} threads and at most {} counters are possible",
        MAX_THREADS,
        MAX_COUNTERS
    )]
    TooMany {
        /// Threads asked for.
        threads: usize,
        /// Counters named.
        counters: usize,
    },
    /// No more of something.
    #[error("no more {what}: there can be {most}")]
    Full {
        /// Of what.
        what: &'static str,
        /// How many there can be.
        most: usize,
    },
    /// Its control memory could not be made.
    #[error(transparent)]
    Control(#[from] ControlError),
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// The trust groups, and the NFs attached to them.
pub(crate) struct Nfs {
    pub(crate) groups: BTreeMap<GroupId, GroupState>,
    /// Removed groups, until none of their buffers is out.
    pub(crate) retiring: Vec<GroupState>,
    pub(crate) instances: BTreeMap<InstanceId, Instance>,
    pub(crate) teardowns: Vec<Teardown>,
    pub(crate) audits: Vec<Audit>,
    /// Buffers reclaimed since the start.
    pub(crate) reclaimed: u64,
    /// Wakes NFs.
    pub(crate) signaller: Signaller,
    last_instance: u32,
}

impl Nfs {
    pub(crate) fn new() -> Self {
        Self {
            groups: BTreeMap::new(),
            retiring: Vec::new(),
            instances: BTreeMap::new(),
            teardowns: Vec::new(),
            audits: Vec::new(),
            reclaimed: 0,
            signaller: Signaller::new(),
            last_instance: 0,
        }
    }

    /// Whether all attached NFs of a group use the table of `epoch` or a later one.
    fn all_have_seen(&self, group: GroupId, epoch: u64) -> bool {
        let is_member =
            |instance: &&Instance| instance.group == group && instance.state != InstanceState::Attaching;
        self.instances.values().filter(is_member).all(|instance| instance.has_seen(epoch))
    }

    /// Link ids that neither an instance nor a teardown uses.
    fn free_links(&self) -> impl Iterator<Item = LinkId> + use<> {
        let mut used = [false; MAX_LINKS];
        let live = self.instances.values().flat_map(|instance| instance.links.iter());
        for link in live.chain(self.teardowns.iter().flat_map(Teardown::links)).flatten() {
            used[link.index()] = true;
        }
        (0..MAX_LINKS).filter(move |link| !used[*link]).map(|link| LinkId(link as u16))
    }
}

impl Engine {
    /// Drops removed groups once all their buffers are back.
    pub(crate) fn retire_groups(&mut self) {
        let busy: Vec<GroupId> = self
            .nfs
            .instances
            .values()
            .map(|i| i.group)
            .chain(self.nfs.teardowns.iter().map(Teardown::group))
            .collect();
        let ports: Vec<MemoryId> =
            self.ports.values().flat_map(crate::manager::ports::PortState::memories).collect();
        let mut kept = Vec::new();
        for group in core::mem::take(&mut self.nfs.retiring) {
            let in_use = busy.contains(&group.id())
                || group
                    .memories
                    .iter()
                    .any(|memory| memory.in_flight.buffers_out() > 0 || ports.contains(&memory.id));
            if in_use {
                kept.push(group);
                continue;
            }
            for memory in &group.memories {
                self.workers.send_all(|_| Command::RemoveMemory(memory.id));
            }
        }
        self.nfs.retiring = kept;
    }
}

const _: () = assert!(MAX_LINKS <= u16::MAX as usize);
