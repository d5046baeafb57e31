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

use netvm_model::NfStart;

use super::instance::{Instance, InstanceState};
use crate::ids::{InstanceId, NfThreadId, RoleId};
use crate::inflight::held::{HeldPacket, HeldPackets, MOST};
use crate::inflight::sweep::{Swept, What};
use crate::manager::workers::Pending;
use crate::manager::{Engine, Notice};
use crate::worker::Command;

/// Time limit for a leaving NF to send on the packets that it holds.
const GRACE: Duration = Duration::from_secs(2);
/// Time after which every worker certainly uses a new snapshot.
const SETTLE: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    FirstSweep,
    /// Some NFs have not confirmed the table without it yet.
    Confirming,
    LastSweep,
}

/// The packets that an NF had taken from its rings and not passed on when it ended.
#[derive(Clone, Debug)]
pub struct LastBurst {
    /// The NF.
    pub instance: InstanceId,
    /// When it ended.
    pub at: SystemTime,
    /// The packets, at most 64, in the order in which it took them.
    pub packets: Vec<HeldPacket>,
}

/// The teardown of an NF that has ended.
pub(crate) struct Teardown {
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
    last: LastBurst,
}

impl Teardown {
    pub(crate) const fn instance(&self) -> &Instance {
        &self.instance
    }

    pub(crate) fn into_instance(self) -> Instance {
        self.instance
    }

    /// Records a finished sweep if it belongs to this teardown.
    pub(crate) fn swept(&mut self, done: Swept, what: &mut What) {
        if self.pending.answer(done.ticket) {
            self.buffers += done.buffers;
            if let What::Gone { held, .. } = what
                && let Some(held) = held.take()
            {
                self.last.packets.extend(held.into_packets());
                self.last.packets.truncate(MOST);
            }
            if self.phase == Phase::FirstSweep {
                self.first_sweep = self.first_sweep.max(done.at.duration_since(self.since));
            }
        }
    }
}

impl Engine {
    /// Asks an NF to leave: it gets no new packets and sends on the packets that it holds. Then the engine asks it to
    /// stop, and it closes its connection. A standby replica replaces it at once.
    pub fn dismiss(&mut self, id: InstanceId) {
        let Some(instance) = self.nfs.instances.get_mut(&id) else { return };
        let role = instance.role;
        match instance.state {
            InstanceState::Attaching | InstanceState::Standby => {
                instance.control.request_stop();
                self.nfs.wake(id);
            }
            InstanceState::Active | InstanceState::Hung => {
                instance.state = InstanceState::Leaving;
                instance.since = Instant::now();
                self.promote_standby(role);
                self.publisher().publish();
            }
            InstanceState::Leaving => {}
        }
    }

    /// Begins the teardown of an NF whose process has ended (its connection is closed).
    pub fn departed(&mut self, id: InstanceId) {
        let since = Instant::now();
        let Some(instance) = self.nfs.instances.remove(&id) else { return };
        let stranded = self.stranded(&instance);
        if let Some(group) = self.nfs.groups.get_mut(&instance.group) {
            group.mark_gone(instance.mask());
        }
        for audit in self.nfs.audits.iter_mut().filter(|audit| audit.group == instance.group) {
            audit.restart();
        }
        if instance.state == InstanceState::Active {
            self.promote_standby(instance.role);
        }
        self.publisher().publish();
        let epoch = self.nfs.groups.get(&instance.group).map_or(0, |group| group.publisher.epoch());
        for links in &instance.links {
            self.workers.send_all(|worker| Command::RemoveLink(links[worker.index()]));
        }
        let pending = self.sweep_gone(&instance, &stranded, true);
        self.nfs.teardowns.push(Teardown {
            last: LastBurst { instance: id, at: SystemTime::now(), packets: Vec::new() },
            instance,
            epoch,
            phase: Phase::FirstSweep,
            pending,
            buffers: 0,
            since,
            first_sweep: Duration::ZERO,
        });
    }

    /// The buffers that a dead NF wrote to other NFs' rings but did not publish, each with the NF thread of the ring.
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

    /// Activates a standby replica of a role. Does nothing if the role has none, or if enough replicas are active
    /// because the instance that ended was about to become a standby itself.
    pub(crate) fn promote_standby(&mut self, role: RoleId) {
        let Some(nf) = self.host.nf(role) else { return };
        let is =
            |other: &Instance, state| other.role == role && other.group == nf.group && other.state == state;
        if let NfStart::Managed { replicas, .. } = nf.start {
            let instances = self.nfs.instances.values();
            if instances.filter(|other| is(other, InstanceState::Active)).count() >= usize::from(replicas) {
                return;
            }
        }
        let mut instances = self.nfs.instances.values_mut();
        if let Some(standby) = instances.find(|other| is(other, InstanceState::Standby)) {
            standby.state = InstanceState::Active;
            standby.standby = false;
            self.notices.push(Notice::StandbyTookOver { instance: standby.id, role: standby.role });
        }
    }

    /// Begins a sweep of the buffers of an NF that has ended; `keeps`: copies the packets that it had.
    fn sweep_gone(&mut self, instance: &Instance, stranded: &[(u32, NfThreadId)], keeps: bool) -> Pending {
        let Some(group) = self.nfs.groups.get(&instance.group) else { return Pending::default() };
        let nf_threads = instance.mask();
        let rings = instance.nf_threads.iter().flat_map(|to| group.rings_to(*to));
        let direct = rings.filter_map(|ring| {
            let memory = group.memories.get(usize::from(ring.region))?;
            Some((Arc::clone(&memory.in_flight), ring.index))
        });
        let direct: Vec<_> = direct.collect();
        let held = |region: usize| {
            let threads = instance.nf_threads.len() as u16;
            let held = HeldPackets::new((Arc::clone(&instance.control), threads), direct.clone());
            Box::new(held.with_buffers(group.memories[region].in_flight.len()))
        };
        self.workers.sweep(&group.memories, |region| What::Gone {
            nf_threads,
            stranded: stranded.to_vec(),
            held: keeps.then(|| held(region)),
        })
    }

    /// The packets of a role's last NF that ended while it held packets.
    #[must_use]
    pub fn last_burst(&self, role: &str) -> Option<&LastBurst> {
        self.nfs.last_bursts.get(role)
    }

    /// Advances teardowns, and stops NFs that have left.
    pub(crate) fn service_teardowns(&mut self) {
        self.stop_leaving();
        for mut teardown in std::mem::take(&mut self.nfs.teardowns) {
            if self.advance_teardown(&mut teardown) {
                self.finish_teardown(&teardown);
            } else {
                self.nfs.teardowns.push(teardown);
            }
        }
    }

    /// Returns whether the teardown is done.
    fn advance_teardown(&mut self, teardown: &mut Teardown) -> bool {
        match teardown.phase {
            _ if !teardown.pending.is_empty() => false,
            Phase::FirstSweep => {
                teardown.phase = Phase::Confirming;
                if !teardown.last.packets.is_empty() {
                    let name = teardown.instance.name.clone();
                    self.nfs.last_bursts.insert(name, teardown.last.clone());
                }
                false
            }
            Phase::Confirming => {
                if self.nfs.all_have_confirmed(teardown.instance.group, teardown.epoch) {
                    teardown.pending = self.sweep_gone(&teardown.instance, &[], false);
                    teardown.phase = Phase::LastSweep;
                }
                false
            }
            Phase::LastSweep => true,
        }
    }

    fn finish_teardown(&mut self, teardown: &Teardown) {
        let instance = &teardown.instance;
        self.add_to_past(instance);
        if let Some(group) = self.nfs.groups.get_mut(&instance.group) {
            group.release_nf_threads(instance.mask());
        }
        self.nfs.reclaimed += teardown.buffers;
        self.begin_audit(instance.group);
        self.notices.push(Notice::Reclaimed {
            instance: instance.id,
            role: instance.role,
            buffers: teardown.buffers,
            first_sweep: teardown.first_sweep,
            total: teardown.since.elapsed(),
        });
    }

    /// Stops leaving NFs that hold no packets any more, or whose time is up.
    fn stop_leaving(&mut self) {
        let leaving = self.nfs.instances.values().filter(|nf| nf.state == InstanceState::Leaving);
        for (id, age) in leaving.map(|nf| (nf.id, nf.since.elapsed())).collect::<Vec<_>>() {
            if age <= GRACE && (age <= SETTLE || !self.holds_nothing(id)) {
                continue;
            }
            if let Some(instance) = self.nfs.instances.get(&id) {
                instance.control.request_stop();
            }
            self.nfs.wake(id);
        }
    }

    /// Whether a leaving NF holds no packets. The in-flight table is conclusive only after every other NF has confirmed
    /// the table without it, and every worker has then passed a barrier and so spilled its queues.
    fn holds_nothing(&mut self, id: InstanceId) -> bool {
        let Some(instance) = self.nfs.instances.get(&id) else { return true };
        let Some(group) = self.nfs.groups.get(&instance.group) else { return true };
        let Some(pending) = &instance.settling else {
            let epoch = group.publisher.epoch();
            if self.nfs.members(instance.group).all(|other| other.has_confirmed(epoch)) {
                let pending = self.workers.barrier();
                if let Some(instance) = self.nfs.instances.get_mut(&id) {
                    instance.settling = Some(pending);
                }
            }
            return false;
        };
        let holds = |nf_thread: &NfThreadId| {
            group.memories.iter().any(|memory| memory.in_flight.buffers_with(*nf_thread) > 0)
        };
        pending.is_empty() && !instance.nf_threads.iter().any(holds)
    }
}
