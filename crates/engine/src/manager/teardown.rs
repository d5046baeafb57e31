//! An NF that dies or leaves: its traffic goes elsewhere, its buffers come back, its numbers become free.
//!
//! ```text
//!  dies ────────────────────────────────┐
//!                                       ▼
//!  leaves: no new packets, sends on ──▶ gone: tables and snapshots without it; links drained; first sweep
//!          what it has, is told to stop            │  all NF threads of the group work by the new table
//!                                                  ▼
//!                                       last sweep: what others still handed to it meanwhile
//!                                                  │
//!                                                  ▼
//!                                       numbers and rings are free
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_config::model::NfStart;

use super::instance::{Instance, InstanceState};
use super::{Engine, Notice};
use crate::ids::{GroupId, InstanceId, LinkId, NfThreadId, RoleId};
use crate::inflight::sweep::{SweepRequest, Swept, What};
use crate::worker::Command;

/// How long an NF that leaves has for sending on what it holds.
const GRACE: Duration = Duration::from_secs(2);
/// How long after the decision the workers certainly work by the new snapshot.
const SETTLE: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    FirstSweep,
    AwaitingOthers,
    LastSweep,
}

/// An NF that is gone, until nothing of it is left.
pub(super) struct Teardown {
    /// It keeps the memory of the links' rings until the links are retired.
    instance: Instance,
    mask: u64,
    /// The table without it.
    epoch: u64,
    phase: Phase,
    /// Sweeps that are under way.
    tickets: Vec<u64>,
    buffers: u64,
    since: Instant,
    first_sweep: Duration,
}

impl Teardown {
    pub(super) const fn group(&self) -> GroupId {
        self.instance.group
    }

    pub(super) const fn instance(&self) -> &Instance {
        &self.instance
    }

    pub(super) fn links(&self) -> impl Iterator<Item = &Vec<LinkId>> {
        self.instance.links.iter()
    }
}

impl Engine {
    /// Asks an NF to leave: it gets no new packets, sends on what it has, and is told to stop. Its connection closes then.
    /// A standby takes its place at once.
    pub fn dismiss(&mut self, id: InstanceId) {
        let Some(instance) = self.instances.get_mut(&id) else { return };
        let role = instance.role;
        match instance.state {
            InstanceState::Attaching | InstanceState::Standby => {
                instance.control.tell_stop();
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

    /// The NF's process is gone (its connection is closed): its traffic goes where its chains say, its buffers come back.
    pub fn departed(&mut self, id: InstanceId) {
        let since = Instant::now();
        let Some(instance) = self.instances.remove(&id) else { return };
        let mask = instance.mask();
        let stranded = self.stranded(&instance);
        if let Some(group) = self.groups.get_mut(&instance.group) {
            group.mark_gone(mask);
        }
        self.restart_audit(instance.group);
        if instance.state == InstanceState::Active {
            self.promote_standby(instance.role);
        }
        self.rebuild();
        let epoch = self.groups.get(&instance.group).map_or(0, |group| group.publisher.epoch());
        for links in &instance.links {
            for (worker, link) in self.workers.iter_mut().zip(links) {
                worker.send(Command::RemoveLink(*link));
            }
        }
        let tickets = self.order_sweep(instance.group, mask, &stranded);
        self.teardowns.push(Teardown {
            instance,
            mask,
            epoch,
            phase: Phase::FirstSweep,
            tickets,
            buffers: 0,
            since,
            first_sweep: Duration::ZERO,
        });
    }

    /// What the dead NF wrote to others' rings and did not publish.
    fn stranded(&self, instance: &Instance) -> Vec<(u32, NfThreadId)> {
        let Some(group) = self.groups.get(&instance.group) else { return Vec::new() };
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

    /// A standby of the role takes the place of one that took packets, unless as many as should be still do (one is on its
    /// way to being a standby), or there is to be none.
    fn promote_standby(&mut self, role: RoleId) {
        let Some(nf) = self.host.nf(role) else { return };
        let is =
            |other: &Instance, state| other.role == role && other.group == nf.group && other.state == state;
        if let NfStart::Managed { replicas, .. } = nf.start {
            let active = self.instances.values().filter(|other| is(other, InstanceState::Active)).count();
            if active >= usize::from(replicas) {
                return;
            }
        }
        let waiting = |other: &&mut Instance| is(other, InstanceState::Standby);
        if let Some(standby) = self.instances.values_mut().find(waiting) {
            standby.state = InstanceState::Active;
            standby.standby = false;
            self.notices.push_back(Notice::StandbyTookOver { instance: standby.id, role: standby.role });
        }
    }

    fn order_sweep(&mut self, group: GroupId, nf_threads: u64, stranded: &[(u32, NfThreadId)]) -> Vec<u64> {
        let Some(group) = self.groups.get(&group) else { return Vec::new() };
        let mut tickets = Vec::new();
        for (worker, region) in self.workers.iter_mut().zip(&self.worker_regions) {
            let ticket = self.next_ticket;
            self.next_ticket += 1;
            let table = Arc::clone(&group.memories[usize::from(*region)].in_flight);
            let what = What::Gone { nf_threads, stranded: stranded.to_vec() };
            worker.send(Command::Sweep(SweepRequest { ticket, table, what }));
            tickets.push(ticket);
        }
        tickets
    }

    /// A sweep is done.
    pub(super) fn swept(&mut self, done: Swept) {
        if self.audit_swept(done) {
            return;
        }
        let teardown = self.teardowns.iter_mut().find(|teardown| teardown.tickets.contains(&done.ticket));
        if let Some(teardown) = teardown {
            teardown.tickets.retain(|ticket| *ticket != done.ticket);
            teardown.buffers += done.buffers;
            if teardown.phase == Phase::FirstSweep {
                teardown.first_sweep = teardown.first_sweep.max(done.at.duration_since(teardown.since));
            }
        }
    }

    /// Moves teardowns on, and NFs that are leaving.
    pub(super) fn serve_teardowns(&mut self) {
        self.stop_those_that_have_left();
        let mut done = Vec::new();
        for index in 0..self.teardowns.len() {
            if self.teardowns[index].tickets.is_empty() && self.advance(index) {
                done.push(index);
            }
        }
        for index in done.into_iter().rev() {
            let teardown = self.teardowns.remove(index);
            let group_id = teardown.group();
            self.remember(group_id, &teardown.instance);
            if let Some(group) = self.groups.get_mut(&group_id) {
                group.release_nf_threads(teardown.mask);
            }
            self.reclaimed += teardown.buffers;
            self.want_audit(group_id);
            self.notices.push_back(Notice::Reclaimed {
                instance: teardown.instance.id,
                role: teardown.instance.role,
                buffers: teardown.buffers,
                first_sweep: teardown.first_sweep,
                total: teardown.since.elapsed(),
            });
        }
    }

    /// The sweep of this phase is done: whether nothing is left to do.
    fn advance(&mut self, index: usize) -> bool {
        let (group, epoch, mask) = {
            let teardown = &self.teardowns[index];
            (teardown.group(), teardown.epoch, teardown.mask)
        };
        match self.teardowns[index].phase {
            Phase::FirstSweep => {
                self.teardowns[index].phase = Phase::AwaitingOthers;
                false
            }
            Phase::AwaitingOthers => {
                let others = self
                    .instances
                    .values()
                    .filter(|other| other.group == group && other.state != InstanceState::Attaching);
                if others.into_iter().all(|other| other.has_seen(epoch)) {
                    let tickets = self.order_sweep(group, mask, &[]);
                    let teardown = &mut self.teardowns[index];
                    teardown.tickets = tickets;
                    teardown.phase = Phase::LastSweep;
                }
                false
            }
            Phase::LastSweep => true,
        }
    }

    /// Tells NFs to stop that have sent on everything, or have had their time.
    fn stop_those_that_have_left(&mut self) {
        let leaving = self.instances.values().filter(|instance| instance.state == InstanceState::Leaving);
        for (id, age) in leaving.map(|instance| (instance.id, instance.since.elapsed())).collect::<Vec<_>>() {
            if age <= GRACE && (age <= SETTLE || !self.holds_nothing(id)) {
                continue;
            }
            if let Some(instance) = self.instances.get(&id) {
                instance.control.tell_stop();
            }
            self.wake_nf_threads(id);
        }
    }

    /// Whether an NF to which nobody hands packets any more has none. The in-flight table tells once workers have spilled to it what they
    /// handed out before all others knew.
    fn holds_nothing(&mut self, id: InstanceId) -> bool {
        let Some(instance) = self.instances.get(&id) else { return true };
        let Some(group) = self.groups.get(&instance.group) else { return true };
        let Some(unanswered) = &instance.settling else {
            let epoch = group.publisher.epoch();
            let mut others = self.instances.values().filter(|other| other.group == instance.group);
            if others.all(|other| other.has_seen(epoch)) {
                let tickets = self.order_barriers();
                if let Some(instance) = self.instances.get_mut(&id) {
                    instance.settling = Some(tickets);
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
        let Some(instance) = self.instances.get(&id) else { return };
        let Some(group) = self.groups.get_mut(&instance.group) else { return };
        for nf_thread in &instance.nf_threads {
            group.wake(&self.signaller, *nf_thread);
        }
    }
}
