//! An attached NF: a process or VM with its control memory, NF threads and links to every worker.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_attach::{Fds, Hello};
use netvm_region::{
    Admission, Control, LAYOUT_VERSION, MAX_COUNTERS, MAX_NF_THREADS, MAX_THREADS, MapError, NotifyMode,
    ReadyMessage, TableCopy,
};

use super::AdmitError;
use super::cpu_time::CpuTime;
use crate::ids::{GroupId, InstanceId, LinkId, NfThreadId, RoleId, WorkerId, mask_of};
use crate::inflight::ThreadInFlight;
use crate::link::{Link, MAX_LINKS};
use crate::manager::Engine;
use crate::manager::workers::{LinkSums, Pending};
use crate::worker::Command;

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
pub(crate) struct Progress {
    position: u64,
    /// For how long packets have waited without progress although the NF's process could run.
    pub(super) stalled: Duration,
    /// For how long they have waited while it got no core.
    pub(super) starved: Duration,
    /// Highest fill level of its receive rings in about the last second, from 0 to 1: a peak that decays.
    pub(crate) fill: f32,
}

/// One observation of an NF thread by the watchdog.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
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
    pub(super) const fn stands_still(&self, look: &Look) -> bool {
        look.waits && look.position == self.position
    }

    /// Adds an observation.
    pub(super) fn note(&mut self, look: Look, since: Interval) {
        let (stalled, starved) = match self.stands_still(&look) {
            true => (self.stalled + since.granted, self.starved + since.step.saturating_sub(since.granted)),
            false => (Duration::ZERO, Duration::ZERO),
        };
        let share = since.step.as_secs_f32().min(1.0);
        *self = Self {
            position: look.position,
            stalled,
            starved,
            fill: look.fill.max(self.fill * (1.0 - share)),
        };
    }
}

/// An attached NF.
pub(crate) struct Instance {
    pub(crate) id: InstanceId,
    pub(crate) role: RoleId,
    /// The role's name; role ids are reused.
    pub(crate) name: String,
    pub(crate) group: GroupId,
    pub(crate) state: InstanceState,
    pub(crate) standby: bool,
    /// How it wakes others, if it runs in a VM. Such an NF reports in its control memory that it is ready.
    pub(crate) guest: Option<NotifyMode>,
    pub(crate) control: Arc<Control>,
    /// Its own copy of the group's table, if it has one.
    pub(crate) table: Option<Arc<TableCopy>>,
    pub(crate) nf_threads: Vec<NfThreadId>,
    /// By thread and worker.
    pub(crate) links: Vec<Vec<LinkId>>,
    /// By thread: the counters of its links when it got them, because links are reused.
    pub(crate) before: Vec<LinkSums>,
    pub(crate) counters: Vec<String>,
    /// It accepts packets with pending offloads.
    pub(crate) offloads: bool,
    pub(crate) since: Instant,
    /// By thread.
    pub(crate) progress: Vec<Progress>,
    pub(super) cpu_time: CpuTime,
    /// It got no core for its `hang_timeout`, and has made no progress since.
    pub(crate) is_starved: bool,
    /// While it is leaving: the barrier after all NFs of the group have the table without it; `None` before.
    pub(crate) settling: Option<Pending>,
}

impl Instance {
    /// Bit mask of its NF threads.
    pub(crate) fn mask(&self) -> u64 {
        mask_of(&self.nf_threads)
    }

    /// Whether every thread uses the table of `epoch` or a later one.
    pub(crate) fn has_confirmed(&self, epoch: u64) -> bool {
        let seen =
            |thread| self.control.thread(thread).epoch.load(std::sync::atomic::Ordering::Acquire) >= epoch;
        (0..self.nf_threads.len() as u16).all(seen)
    }
}

impl Engine {
    /// Admits an NF: reserves NF threads and links and creates its control memory. The caller passes it the result of
    /// [`Engine::descriptors`], and calls [`Engine::activate`] when it is ready.
    ///
    /// `standby`: it waits to replace an NF that dies.
    ///
    /// # Errors
    /// [`AdmitError`]; nothing is changed then.
    pub fn admit(&mut self, hello: &Hello, standby: bool) -> Result<InstanceId, AdmitError> {
        self.admit_any(hello, standby, None)
    }

    /// As [`Engine::admit`], for an NF in a VM, before the VM starts. The VM sees the memories of
    /// [`Engine::descriptors`] as PCI devices and wakes others as `notify` says. Then call [`Engine::guest_ready`]
    /// until it answers, and [`Engine::departed`] when the VM has ended.
    ///
    /// # Errors
    /// As for [`Engine::admit`].
    pub fn admit_guest(
        &mut self,
        role: &str,
        threads: u16,
        standby: bool,
        notify: NotifyMode,
    ) -> Result<InstanceId, AdmitError> {
        let (role, name) = (role.to_owned(), String::new());
        let hello =
            Hello { layout: LAYOUT_VERSION, role, name, threads, counters: Vec::new(), offloads: false };
        self.admit_any(&hello, standby, Some(notify))
    }

    /// Names the process of an NF: the NF's own, or the one that runs its VM. Without it, an NF that gets no core
    /// counts as hung.
    pub fn set_process(&mut self, id: InstanceId, pid: u32) {
        if let Some(instance) = self.nfs.instances.get_mut(&id) {
            instance.cpu_time = CpuTime::of(pid);
        }
    }

    /// Gives an admitted NF its own copy of the next-hop table, for VMs whose devices map everything writable. Writes
    /// of the VM to the copy affect only the VM.
    ///
    /// # Errors
    /// [`MapError`] if memory runs out.
    pub fn give_own_table(&mut self, id: InstanceId) -> Result<(), MapError> {
        let Some(instance) = self.nfs.instances.get_mut(&id) else { return Ok(()) };
        let Some(group) = self.nfs.groups.get_mut(&instance.group) else { return Ok(()) };
        instance.table = Some(group.publisher.copy(&instance.name)?);
        Ok(())
    }

    /// The devices that a VM needs to be an NF of this role; `None` for an unknown role.
    #[must_use]
    pub fn guest_shape(&self, role: &str) -> Option<GuestShape> {
        let group = self.nfs.groups.get(&self.host.nf_named(role)?.group)?;
        Some(GuestShape { regions: group.memories.len(), vectors: group.calls.len() + group.wakes.len() })
    }

    /// The ready message of an NF in a VM, once; activates the NF. Poll it every few milliseconds. The message is not
    /// trusted.
    pub fn guest_ready(&mut self, id: InstanceId) -> Option<ReadyMessage> {
        let instance = self.nfs.instances.get_mut(&id)?;
        if instance.guest.is_none() || instance.state != InstanceState::Attaching {
            return None;
        }
        let ready_message = instance.control.ready_message()?;
        if let ReadyMessage::Ready { counters, .. } = &ready_message {
            instance.counters = shown(counters);
            self.activate(id);
        }
        Some(ready_message)
    }

    fn admit_any(
        &mut self,
        hello: &Hello,
        standby: bool,
        guest: Option<NotifyMode>,
    ) -> Result<InstanceId, AdmitError> {
        if hello.layout != LAYOUT_VERSION {
            return Err(AdmitError::Layout { found: hello.layout });
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
        let free_links: Vec<LinkId> =
            self.nfs.free_links(group_id).take(threads * self.workers.len()).collect();
        if free_links.len() < threads * self.workers.len() {
            return Err(AdmitError::Full {
                what: "links between NF threads and workers (some are reserved for other trust groups)",
                most: MAX_LINKS,
            });
        }
        let worker_regions = self.workers.regions().to_vec();
        let ring_capacity = self.host.engine.ring_size;
        let Some(group) = self.nfs.groups.get_mut(&group_id) else {
            return Err(AdmitError::UnknownRole { role: hello.role.clone(), known: Vec::new() });
        };
        let nf_threads: Vec<NfThreadId> = (0..threads).map_while(|_| group.take_nf_thread()).collect();
        let mask = mask_of(&nf_threads);
        if nf_threads.len() < threads {
            group.release_nf_threads(mask);
            return Err(AdmitError::Full { what: "NF threads in the trust group", most: MAX_NF_THREADS - 1 });
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
        if guest == Some(NotifyMode::Poll) {
            group.silence(mask);
        }
        self.nfs.last_instance += 1;
        let id = InstanceId(self.nfs.last_instance);
        let links: Vec<_> = free_links.chunks(self.workers.len()).map(<[LinkId]>::to_vec).collect();
        let before = links.iter().map(|links| self.workers.link_sums(links)).collect();
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
            counters: shown(&hello.counters),
            offloads: hello.offloads,
            since: Instant::now(),
            progress: Vec::new(),
            cpu_time: CpuTime::default(),
            is_starved: false,
            settling: None,
        };
        let ends_offloads = !instance.offloads && self.nfs.takes_offloads(group_id);
        self.nfs.instances.insert(id, instance);
        if ends_offloads {
            // Before it gets packets: other NFs of the group may then send to it directly.
            self.publisher().publish();
        }
        Ok(id)
    }

    /// The descriptors to pass to an admitted NF; `None` for an unknown one.
    #[must_use]
    pub fn descriptors(&self, id: InstanceId) -> Option<Fds<BorrowedFd<'_>>> {
        let instance = self.nfs.instances.get(&id)?;
        let group = self.nfs.groups.get(&instance.group)?;
        Some(Fds {
            control: instance.control.as_fd(),
            table: instance.table.as_ref().map_or(group.publisher.as_fd(), |table| table.as_fd()),
            regions: group.memories.iter().map(|memory| memory.region().mapping().as_fd()).collect(),
            workers: group.calls.iter().map(AsFd::as_fd).collect(),
            nf_threads: group.wakes.iter().map(|wake| wake.as_fd()).collect(),
        })
    }

    /// The NF is ready: it gets packets, or waits as a standby.
    pub fn activate(&mut self, id: InstanceId) {
        let Some(instance) = self.nfs.instances.get_mut(&id) else { return };
        instance.state = if instance.standby { InstanceState::Standby } else { InstanceState::Active };
        let (group, role, control) = (instance.group, instance.role, Arc::clone(&instance.control));
        let (nf_threads, links) = (instance.nf_threads.clone(), instance.links.clone());
        let silent = instance.guest == Some(NotifyMode::Poll);
        let Some(group) = self.nfs.groups.get(&group) else { return };
        let memories = self.workers.local(&group.memories);
        for (thread, (nf_thread, links)) in (0u16..).zip(nf_threads.iter().zip(&links)) {
            for ((worker, link), memory) in (0u8..).zip(links).zip(&memories) {
                let worker = WorkerId(worker);
                // SAFETY: the engine's only ends of these rings: each instance is activated once, each link goes to one
                // worker, and the link keeps the control memory mapped.
                let (to_nf, from_nf) = unsafe {
                    let ring_to = control.ring_to_nf(thread, worker.0.into());
                    let ring_from = control.ring_from_nf(thread, worker.0.into());
                    (ring_to.producer(), ring_from.consumer())
                };
                let wake = Arc::clone(&group.wakes[nf_thread.index()]);
                let (id, control) = (*link, Arc::clone(&control));
                let link = Link::new(id, group.id(), role, memory.id, to_nf, from_nf, wake, control);
                let in_flight = ThreadInFlight::new(id, *nf_thread, Arc::clone(&memory.in_flight));
                self.workers.send(worker, Command::AddLink(Box::new(link.silent(silent)), in_flight));
            }
        }
        self.publisher().publish_in_order();
    }
}

/// Names of an NF's counters, made safe to print on an operator's terminal.
fn shown(counters: &[String]) -> Vec<String> {
    counters.iter().map(|name| netvm_attach::printable(name)).collect()
}
