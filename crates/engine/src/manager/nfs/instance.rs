// SPDX-License-Identifier: Apache-2.0
//! An attached NF: a process or VM with its control memory, NF threads and links to every worker.

mod links;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_attach::{Fds, Hello};
use netvm_model::Host;
use netvm_region::{
    Admission, Control, LAYOUT_VERSION, MAX_COUNTERS, MAX_NF_THREADS, MAX_THREADS, MapError, NotifyMode,
    OLDEST_LAYOUT, Quota, ReadyMessage, TableCopy,
};

use super::cpu_time::CpuTime;
use super::{AdmitError, Nfs};
use crate::ids::{GroupId, InstanceId, LinkId, NfThreadId, RoleId, mask_of};
use crate::link::MAX_LINKS;
use crate::manager::workers::{LinkSums, Pending, Workers};

/// Lifecycle of an attached NF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceState {
    /// Admitted, not ready.
    Attaching,
    /// Gets packets.
    Active,
    /// Ready to replace an NF that dies.
    Standby,
    /// Makes no progress although packets wait for it. It gets no new packets until it makes progress.
    Hung,
    /// Gets no new packets, and returns the packets that it has.
    Leaving,
}

/// Devices that a VM needs to be an NF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestShape {
    /// Regions of its trust group; each is a device, in addition to the control memory and the next-hop table.
    pub regions: usize,
    /// Interrupt vectors of the control memory's device: one per worker and NF thread that it can wake.
    pub vectors: usize,
}

/// The watchdog's state of an NF thread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    position: u64,
    /// For how long packets have waited without progress although the NF's process could run.
    pub(super) stalled: Duration,
    /// For how long they have waited while it got no core.
    pub(super) starved: Duration,
    /// Highest fill level of its receive rings in about the last second, from 0 to 1: a peak that decays.
    pub(super) fill: f32,
}

/// One observation of an NF thread by the watchdog.
#[derive(Clone, Copy, Debug)]
pub(super) struct Observation {
    /// Changes with the thread's progress.
    pub(super) position: u64,
    /// Whether packets wait for the thread.
    pub(super) waits: bool,
    /// Fill level of its fullest receive ring, from 0 to 1.
    pub(super) fill: f32,
}

/// The time between two observations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub(super) step: Duration,
    /// The part of it that the NF's process could use.
    pub(super) granted: Duration,
}

impl Progress {
    /// Whether the thread has made no progress since the last observation although packets wait for it.
    pub(super) const fn is_stalled(&self, observation: &Observation) -> bool {
        observation.waits && observation.position == self.position
    }

    /// Adds an observation.
    pub(super) fn note(&mut self, observation: Observation, since: Interval) {
        let (stalled, starved) = match self.is_stalled(&observation) {
            true => (self.stalled + since.granted, self.starved + since.step.saturating_sub(since.granted)),
            false => (Duration::ZERO, Duration::ZERO),
        };
        let share = since.step.as_secs_f32().min(1.0);
        *self = Self {
            position: observation.position,
            stalled,
            starved,
            fill: observation.fill.max(self.fill * (1.0 - share)),
        };
    }
}

/// An attached NF.
pub(super) struct Instance {
    pub(super) id: InstanceId,
    pub(super) role: RoleId,
    /// The role's name; role ids are reused.
    pub(super) name: String,
    pub(super) group: GroupId,
    pub(super) state: InstanceState,
    pub(super) standby: bool,
    /// How it wakes others, if it runs in a VM. Such an NF reports in its control memory that it is ready.
    pub(super) guest: Option<NotifyMode>,
    pub(super) control: Arc<Control>,
    /// Its own copy of the group's table, if it has one.
    pub(super) table: Option<Arc<TableCopy>>,
    pub(super) nf_threads: Vec<NfThreadId>,
    /// By thread and worker.
    pub(super) links: Vec<Vec<LinkId>>,
    /// By thread: the counters of its links when it got them, because links are reused.
    pub(super) before: Vec<LinkSums>,
    /// By thread: the counters of its links with workers that have ended.
    pub(super) past: Vec<LinkSums>,
    pub(super) counters: Vec<String>,
    /// It accepts packets with pending offloads.
    pub(super) offloads: bool,
    pub(super) since: Instant,
    /// By thread.
    pub(super) progress: Vec<Progress>,
    pub(super) cpu_time: CpuTime,
    /// It got no core for its `hang_timeout`, and has made no progress since.
    pub(super) is_starved: bool,
    /// It gets no new flows.
    pub(super) is_draining: bool,
    /// While it is leaving: the barrier after all NFs of the group have the table without it; `None` before.
    pub(super) settling: Option<Pending>,
}

impl Instance {
    /// Bit mask of its NF threads.
    pub(super) fn mask(&self) -> u64 {
        mask_of(&self.nf_threads)
    }

    /// Whether every thread uses the table of `epoch` or a later one.
    pub(super) fn has_confirmed(&self, epoch: u64) -> bool {
        let seen =
            |thread| self.control.thread(thread).epoch.load(std::sync::atomic::Ordering::Acquire) >= epoch;
        (0..self.nf_threads.len() as u16).all(seen)
    }
}

/// An NF that asks to be admitted.
pub(crate) struct Applicant<'a> {
    pub(crate) hello: &'a Hello,
    /// It waits to replace an NF that dies.
    pub(crate) standby: bool,
    /// How it wakes others, if it runs in a VM.
    pub(crate) guest: Option<NotifyMode>,
}

impl Nfs {
    /// Admits an NF: reserves NF threads and links and creates its control memory. Returns its number, and whether
    /// snapshots have to follow.
    pub(crate) fn admit(
        &mut self,
        applicant: &Applicant<'_>,
        host: &Host,
        workers: &Workers,
    ) -> Result<(InstanceId, bool), AdmitError> {
        let Applicant { hello, standby, guest } = *applicant;
        if !(OLDEST_LAYOUT..=LAYOUT_VERSION).contains(&hello.layout) {
            return Err(AdmitError::Layout { found: hello.layout });
        }
        let threads = usize::from(hello.threads);
        if threads == 0 || threads > MAX_THREADS || hello.counters.len() > MAX_COUNTERS {
            return Err(AdmitError::TooMany { threads, counters: hello.counters.len() });
        }
        let nf = host.nf_named(&hello.role).ok_or_else(|| AdmitError::UnknownRole {
            role: hello.role.clone(),
            known: host.nfs.iter().map(|nf| nf.role.clone()).collect(),
        })?;
        let (role, group_id) = (nf.id, nf.group);
        let quota = Quota { allocate: nf.allocate.into(), hold: nf.hold.into() };
        // A VM says nothing before it has the memory: it gets what NFs of every layout can use.
        let (layout, quota) = match guest {
            Some(_) => (OLDEST_LAYOUT, quota),
            None => (hello.layout, quota.of_layout(hello.layout)),
        };
        let free_links: Vec<LinkId> = self.free_links(group_id).take(threads * workers.len()).collect();
        if free_links.len() < threads * workers.len() {
            return Err(AdmitError::Full {
                what: "links between NF threads and workers (some are reserved for other trust groups)",
                most: MAX_LINKS,
            });
        }
        let Some(group) = self.groups.get_mut(&group_id) else {
            return Err(AdmitError::UnknownRole { role: hello.role.clone(), known: Vec::new() });
        };
        let nf_threads: Vec<NfThreadId> = (0..threads).map_while(|_| group.take_nf_thread()).collect();
        let mask = mask_of(&nf_threads);
        if nf_threads.len() < threads {
            group.release_nf_threads(mask);
            return Err(AdmitError::Full { what: "NF threads in the trust group", most: MAX_NF_THREADS - 1 });
        }
        let admission = Admission {
            layout,
            quota,
            group: u32::from(group_id.0),
            role: role.0,
            ring_capacity: host.engine.ring_size,
            nf_threads: nf_threads.iter().map(|nf_thread| nf_thread.0).collect(),
            workers: workers.room() as u16,
            worker_regions: workers.regions().to_vec(),
            geometries: group.memories().iter().map(|memory| *memory.region().geometry()).collect(),
            mailbox: guest.is_some(),
        };
        let control =
            Control::create(&hello.role, &admission, None).inspect_err(|_| group.release_nf_threads(mask))?;
        if let Some(notify) = guest {
            control.set_notify(notify);
        }
        if guest == Some(NotifyMode::Poll) {
            group.add_poll_only(mask);
        }
        self.last_instance += 1;
        let id = InstanceId(self.last_instance);
        let links: Vec<_> = free_links.chunks(workers.len()).map(<[LinkId]>::to_vec).collect();
        let before = links.iter().map(|links| workers.link_sums(links)).collect();
        let past = links.iter().map(|_| LinkSums::default()).collect();
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
            past,
            counters: shown(&hello.counters),
            offloads: hello.offloads,
            since: Instant::now(),
            progress: Vec::new(),
            cpu_time: CpuTime::default(),
            is_starved: false,
            is_draining: false,
            settling: None,
        };
        // Workers have to know before it gets packets: other NFs of the group may then send to it directly.
        let ends_offloads = !instance.offloads && self.takes_offloads(group_id);
        self.instances.insert(id, instance);
        Ok((id, ends_offloads))
    }

    /// Names the process of an NF.
    pub(crate) fn set_process(&mut self, id: InstanceId, pid: u32) {
        if let Some(instance) = self.instances.get_mut(&id) {
            instance.cpu_time = CpuTime::of(pid);
        }
    }

    /// Gives an admitted NF its own copy of the next-hop table.
    pub(crate) fn give_own_table(&mut self, id: InstanceId) -> Result<(), MapError> {
        let Some(instance) = self.instances.get_mut(&id) else { return Ok(()) };
        let Some(group) = self.groups.get_mut(&instance.group) else { return Ok(()) };
        instance.table = Some(group.publisher.copy(&instance.name)?);
        Ok(())
    }

    /// The devices that a VM needs to be an NF of a group.
    pub(crate) fn guest_shape(&self, group: GroupId) -> Option<GuestShape> {
        let group = self.groups.get(&group)?;
        Some(GuestShape { regions: group.memories().len(), vectors: group.calls.len() + group.wakes.len() })
    }

    /// The ready message of an NF in a VM, until the NF is activated.
    pub(crate) fn guest_ready(&mut self, id: InstanceId) -> Option<ReadyMessage> {
        let instance = self.instances.get_mut(&id)?;
        if instance.guest.is_none() || instance.state != InstanceState::Attaching {
            return None;
        }
        let ready_message = instance.control.ready_message()?;
        if let ReadyMessage::Ready { counters, .. } = &ready_message {
            instance.counters = shown(counters);
        }
        Some(ready_message)
    }

    /// The control memory of an NF.
    pub(crate) fn control(&self, id: InstanceId) -> Option<Arc<Control>> {
        self.instances.get(&id).map(|instance| Arc::clone(&instance.control))
    }

    /// The descriptors to pass to an admitted NF.
    pub(crate) fn descriptors(&self, id: InstanceId) -> Option<Fds<BorrowedFd<'_>>> {
        let instance = self.instances.get(&id)?;
        let group = self.groups.get(&instance.group)?;
        Some(Fds {
            control: instance.control.as_fd(),
            table: instance.table.as_ref().map_or(group.publisher.as_fd(), |table| table.as_fd()),
            regions: group.memories().iter().map(|memory| memory.region().mapping().as_fd()).collect(),
            workers: group.calls.iter().map(AsFd::as_fd).collect(),
            nf_threads: group.wakes.iter().map(|wake| wake.as_fd()).collect(),
        })
    }

    /// Gives workers the links of an NF that is ready: it gets packets as soon as tables and snapshots have it, or
    /// waits as a standby.
    pub(crate) fn activate(&mut self, id: InstanceId, workers: &mut Workers) {
        let Some(instance) = self.instances.get_mut(&id) else { return };
        instance.state = if instance.standby { InstanceState::Standby } else { InstanceState::Active };
        workers.ids().for_each(|worker| self.connect(id, worker, workers));
    }
}

/// Names of an NF's counters, made safe to print on an operator's terminal.
fn shown(counters: &[String]) -> Vec<String> {
    counters.iter().map(|name| netvm_attach::printable(name)).collect()
}
