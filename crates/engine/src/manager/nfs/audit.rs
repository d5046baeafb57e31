// SPDX-License-Identifier: Apache-2.0
//! The audit of a trust group: reclaims buffers that no live NF holds, even if the owner table is false.
//!
//! Each NF that passes a buffer on writes the owner table. So an NF can record another NF as the owner of a buffer that
//! it holds itself, and die. The buffer would then be lost for as long as the recorded owner lives. After every
//! teardown, the manager therefore audits the group, while its traffic continues:
//!
//! 1. A new generation begins in the in-flight table, which no NF can write: it separates buffers handed out from now
//!    on from older ones.
//! 2. Rounds, one more than the longest chain has hops. In each, the consumer of every ring of the group reads past the
//!    position that the producer had reached; then every NF thread confirms a newly published table, which it does at
//!    the start of its loop, where it holds no packet. After a round, each older packet has moved on by a hop or left
//!    the group.
//! 3. No NF holds the older buffers that are still out: a sweep reclaims them.
//!
//! NFs write ring indexes and confirmations, so they are not trusted. A false one can make the audit reclaim a packet
//! that another NF of the same trust group holds. Any NF of the group can overwrite that packet anyway; other groups
//! are not affected.

use netvm_model::Host;
use netvm_ring::RingMemory;

use super::Nfs;
use crate::ids::GroupId;
use crate::inflight::sweep::{SweepScope, Swept};
use crate::manager::notice::{Notice, Notices};
use crate::manager::workers::{Pending, Workers};

/// The progress of an audit.
enum Phase {
    /// Workers change to the new generation.
    NewGeneration,
    /// Consumers read their rings up to the recorded positions. `rounds` follow this one.
    Draining { rings: Vec<(RingMemory, u32)>, rounds: usize },
    /// NF threads confirm the table of `epoch`.
    Confirming { epoch: u64, rounds: usize },
    /// Workers sweep the older buffers.
    Sweeping,
}

pub(super) struct Audit {
    pub(super) group: GroupId,
    phase: Phase,
    /// The new generation of each of the group's memories.
    generations: Vec<u8>,
    /// Barriers or sweeps in progress.
    pub(super) pending: Pending,
    buffers: u64,
    /// Another NF has ended since: repeat the audit.
    again: bool,
}

impl Audit {
    /// Begins the rounds again, because an NF of the group has ended and no longer reads its rings. Its teardown keeps
    /// the control memory that holds them mapped for longer than an audit that began before refers to it.
    pub(super) fn restart(&mut self) {
        if !matches!(self.phase, Phase::Sweeping) {
            self.phase = Phase::NewGeneration;
        }
    }

    /// Records a finished sweep if it belongs to this audit.
    pub(super) fn swept(&mut self, done: Swept) {
        if self.pending.answer(done.ticket) {
            self.buffers += done.buffers;
        }
    }
}

impl Nfs {
    /// Begins an audit of a group, or repeats the audit in progress when it ends.
    pub(super) fn begin_audit(&mut self, group: GroupId, workers: &mut Workers) {
        if let Some(audit) = self.audits.iter_mut().find(|audit| audit.group == group) {
            audit.again = true;
            return;
        }
        let Some(state) = self.groups.get(&group) else { return };
        let generations = state.memories().iter().map(|memory| memory.in_flight.next_generation()).collect();
        let (phase, pending) = (Phase::NewGeneration, workers.barrier());
        self.audits.push(Audit { group, phase, generations, pending, buffers: 0, again: false });
    }

    /// Advances audits.
    pub(super) fn service_audits(&mut self, host: &Host, workers: &mut Workers, notices: &mut Notices) {
        let longest = host.chains.iter().map(|chain| chain.hops.len()).max().unwrap_or(0);
        for mut audit in std::mem::take(&mut self.audits) {
            if !self.groups.contains_key(&audit.group) {
                continue;
            }
            if !self.advance_audit(&mut audit, longest, workers) {
                self.audits.push(audit);
                continue;
            }
            if audit.buffers > 0 {
                notices.push(Notice::Audited { group: audit.group, buffers: audit.buffers });
            }
            if audit.again {
                self.begin_audit(audit.group, workers);
            }
        }
    }

    /// Advances an audit; `longest`: hops of the longest chain. Returns whether the audit is done.
    fn advance_audit(&mut self, audit: &mut Audit, longest: usize, workers: &mut Workers) -> bool {
        match &audit.phase {
            Phase::NewGeneration if audit.pending.is_empty() => {
                let rings = self.rings_of(audit.group, workers.len());
                audit.phase = Phase::Draining { rings, rounds: longest };
            }
            Phase::Draining { rings, rounds }
                if rings.iter().all(|(ring, until)| has_reached(*ring, *until)) =>
            {
                let Some(group) = self.groups.get_mut(&audit.group) else { return true };
                let epoch = group.publish(&self.signaller);
                audit.phase = Phase::Confirming { epoch, rounds: *rounds };
            }
            Phase::Confirming { epoch, rounds } if self.all_have_confirmed(audit.group, *epoch) => {
                if let Some(rounds) = rounds.checked_sub(1) {
                    let rings = self.rings_of(audit.group, workers.len());
                    audit.phase = Phase::Draining { rings, rounds };
                } else {
                    let Some(group) = self.groups.get(&audit.group) else { return true };
                    let generations = &audit.generations;
                    let older = |region: usize| SweepScope::Older { current: generations[region] };
                    audit.pending = workers.sweep(group.memories(), older);
                    audit.phase = Phase::Sweeping;
                }
            }
            Phase::Sweeping if audit.pending.is_empty() => return true,
            _ => {}
        }
        false
    }

    /// Every ring that packets of a group can be in, with the position that its producer has reached.
    fn rings_of(&self, group: GroupId, workers: usize) -> Vec<(RingMemory, u32)> {
        let Some(state) = self.groups.get(&group) else { return Vec::new() };
        let mut rings = Vec::new();
        for instance in self.members(group) {
            for thread in 0..instance.nf_threads.len() as u16 {
                for worker in 0..workers as u16 {
                    rings.push(instance.control.ring_to_nf(thread, worker));
                    rings.push(instance.control.ring_from_nf(thread, worker));
                }
            }
            for (to, ring) in instance.nf_threads.iter().flat_map(|from| state.rings_from(*from)) {
                if !state.is_gone(to) {
                    rings.extend(state.ring(ring));
                }
            }
        }
        rings.into_iter().map(|ring| (ring, ring.claims().1)).collect()
    }
}

/// Whether the consumer claims to have read up to `until`.
fn has_reached(ring: RingMemory, until: u32) -> bool {
    let (head, _) = ring.claims();
    head.wrapping_sub(until) <= i32::MAX as u32
}
