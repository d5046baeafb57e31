// SPDX-License-Identifier: Apache-2.0
//! The teardown of an NF: its traffic is redirected, its buffers are reclaimed, and its numbers become free.
//!
//! ```text
//!  dies ──────────────────────────────┐
//!                                     ▼
//!  leaves: gets no new packets, ──▶ departed: tables and snapshots without it; links drained; first sweep
//!          sends on what it holds,            │  all NF threads of the group confirm the new table
//!          is asked to stop                   ▼
//!                                   last sweep: what others handed to it meanwhile
//!                                             │
//!                                             ▼
//!                                   its numbers and rings are free; an audit of the group begins
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use netvm_model::{Host, NfStart};

use super::Nfs;
use super::instance::{Instance, InstanceState};
use crate::ids::{InstanceId, NfThreadId, RoleId};
use crate::inflight::held::{HeldPacket, HeldPacketCollector, MAX_HELD_PACKETS};
use crate::inflight::sweep::{SweepScope, Swept};
use crate::manager::notice::{Notice, Notices};
use crate::manager::workers::{Pending, Workers};

/// Time limit for a leaving NF to send on the packets that it holds.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time after which every worker certainly uses a new snapshot.
const SNAPSHOT_SETTLE_TIME: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    FirstSweep,
    /// Some NFs have not confirmed the table without it yet.
    Confirming,
    LastSweep,
}

/// The packets that an NF had taken from its rings and not passed on when it ended.
#[derive(Clone, Debug)]
pub struct HeldPackets {
    /// The NF.
    pub instance: InstanceId,
    /// When it ended.
    pub at: SystemTime,
    /// The packets, at most 64, in the order in which it took them.
    pub packets: Vec<HeldPacket>,
}

/// The teardown of an NF that has ended.
pub(super) struct Teardown {
    /// Keeps the memory of the links' rings until the workers have retired the links.
    instance: Instance,
    /// The table without the NF.
    epoch: u64,
    phase: Phase,
    /// The sweep in progress.
    pending: Pending,
    buffers: u64,
    since: Instant,
    first_sweep: Duration,
    /// The packets that the NF had.
    last: HeldPackets,
}

impl Teardown {
    pub(super) const fn instance(&self) -> &Instance {
        &self.instance
    }

    pub(super) fn into_instance(self) -> Instance {
        self.instance
    }

    /// What is reported at its end.
    fn notice(&self) -> Notice {
        Notice::Reclaimed {
            instance: self.instance.id,
            role: self.instance.role,
            buffers: self.buffers,
            first_sweep: self.first_sweep,
            total: self.since.elapsed(),
        }
    }

    /// Records a finished sweep if it belongs to this teardown.
    pub(super) fn swept(&mut self, done: Swept, what: &mut SweepScope) {
        if self.pending.answer(done.ticket) {
            self.buffers += done.buffers;
            if let SweepScope::Gone { held, .. } = what
                && let Some(held) = held.take()
            {
                self.last.packets.extend(held.into_packets());
                self.last.packets.truncate(MAX_HELD_PACKETS);
            }
            if self.phase == Phase::FirstSweep {
                self.first_sweep = self.first_sweep.max(done.at.duration_since(self.since));
            }
        }
    }
}

/// An NF whose process has ended.
pub(crate) struct Departed {
    instance: Instance,
    /// The buffers that it wrote to other NFs' rings but did not publish, each with the NF thread of the ring.
    stranded: Vec<(u32, NfThreadId)>,
    since: Instant,
}

impl Nfs {
    /// Asks an NF to leave: it gets no new packets and sends on the packets that it holds. Then it is asked to stop,
    /// and it closes its connection. A standby replica replaces it at once. Returns whether tables and snapshots have
    /// to follow.
    pub(crate) fn dismiss(&mut self, id: InstanceId, host: &Host, notices: &mut Notices) -> bool {
        let Some(instance) = self.instances.get_mut(&id) else { return false };
        let role = instance.role;
        match instance.state {
            InstanceState::Attaching | InstanceState::Standby => {
                instance.control.request_stop();
                self.wake(id);
                false
            }
            InstanceState::Active | InstanceState::Hung => {
                instance.state = InstanceState::Leaving;
                instance.since = Instant::now();
                self.promote_standby(role, host, notices);
                true
            }
            InstanceState::Leaving => false,
        }
    }

    /// Removes an NF whose process has ended (its connection is closed), of which tables and snapshots have to be free
    /// before [`Nfs::tear_down`]. A standby replica replaces it.
    pub(crate) fn remove(&mut self, id: InstanceId, host: &Host, notices: &mut Notices) -> Option<Departed> {
        let since = Instant::now();
        let instance = self.instances.remove(&id)?;
        let stranded = self.stranded(&instance);
        if let Some(group) = self.groups.get_mut(&instance.group) {
            group.mark_gone(instance.mask());
        }
        for audit in self.audits.iter_mut().filter(|audit| audit.group == instance.group) {
            audit.restart();
        }
        if instance.state == InstanceState::Active {
            self.promote_standby(instance.role, host, notices);
        }
        Some(Departed { instance, stranded, since })
    }

    /// Begins the teardown of an NF.
    pub(crate) fn tear_down(&mut self, departed: Departed, workers: &mut Workers) {
        let Departed { instance, stranded, since } = departed;
        let epoch = self.groups.get(&instance.group).map_or(0, |group| group.publisher.epoch());
        workers.remove_links(&instance.links);
        let phase = Phase::FirstSweep;
        let pending = self.sweep_gone(&instance, &stranded, phase, workers);
        self.teardowns.push(Teardown {
            last: HeldPackets { instance: instance.id, at: SystemTime::now(), packets: Vec::new() },
            instance,
            epoch,
            phase,
            pending,
            buffers: 0,
            since,
            first_sweep: Duration::ZERO,
        });
    }

    /// The buffers that a dead NF wrote to other NFs' rings but did not publish, each with the NF thread of the ring.
    fn stranded(&self, instance: &Instance) -> Vec<(u32, NfThreadId)> {
        let Some(group) = self.groups.get(&instance.group) else { return Vec::new() };
        let rings = instance.nf_threads.iter().flat_map(|from| group.rings_from(*from));
        let rings = rings.filter_map(|(to, ring)| Some((to, group.ring(ring)?)));
        let mut stranded = Vec::new();
        for (to, ring) in rings {
            stranded.extend(ring.unpublished().map(|descriptor| (descriptor.buffer(), to)));
        }
        stranded
    }

    /// Activates a standby replica of a role. Does nothing if the role has none, or if enough replicas are active
    /// because the instance that ended was about to become a standby itself.
    pub(super) fn promote_standby(&mut self, role: RoleId, host: &Host, notices: &mut Notices) {
        let Some(nf) = host.nf(role) else { return };
        let is =
            |other: &Instance, state| other.role == role && other.group == nf.group && other.state == state;
        if let NfStart::Managed { replicas, .. } = nf.start {
            let instances = self.instances.values();
            if instances.filter(|other| is(other, InstanceState::Active)).count() >= usize::from(replicas) {
                return;
            }
        }
        let mut instances = self.instances.values_mut();
        if let Some(standby) = instances.find(|other| is(other, InstanceState::Standby)) {
            standby.state = InstanceState::Active;
            standby.standby = false;
            notices.push(Notice::StandbyTookOver { instance: standby.id, role: standby.role });
        }
    }

    /// Begins a sweep of the buffers of an NF that has ended, the first one with copies of the packets that it had.
    fn sweep_gone(
        &self,
        instance: &Instance,
        stranded: &[(u32, NfThreadId)],
        phase: Phase,
        workers: &mut Workers,
    ) -> Pending {
        let Some(group) = self.groups.get(&instance.group) else { return Pending::default() };
        let nf_threads = instance.mask();
        let rings = instance.nf_threads.iter().flat_map(|to| group.rings_to(*to));
        let direct = rings.filter_map(|ring| {
            let memory = group.memories().get(usize::from(ring.region))?;
            Some((Arc::clone(&memory.in_flight), ring.index))
        });
        let direct: Vec<_> = direct.collect();
        let held = |region: usize| {
            let threads = instance.nf_threads.len() as u16;
            let held = HeldPacketCollector::new(Arc::clone(&instance.control), threads, direct.clone());
            Box::new(held.with_buffers(group.memories()[region].in_flight.len()))
        };
        workers.sweep(group.memories(), |region| SweepScope::Gone {
            nf_threads,
            stranded: stranded.to_vec(),
            held: (phase == Phase::FirstSweep).then(|| held(region)),
        })
    }

    /// The packets of a role's last NF that ended while it held packets.
    pub(crate) fn held_packets(&self, role: &str) -> Option<&HeldPackets> {
        self.held_packets.get(role)
    }

    /// Advances teardowns, and stops NFs that have left.
    pub(super) fn service_teardowns(&mut self, host: &Host, workers: &mut Workers, notices: &mut Notices) {
        self.stop_leaving(workers);
        for mut teardown in std::mem::take(&mut self.teardowns) {
            if self.advance_teardown(&mut teardown, workers) {
                self.add_to_past(&teardown.instance, host, workers);
                self.finish_teardown(&teardown, workers);
                notices.push(teardown.notice());
            } else {
                self.teardowns.push(teardown);
            }
        }
    }

    /// Returns whether the teardown is done.
    fn advance_teardown(&mut self, teardown: &mut Teardown, workers: &mut Workers) -> bool {
        match teardown.phase {
            _ if !teardown.pending.is_empty() => false,
            Phase::FirstSweep => {
                teardown.phase = Phase::Confirming;
                if !teardown.last.packets.is_empty() {
                    let name = teardown.instance.name.clone();
                    self.held_packets.insert(name, teardown.last.clone());
                }
                false
            }
            Phase::Confirming => {
                if self.all_have_confirmed(teardown.instance.group, teardown.epoch) {
                    teardown.phase = Phase::LastSweep;
                    teardown.pending = self.sweep_gone(&teardown.instance, &[], teardown.phase, workers);
                }
                false
            }
            Phase::LastSweep => true,
        }
    }

    /// Frees the numbers of an NF, and begins the audit of its group.
    fn finish_teardown(&mut self, teardown: &Teardown, workers: &mut Workers) {
        let instance = &teardown.instance;
        if let Some(group) = self.groups.get_mut(&instance.group) {
            group.release_nf_threads(instance.mask());
        }
        self.begin_audit(instance.group, workers);
    }

    /// Stops leaving NFs that hold no packets any more, or whose time is up.
    fn stop_leaving(&mut self, workers: &mut Workers) {
        let leaving = self.instances.values().filter(|nf| nf.state == InstanceState::Leaving);
        for (id, age) in leaving.map(|nf| (nf.id, nf.since.elapsed())).collect::<Vec<_>>() {
            if age <= LEAVE_TIMEOUT && (age <= SNAPSHOT_SETTLE_TIME || !self.holds_nothing(id, workers)) {
                continue;
            }
            if let Some(instance) = self.instances.get(&id) {
                instance.control.request_stop();
            }
            self.wake(id);
        }
    }

    /// Whether a leaving NF holds no packets, except those that it keeps: it sends or releases them when it is asked to
    /// stop. The in-flight table is conclusive only after every other NF has confirmed
    /// the table without it, and every worker has then passed a barrier and so spilled its queues.
    fn holds_nothing(&mut self, id: InstanceId, workers: &mut Workers) -> bool {
        let Some(instance) = self.instances.get(&id) else { return true };
        let Some(group) = self.groups.get(&instance.group) else { return true };
        let Some(pending) = &instance.settling else {
            let epoch = group.publisher.epoch();
            if self.members(instance.group).all(|other| other.has_confirmed(epoch)) {
                let pending = workers.barrier();
                if let Some(instance) = self.instances.get_mut(&id) {
                    instance.settling = Some(pending);
                }
            }
            return false;
        };
        let holds = |nf_thread: &NfThreadId| {
            group.memories().iter().any(|memory| memory.in_flight.buffers_to_return(*nf_thread) > 0)
        };
        pending.is_empty() && !instance.nf_threads.iter().any(holds)
    }
}
