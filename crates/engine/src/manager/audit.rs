//! The audit of a trust group: finds buffers that nobody has, whatever the owner table says.
//!
//! Each NF that hands a buffer on writes the owner table, so an NF can claim that another one has a buffer that it holds itself, and
//! die. Its buffers would then be missing for as long as that other one lives. After every teardown the group is
//! therefore audited, while its traffic goes on:
//!
//! 1. A new generation begins: buffers handed out from here on are told from those handed out before (in the in-flight table, which
//!    no NF can write).
//! 2. Rounds, one more than the longest chain has hops. In each, every ring of the group is read past the place that its
//!    producer had reached, and then every NF thread comes by the beginning of its loop, where it holds no packet (it
//!    confirms a newly published table there). After a round each older packet has moved on by a hop or has left.
//! 3. What is still out from before is with nobody, and is taken back.
//!
//! Indexes and confirmations are claims, as everything that NFs write. One that lies about them can make a packet of its
//! own trust group be taken from under another NF of that group, as it can by writing to the packet; nobody else's.

use std::sync::Arc;

use netvm_ring::RingMemory;

use super::instance::InstanceState;
use super::{Engine, Notice};
use crate::ids::GroupId;
use crate::inflight::sweep::{SweepRequest, Swept, What};
use crate::worker::Command;

/// How far an audit is.
enum Phase {
    /// Workers go over to the new generation.
    Turning,
    /// Rings are to be read up to where they were; with how many rounds come after this one.
    Draining { rings: Vec<(RingMemory, u32)>, rounds: usize },
    /// NF threads are to come by the beginning of their loops.
    Meeting { epoch: u64, rounds: usize },
    /// The older buffers are being collected.
    Sweeping,
}

pub(super) struct Audit {
    group: GroupId,
    phase: Phase,
    /// The generation of each of the group's memories.
    generations: Vec<u8>,
    /// Workers that have not answered.
    tickets: Vec<u64>,
    buffers: u64,
    /// Another NF has gone meanwhile: once more when this is done.
    again: bool,
}

impl Engine {
    /// Has a group audited.
    pub(super) fn want_audit(&mut self, group: GroupId) {
        if let Some(audit) = self.audits.iter_mut().find(|audit| audit.group == group) {
            audit.again = true;
            return;
        }
        let Some(state) = self.groups.get(&group) else { return };
        let generations = state.memories.iter().map(|memory| memory.in_flight.next_generation()).collect();
        let (phase, tickets) = (Phase::Turning, self.order_barriers());
        self.audits.push(Audit { group, phase, generations, tickets, buffers: 0, again: false });
    }

    /// Asks every worker to say when it has done what it was told before; returns what they will answer.
    pub(super) fn order_barriers(&mut self) -> Vec<u64> {
        let mut tickets = Vec::new();
        for worker in &mut self.workers {
            tickets.push(self.next_ticket);
            worker.send(Command::Barrier(self.next_ticket));
            self.next_ticket += 1;
        }
        tickets
    }

    /// An NF of the group is gone: rings that it was to read are not waited for. The control memory that holds them lives
    /// on in its teardown for longer than any audit that began before refers to it.
    pub(super) fn restart_audit(&mut self, group: GroupId) {
        for audit in self.audits.iter_mut().filter(|audit| audit.group == group) {
            if !matches!(audit.phase, Phase::Sweeping) {
                audit.phase = Phase::Turning;
            }
        }
    }

    /// A worker has done everything that it was told before.
    pub(super) fn barrier_passed(&mut self, ticket: u64) {
        let audits = self.audits.iter_mut().map(|audit| &mut audit.tickets);
        let leaving = self.instances.values_mut().filter_map(|instance| instance.settling.as_mut());
        for tickets in audits.chain(leaving) {
            tickets.retain(|other| *other != ticket);
        }
    }

    /// Whether the sweep was an audit's.
    pub(super) fn audit_swept(&mut self, done: Swept) -> bool {
        let Some(audit) = self.audits.iter_mut().find(|audit| audit.tickets.contains(&done.ticket)) else {
            return false;
        };
        audit.tickets.retain(|other| *other != done.ticket);
        audit.buffers += done.buffers;
        true
    }

    /// Moves audits on.
    pub(super) fn serve_audits(&mut self) {
        for mut audit in core::mem::take(&mut self.audits) {
            if !self.groups.contains_key(&audit.group) {
                continue;
            }
            if self.advance_audit(&mut audit) {
                self.reclaimed += audit.buffers;
                if audit.buffers > 0 {
                    self.notices.push_back(Notice::Audited { group: audit.group, buffers: audit.buffers });
                }
                if audit.again {
                    self.want_audit(audit.group);
                }
            } else {
                self.audits.push(audit);
            }
        }
    }

    /// Whether it is done.
    fn advance_audit(&mut self, audit: &mut Audit) -> bool {
        match &audit.phase {
            Phase::Turning if audit.tickets.is_empty() => {
                let longest = self.host.chains.iter().map(|chain| chain.hops.len()).max().unwrap_or(0);
                audit.phase = Phase::Draining { rings: self.rings_of(audit.group), rounds: longest };
            }
            Phase::Draining { rings, rounds }
                if rings.iter().all(|(ring, until)| has_reached(*ring, *until)) =>
            {
                let Some(group) = self.groups.get_mut(&audit.group) else { return true };
                let epoch = group.publisher.publish(&group.table);
                group.wake_all(&self.signaller);
                audit.phase = Phase::Meeting { epoch, rounds: *rounds };
            }
            Phase::Meeting { epoch, rounds } if self.all_have_seen(audit.group, *epoch) => {
                if let Some(rounds) = rounds.checked_sub(1) {
                    audit.phase = Phase::Draining { rings: self.rings_of(audit.group), rounds };
                } else {
                    audit.tickets = self.order_older(audit.group, &audit.generations);
                    audit.phase = Phase::Sweeping;
                }
            }
            Phase::Sweeping if audit.tickets.is_empty() => return true,
            _ => {}
        }
        false
    }

    /// Every ring that packets of the group can be in, with the place that its producer has reached.
    fn rings_of(&self, group: GroupId) -> Vec<(RingMemory, u32)> {
        let Some(state) = self.groups.get(&group) else { return Vec::new() };
        let mut rings = Vec::new();
        for instance in self.instances.values().filter(|instance| instance.group == group) {
            for thread in 0..instance.nf_threads.len() as u16 {
                for worker in 0..self.workers.len() as u16 {
                    rings.push(instance.control.ring_to_nf(thread, worker));
                    rings.push(instance.control.ring_from_nf(thread, worker));
                }
            }
            for (to, ring) in instance.nf_threads.iter().flat_map(|from| state.rings_from(*from)) {
                let region = state.memories.get(usize::from(ring.region)).map(|memory| memory.region());
                if !state.is_gone(to) {
                    rings.extend(region.and_then(|region| region.ring(ring.index)));
                }
            }
        }
        rings.into_iter().map(|ring| (ring, ring.claims().1)).collect()
    }

    fn all_have_seen(&self, group: GroupId, epoch: u64) -> bool {
        let mut members = self
            .instances
            .values()
            .filter(|instance| instance.group == group && instance.state != InstanceState::Attaching);
        members.all(|instance| instance.has_seen(epoch))
    }

    fn order_older(&mut self, group: GroupId, generations: &[u8]) -> Vec<u64> {
        let Some(state) = self.groups.get(&group) else { return Vec::new() };
        let mut tickets = Vec::new();
        for (worker, region) in self.workers.iter_mut().zip(&self.worker_regions) {
            let region = usize::from(*region);
            let what = What::Older { current: generations[region] };
            tickets.push(self.next_ticket);
            worker.send(Command::Sweep(SweepRequest {
                ticket: self.next_ticket,
                table: Arc::clone(&state.memories[region].in_flight),
                what,
            }));
            self.next_ticket += 1;
        }
        tickets
    }
}

/// Whether the consumer has read up to `until`, by its own claim.
fn has_reached(ring: RingMemory, until: u32) -> bool {
    let (head, _) = ring.claims();
    head.wrapping_sub(until) <= i32::MAX as u32
}
