//! An NF that has attached: one process or VM with its control memory, its NF threads and its links to every worker.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use netvm_attach::{Fds, Hello};
use netvm_region::{
    Admission, Control, LAYOUT_VERSION, MAX_COUNTERS, MAX_THREADS, MapError, Notify, ReadyMessage, TableCopy,
};

use super::group::GroupState;
use super::view::LinkSums;
use super::{AdmitError, Engine};
use crate::ids::{GroupId, InstanceId, LinkId, NfThreadId, RoleId, WorkerId};
use crate::inflight::ThreadInFlight;
use crate::link::{Link, MAX_LINKS};
use crate::worker::Command;

/// Where an NF is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceState {
    /// Let in, not ready.
    Attaching,
    /// Takes packets.
    Active,
    /// Ready to take a dead one's place.
    Standby,
    /// Gets no new packets, sends on what it has.
    Leaving,
}

/// The devices of a VM that is an NF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestShape {
    /// Regions of its trust group: a device each, beside those of its control memory and its next-hop table.
    pub regions: usize,
    /// Whom it can wake: workers and NF threads, an interrupt vector of the control memory's device each.
    pub vectors: usize,
}

/// An NF as the manager keeps it.
pub(super) struct Instance {
    pub(super) id: InstanceId,
    pub(super) role: RoleId,
    /// The role's name: numbers of roles are used again.
    pub(super) name: String,
    pub(super) group: GroupId,
    pub(super) state: InstanceState,
    pub(super) standby: bool,
    /// In a VM, which says in its control memory that it is ready; and how it wakes others.
    pub(super) guest: Option<Notify>,
    pub(super) control: Arc<Control>,
    /// Its own copy of the group's table, if it has one.
    pub(super) table: Option<Arc<TableCopy>>,
    pub(super) nf_threads: Vec<NfThreadId>,
    /// For each thread, for each worker.
    pub(super) links: Vec<Vec<LinkId>>,
    /// For each thread, what its links had counted for those who had them before.
    pub(super) before: Vec<LinkSums>,
    pub(super) counters: Vec<String>,
    pub(super) since: Instant,
    /// Workers that have not answered since everybody knew that it leaves; `None` until they were asked.
    pub(super) settling: Option<Vec<u64>>,
}

impl Instance {
    /// The NF threads, a bit each.
    pub(super) fn mask(&self) -> u64 {
        self.nf_threads.iter().fold(0, |mask, nf_thread| mask | 1 << nf_thread.0)
    }

    /// Whether every thread works by the table of `epoch` or a later one.
    pub(super) fn has_seen(&self, epoch: u64) -> bool {
        let seen =
            |thread| self.control.thread(thread).epoch.load(std::sync::atomic::Ordering::Acquire) >= epoch;
        (0..self.nf_threads.len() as u16).all(seen)
    }
}

impl Engine {
    /// Lets an NF in: reserves NF threads and links, makes its control memory. The caller passes it what
    /// [`Engine::descriptors`] says, and calls [`Engine::activate`] when it is ready.
    ///
    /// `standby`: it waits to take a dead one's place.
    ///
    /// # Errors
    /// [`AdmitError`] in words for the NF's author; nothing is changed then.
    pub fn admit(&mut self, hello: &Hello, standby: bool) -> Result<InstanceId, AdmitError> {
        self.let_in(hello, standby, None)
    }

    /// As [`Engine::admit`], for an NF in a VM: before the VM is started, which sees as PCI devices the memories of
    /// [`Engine::descriptors`], and wakes others as `notify` says. Afterwards [`Engine::hear_guest`] is to be asked. When the VM has gone, by whatever way,
    /// [`Engine::departed`] takes everything back.
    ///
    /// # Errors
    /// As for [`Engine::admit`].
    pub fn admit_guest(
        &mut self,
        role: &str,
        threads: u16,
        standby: bool,
        notify: Notify,
    ) -> Result<InstanceId, AdmitError> {
        let (role, name) = (role.to_owned(), String::new());
        let hello = Hello { layout: LAYOUT_VERSION, role, name, threads, counters: Vec::new() };
        self.let_in(&hello, standby, Some(notify))
    }

    /// Gives an NF that was let in a next-hop table of its own, for a VM whose devices map all that they are passed for
    /// writing: what it writes there reaches nobody else.
    ///
    /// # Errors
    /// [`MapError`] when there is no memory for it.
    pub fn give_own_table(&mut self, id: InstanceId) -> Result<(), MapError> {
        let Some(instance) = self.instances.get_mut(&id) else { return Ok(()) };
        let Some(group) = self.groups.get_mut(&instance.group) else { return Ok(()) };
        instance.table = Some(group.publisher.copy(&instance.name)?);
        Ok(())
    }

    /// What devices a VM needs that is to be an NF of this role; `None` when there is no such role.
    #[must_use]
    pub fn guest_shape(&self, role: &str) -> Option<GuestShape> {
        let group = self.groups.get(&self.host.nf_named(role)?.group)?;
        Some(GuestShape { regions: group.memories.len(), vectors: group.calls.len() + group.wakes.len() })
    }

    /// What an NF in a VM says of itself, if it has: heard once, and packets may come when it is ready. To be asked every
    /// few milliseconds until it says something; what it says is its own word only.
    pub fn hear_guest(&mut self, id: InstanceId) -> Option<ReadyMessage> {
        let instance = self.instances.get_mut(&id)?;
        if instance.guest.is_none() || instance.state != InstanceState::Attaching {
            return None;
        }
        let ready_message = instance.control.ready_message()?;
        if let ReadyMessage::Ready { counters, .. } = &ready_message {
            instance.counters.clone_from(counters);
            self.activate(id);
        }
        Some(ready_message)
    }

    fn let_in(
        &mut self,
        hello: &Hello,
        standby: bool,
        guest: Option<Notify>,
    ) -> Result<InstanceId, AdmitError> {
        if hello.layout != LAYOUT_VERSION {
            return Err(AdmitError::Layout { theirs: hello.layout });
        }
        let threads = usize::from(hello.threads);
        if threads == 0 || threads > MAX_THREADS || hello.counters.len() > MAX_COUNTERS {
            return Err(AdmitError::TooMany { threads, counters: hello.counters.len() });
        }
        let nf =
            self.host.nfs.iter().find(|nf| nf.role == hello.role).ok_or_else(|| AdmitError::UnknownRole {
                role: hello.role.clone(),
                known: self.host.nfs.iter().map(|nf| nf.role.clone()).collect(),
            })?;
        let (role, group_id) = (nf.id, nf.group);
        let free_links: Vec<LinkId> = self.free_links().take(threads * self.workers.len()).collect();
        if free_links.len() < threads * self.workers.len() {
            return Err(AdmitError::Full { what: "links between NF threads and workers", most: MAX_LINKS });
        }
        let worker_regions = self.worker_regions.clone();
        let ring_capacity = self.host.engine.ring_size;
        let Some(group) = self.groups.get_mut(&group_id) else {
            return Err(AdmitError::UnknownRole { role: hello.role.clone(), known: Vec::new() });
        };
        let nf_threads: Vec<NfThreadId> = (0..threads).map_while(|_| group.take_nf_thread()).collect();
        let mask = nf_threads.iter().fold(0u64, |mask, nf_thread| mask | 1 << nf_thread.0);
        if nf_threads.len() < threads {
            group.release_nf_threads(mask);
            return Err(AdmitError::Full { what: "NF threads in the trust group", most: 63 });
        }
        let admission = Admission {
            group: u32::from(group_id.0),
            role: role.0,
            ring_capacity,
            nf_threads: nf_threads.iter().map(|nf_thread| nf_thread.0).collect(),
            worker_regions,
            geometries: group.memories.iter().map(|memory| *memory.region().geometry()).collect(),
        };
        let control =
            Control::create(&hello.role, &admission, None).inspect_err(|_| group.release_nf_threads(mask))?;
        if let Some(notify) = guest {
            control.set_notify(notify);
        }
        if guest == Some(Notify::Poll) {
            group.silence(mask);
        }
        let id = InstanceId(self.next_instance);
        self.next_instance += 1;
        let links: Vec<_> = free_links.chunks(self.workers.len()).map(<[LinkId]>::to_vec).collect();
        let before = self.sums_of(&links);
        let instance = Instance {
            id,
            role,
            name: hello.role.clone(),
            group: group_id,
            state: InstanceState::Attaching,
            standby,
            guest,
            control: Arc::new(control),
            table: None,
            nf_threads,
            links,
            before,
            counters: hello.counters.clone(),
            since: Instant::now(),
            settling: None,
        };
        self.instances.insert(id, instance);
        Ok(id)
    }

    /// What an NF that was let in is to be passed; `None` when there is no such NF.
    #[must_use]
    pub fn descriptors(&self, id: InstanceId) -> Option<Fds<BorrowedFd<'_>>> {
        let instance = self.instances.get(&id)?;
        let group = self.groups.get(&instance.group)?;
        Some(Fds {
            control: instance.control.as_fd(),
            table: instance.table.as_ref().map_or(group.publisher.as_fd(), |table| table.as_fd()),
            regions: group.memories.iter().map(|memory| memory.region().mapping().as_fd()).collect(),
            workers: group.calls.iter().map(AsFd::as_fd).collect(),
            nf_threads: group.wakes.iter().map(|wake| wake.as_fd()).collect(),
        })
    }

    /// The NF has mapped everything: packets may come (or, of a standby, it may be called).
    pub fn activate(&mut self, id: InstanceId) {
        let Some(instance) = self.instances.get_mut(&id) else { return };
        instance.state = if instance.standby { InstanceState::Standby } else { InstanceState::Active };
        let (group, role, control) = (instance.group, instance.role, Arc::clone(&instance.control));
        let (nf_threads, links) = (instance.nf_threads.clone(), instance.links.clone());
        let silent = instance.guest == Some(Notify::Poll);
        let Some(group) = self.groups.get(&group) else { return };
        for (thread, (nf_thread, links)) in (0u16..).zip(nf_threads.iter().zip(&links)) {
            for (worker, link) in self.workers.iter_mut().zip(links) {
                let who = (role, thread, *nf_thread);
                let made = make_link(group, &control, who, worker.id, *link, &self.worker_regions);
                let memory = &group.memories[usize::from(self.worker_regions[worker.id.index()])];
                let in_flight = ThreadInFlight::new(*link, *nf_thread, Arc::clone(&memory.in_flight));
                worker.send(Command::AddLink(Box::new(made.silent(silent)), in_flight));
            }
        }
        self.rebuild_in_order();
    }

    fn free_links(&self) -> impl Iterator<Item = LinkId> + use<> {
        let mut used = [false; MAX_LINKS];
        let live = self.instances.values().flat_map(|instance| instance.links.iter());
        for link in live.chain(self.teardowns.iter().flat_map(super::teardown::Teardown::links)).flatten() {
            used[link.index()] = true;
        }
        (0..MAX_LINKS).filter(move |link| !used[*link]).map(|link| LinkId(link as u16))
    }
}

fn make_link(
    group: &GroupState,
    control: &Arc<Control>,
    (role, thread, nf_thread): (RoleId, u16, NfThreadId),
    worker: WorkerId,
    id: LinkId,
    worker_regions: &[u8],
) -> Link {
    let memory = &group.memories[usize::from(worker_regions[worker.index()])];
    let number = u16::from(worker.0);
    // SAFETY: the engine's only ends of these rings: each instance is activated once, each link goes to one worker, and
    // the link keeps the control memory mapped.
    let (to_nf, from_nf) = unsafe {
        (control.ring_to_nf(thread, number).producer(), control.ring_from_nf(thread, number).consumer())
    };
    let wake = Arc::clone(&group.wakes[nf_thread.index()]);
    Link::new(id, group.id(), role, memory.id, to_nf, from_nf, wake, Arc::clone(control))
}
