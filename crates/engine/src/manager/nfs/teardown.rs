//! Teardown of an NF that dies or leaves: redirects its traffic, reclaims its buffers, frees its numbers.
//!
//! ```text
//!  dies ────────────────────────────────┐
//!                                       ▼
//!  leaves: no new packets, returns ───▶ gone: tables and snapshots without it; links drained; first sweep
//!          what it has, gets `Stop`                │  all NF threads of the group use the new table
//!                                                  ▼
//!                                       last sweep: what other NFs handed to it meanwhile
//!                                                  │
//!                                                  ▼
//!                                       numbers and rings are free
//! ```

use std::time::{Duration, Instant};

use netvm_config::model::NfStart;

use super::instance::{Instance, InstanceState};
use crate::ids::{GroupId, InstanceId, LinkId, NfThreadId, RoleId, WorkerId};
use crate::inflight::sweep::{Swept, What};
use crate::manager::workers::Pending;
use crate::manager::{Engine, Notice};
use crate::worker::Command;

/// How long a leaving NF may take to return its packets.
const GRACE: Duration = Duration::from_secs(2);
/// After this time all workers use the new snapshot.
const SETTLE: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    FirstSweep,
    AwaitingOthers,
    LastSweep,
}

/// A teardown in progress.
pub(crate) struct Teardown {
    /// Keeps the rings of its links mapped until the links are retired.
    instance: Instance,
    mask: u64,
    /// Epoch of the table without it.
    epoch: u64,
    phase: Phase,
    /// The sweeps in progress.
    sweeps: Pending,
    buffers: u64,
    since: Instant,
    first_sweep: Duration,
}

impl Teardown {
    pub(crate) const fn group(&self) -> GroupId {
        self.instance.group
    }

    pub(crate) const fn instance(&self) -> &Instance {
        &self.instance
    }

    pub(crate) fn links(&self) -> impl Iterator<Item = &Vec<LinkId>> {
        self.instance.links.iter()
    }
}

impl Engine {
    /// Asks an NF to leave: it gets no new packets, returns what it has, and then gets the stop command and closes its
    /// connection. A standby replaces it at once.
    pub fn dismiss(&mut self, id: InstanceId) {
        let Some(instance) = self.nfs.instances.get_mut(&id) else { return };
        let role = instance.role;
        match instance.state {
            InstanceState::Attaching | InstanceState::Standby => {
                instance.control.request_stop();
                self.wake_nf_threads(id);
            }
            InstanceState::Active => {
                instance.state = InstanceState::Leaving;
                instance.since = Instant::now();
                self.promote_standby(role);
                self.rebuild();
            }
            InstanceState::Leaving => {}
        }
    }

    /// The NF's process has ended (its connection is closed): redirects its traffic as its chains say and reclaims its
    /// buffers.
    pub fn departed(&mut self, id: InstanceId) {
        let since = Instant::now();
        let Some(instance) = self.nfs.instances.remove(&id) else { return };
        let mask = instance.mask();
        let stranded = self.stranded(&instance);
        if let Some(group) = self.nfs.groups.get_mut(&instance.group) {
            group.mark_gone(mask);
        }
        self.restart_audit(instance.group);
        if instance.state == InstanceState::Active {
            self.promote_standby(instance.role);
        }
        self.rebuild();
        let epoch = self.nfs.groups.get(&instance.group).map_or(0, |group| group.publisher.epoch());
        for links in &instance.links {
            for (worker, link) in (0u8..).zip(links) {
                self.workers.send(WorkerId(worker), Command::RemoveLink(*link));
            }
        }
        let sweeps = self.sweep(instance.group, mask, &stranded);
        self.nfs.teardowns.push(Teardown {
            instance,
            mask,
            epoch,
            phase: Phase::FirstSweep,
            sweeps,
            buffers: 0,
            since,
            first_sweep: Duration::ZERO,
        });
    }

    /// Buffers that the dead NF wrote to other NFs' rings without publishing them.
    fn stranded(&self, instance: &Instance) -> Vec<(u32, NfThreadId)> {
        let Some(group) = self.nfs.groups.get(&instance.group) else { return Vec::new() };
        let rings = instance.nf_threads.iter().flat_map(|from| group.rings_from(*from));
        let rings = rings.filter_map(|(to, ring)| {
            Some((to, group.memories.get(usize::from(ring.region))?.region().ring(ring.index)?))
        });
        let mut stranded = Vec::new();
        for (to, ring) in rings {
            stranded.extend(ring.unpublished().map(|descriptor| (descriptor.buffer(), to)));
        }
        stranded
    }

    /// Activates a standby of the role if fewer NFs than `replicas` are active.
    fn promote_standby(&mut self, role: RoleId) {
        let Some(nf) = self.host.nf(role) else { return };
        let is =
            |other: &Instance, state| other.role == role && other.group == nf.group && other.state == state;
        if let NfStart::Managed { replicas, .. } = nf.start {
            let active = self.nfs.instances.values().filter(|other| is(other, InstanceState::Active)).count();
            if active >= usize::from(replicas) {
                return;
            }
        }
        let waiting = |other: &&mut Instance| is(other, InstanceState::Standby);
        if let Some(standby) = self.nfs.instances.values_mut().find(waiting) {
            standby.state = InstanceState::Active;
            standby.standby = false;
            self.notices.push(Notice::StandbyTookOver { instance: standby.id, role: standby.role });
        }
    }

    fn sweep(&mut self, group: GroupId, nf_threads: u64, stranded: &[(u32, NfThreadId)]) -> Pending {
        let Some(group) = self.nfs.groups.get(&group) else { return Pending::default() };
        self.workers.sweep(&group.memories, |_| What::Gone { nf_threads, stranded: stranded.to_vec() })
    }

    /// A sweep is done.
    pub(crate) fn swept(&mut self, done: Swept) {
        if self.audit_swept(done) {
            return;
        }
        let mut teardowns = self.nfs.teardowns.iter_mut();
        if let Some(teardown) =
            teardowns.find_map(|teardown| teardown.sweeps.answer(done.ticket).then_some(teardown))
        {
            teardown.buffers += done.buffers;
            if teardown.phase == Phase::FirstSweep {
                teardown.first_sweep = teardown.first_sweep.max(done.at.duration_since(teardown.since));
            }
        }
    }

    /// Advances teardowns and leaving NFs.
    pub(crate) fn serve_teardowns(&mut self) {
        self.stop_drained_nfs();
        let mut done = Vec::new();
        for index in 0..self.nfs.teardowns.len() {
            if self.nfs.teardowns[index].sweeps.is_empty() && self.advance(index) {
                done.push(index);
            }
        }
        for index in done.into_iter().rev() {
            let teardown = self.nfs.teardowns.remove(index);
            let group_id = teardown.group();
            self.remember(group_id, &teardown.instance);
            if let Some(group) = self.nfs.groups.get_mut(&group_id) {
                group.release_nf_threads(teardown.mask);
            }
            self.nfs.reclaimed += teardown.buffers;
            self.want_audit(group_id);
            self.notices.push(Notice::Reclaimed {
                instance: teardown.instance.id,
                role: teardown.instance.role,
                buffers: teardown.buffers,
                first_sweep: teardown.first_sweep,
                total: teardown.since.elapsed(),
            });
        }
    }

    /// The sweep of this phase is done: enters the next. Returns whether the teardown is complete.
    fn advance(&mut self, index: usize) -> bool {
        let (group, epoch, mask) = {
            let teardown = &self.nfs.teardowns[index];
            (teardown.group(), teardown.epoch, teardown.mask)
        };
        match self.nfs.teardowns[index].phase {
            Phase::FirstSweep => {
                self.nfs.teardowns[index].phase = Phase::AwaitingOthers;
                false
            }
            Phase::AwaitingOthers => {
                if self.nfs.all_have_seen(group, epoch) {
                    let sweeps = self.sweep(group, mask, &[]);
                    let teardown = &mut self.nfs.teardowns[index];
                    teardown.sweeps = sweeps;
                    teardown.phase = Phase::LastSweep;
                }
                false
            }
            Phase::LastSweep => true,
        }
    }

    /// Stops leaving NFs that have returned everything or run out of time.
    fn stop_drained_nfs(&mut self) {
        let leaving = self.nfs.instances.values().filter(|instance| instance.state == InstanceState::Leaving);
        for (id, age) in leaving.map(|instance| (instance.id, instance.since.elapsed())).collect::<Vec<_>>() {
            if age <= GRACE && (age <= SETTLE || !self.is_drained(id)) {
                continue;
            }
            if let Some(instance) = self.nfs.instances.get(&id) {
                instance.control.request_stop();
            }
            self.wake_nf_threads(id);
        }
    }

    /// Whether a leaving NF has no packets. The in-flight table is complete once workers have spilled their queues to
    /// it, after all other NFs know that it leaves.
    fn is_drained(&mut self, id: InstanceId) -> bool {
        let Some(instance) = self.nfs.instances.get(&id) else { return true };
        let Some(group) = self.nfs.groups.get(&instance.group) else { return true };
        let Some(unanswered) = &instance.settling else {
            let epoch = group.publisher.epoch();
            let mut others = self.nfs.instances.values().filter(|other| other.group == instance.group);
            if others.all(|other| other.has_seen(epoch)) {
                let barrier = self.workers.barrier();
                if let Some(instance) = self.nfs.instances.get_mut(&id) {
                    instance.settling = Some(barrier);
                }
            }
            return false;
        };
        let holds = |nf_thread: &NfThreadId| {
            group.memories.iter().any(|memory| memory.in_flight.buffers_with(*nf_thread) > 0)
        };
        unanswered.is_empty() && !instance.nf_threads.iter().any(holds)
    }

    fn wake_nf_threads(&mut self, id: InstanceId) {
        let Some(instance) = self.nfs.instances.get(&id) else { return };
        let Some(group) = self.nfs.groups.get_mut(&instance.group) else { return };
        for nf_thread in &instance.nf_threads {
            group.wake(&self.nfs.signaller, *nf_thread);
        }
    }
}
