//! The audit of a trust group: finds lost buffers without trusting the owner table.
//!
//! NFs write the owner table, so an NF can claim that another NF has a buffer that it holds itself, and die. Those
//! buffers would be missing while the other NF lives. The manager therefore audits the group after every teardown,
//! while traffic goes on:
//!
//! 1. Workers start a new generation. It distinguishes, in the in-flight table that no NF can write, buffers handed out
//!    before and after.
//! 2. Rounds, one more than the longest chain has hops. In each round, consumers read every ring of the group past the
//!    index that its producer had reached, and then every NF thread passes the start of its loop, where it holds no
//!    packet (it confirms a newly published table there). After a round, each older packet has moved by a hop or left.
//! 3. Buffers of the old generation that are still out are lost; a sweep reclaims them.
//!
//! Ring indexes and confirmations are claims of NFs. An NF that lies about them can make the audit reclaim a packet of
//! another NF of its own trust group, which it could also overwrite; it cannot affect other groups.

use netvm_ring::RingMemory;

use crate::ids::GroupId;
use crate::inflight::sweep::{Swept, What};
use crate::manager::workers::Pending;
use crate::manager::{Engine, Notice};

/// Phase of an audit.
enum Phase {
    /// Workers start the new generation.
    Starting,
    /// Consumers must read rings up to these indexes; `rounds` follow.
    Draining { rings: Vec<(RingMemory, u32)>, rounds: usize },
    /// NF threads must pass the start of their loops.
    Confirming { epoch: u64, rounds: usize },
    /// Workers reclaim the older buffers.
    Sweeping,
}

pub(crate) struct Audit {
    group: GroupId,
    phase: Phase,
    /// The generation of each of the group's memories.
    generations: Vec<u8>,
    /// Workers that have not answered.
    pending: Pending,
    buffers: u64,
    /// Another NF has ended meanwhile: audit again.
    again: bool,
}

impl Engine {
    /// Starts an audit of a group.
    pub(crate) fn want_audit(&mut self, group: GroupId) {
        if let Some(audit) = self.nfs.audits.iter_mut().find(|audit| audit.group == group) {
            audit.again = true;
            return;
        }
        let Some(state) = self.nfs.groups.get(&group) else { return };
        let generations = state.memories.iter().map(|memory| memory.in_flight.next_generation()).collect();
        let (phase, pending) = (Phase::Starting, self.workers.barrier());
        self.nfs.audits.push(Audit { group, phase, generations, pending, buffers: 0, again: false });
    }

    /// An NF of the group has ended: starts over, without waiting for its rings. Its teardown keeps the memory of those
    /// rings mapped for longer than an audit that began before refers to it.
    pub(crate) fn restart_audit(&mut self, group: GroupId) {
        for audit in self.nfs.audits.iter_mut().filter(|audit| audit.group == group) {
            if !matches!(audit.phase, Phase::Sweeping) {
                audit.phase = Phase::Starting;
            }
        }
    }

    /// A worker has handled all commands before a barrier.
    pub(crate) fn barrier_passed(&mut self, ticket: u64) {
        let audits = self.nfs.audits.iter_mut().map(|audit| &mut audit.pending);
        let leaving = self.nfs.instances.values_mut().filter_map(|instance| instance.settling.as_mut());
        for pending in audits.chain(leaving) {
            pending.answer(ticket);
        }
    }

    /// Counts a sweep if it belongs to an audit; returns whether it does.
    pub(crate) fn audit_swept(&mut self, done: Swept) -> bool {
        let mut audits = self.nfs.audits.iter_mut();
        let audit = audits.find_map(|audit| audit.pending.answer(done.ticket).then_some(audit));
        let Some(audit) = audit else { return false };
        audit.buffers += done.buffers;
        true
    }

    /// Advances audits.
    pub(crate) fn serve_audits(&mut self) {
        for mut audit in core::mem::take(&mut self.nfs.audits) {
            if !self.nfs.groups.contains_key(&audit.group) {
                continue;
            }
            if self.advance_audit(&mut audit) {
                self.nfs.reclaimed += audit.buffers;
                if audit.buffers > 0 {
                    self.notices.push(Notice::Audited { group: audit.group, buffers: audit.buffers });
                }
                if audit.again {
                    self.want_audit(audit.group);
                }
            } else {
                self.nfs.audits.push(audit);
            }
        }
    }

    /// Advances an audit; returns whether it is done.
    fn advance_audit(&mut self, audit: &mut Audit) -> bool {
        match &audit.phase {
            Phase::Starting if audit.pending.is_empty() => {
                let longest = self.host.chains.iter().map(|chain| chain.hops.len()).max().unwrap_or(0);
                audit.phase = Phase::Draining { rings: self.rings_of(audit.group), rounds: longest };
            }
            Phase::Draining { rings, rounds }
                if rings.iter().all(|(ring, until)| has_reached(*ring, *until)) =>
            {
                let Some(group) = self.nfs.groups.get_mut(&audit.group) else { return true };
                let epoch = group.publisher.publish(&group.table);
                group.wake_all(&self.nfs.signaller);
                audit.phase = Phase::Confirming { epoch, rounds: *rounds };
            }
            Phase::Confirming { epoch, rounds } if self.nfs.all_have_seen(audit.group, *epoch) => {
                if let Some(rounds) = rounds.checked_sub(1) {
                    audit.phase = Phase::Draining { rings: self.rings_of(audit.group), rounds };
                } else {
                    audit.pending = self.sweep_older(audit.group, &audit.generations);
                    audit.phase = Phase::Sweeping;
                }
            }
            Phase::Sweeping if audit.pending.is_empty() => return true,
            _ => {}
        }
        false
    }

    /// Every ring that can hold packets of the group, with its producer's index.
    fn rings_of(&self, group: GroupId) -> Vec<(RingMemory, u32)> {
        let Some(state) = self.nfs.groups.get(&group) else { return Vec::new() };
        let mut rings = Vec::new();
        for instance in self.nfs.instances.values().filter(|instance| instance.group == group) {
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

    fn sweep_older(&mut self, group: GroupId, generations: &[u8]) -> Pending {
        let Some(state) = self.nfs.groups.get(&group) else { return Pending::default() };
        self.workers.sweep(&state.memories, |region| What::Older { current: generations[region] })
    }
}

/// Whether the consumer claims to have read up to `until`.
fn has_reached(ring: RingMemory, until: u32) -> bool {
    let (head, _) = ring.claims();
    head.wrapping_sub(until) <= i32::MAX as u32
}
