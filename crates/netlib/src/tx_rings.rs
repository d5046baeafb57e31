// SPDX-License-Identifier: Apache-2.0
//! The tx rings of an NF thread: one to each worker, and one to each NF thread that follows it in a chain. In: a burst
//! with its verdicts. Out: descriptors in these rings.
//!
//! Cost: one look-up of the next hop per run of packets with the same verdict, hop and worker; one fence and one
//! publication per ring and burst.

use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use netvm_clock as clock;
use netvm_region::{Balance, MAX_NF_THREADS, MAX_ROLES, Sticky, Table, TableReader};
use netvm_ring::{Descriptor, VerdictKind};

mod next_hop;
pub(crate) mod pressure;
mod replica;
mod tx_ring;
mod waiting;

use next_hop::NextHop;
use pressure::{chains_from_to, clear_backpressure, set_backpressure};
use tx_ring::TxRing;
use waiting::WaitTimes;

use crate::packet::Verdict;
use crate::shared::Shared;

/// Buckets of sticky flows, as a power of two: one for each value of a descriptor's hash.
const STICKY_ORDER: u32 = 8;
/// Cycles of a tick, as a power of two: about a third of a second.
const STICKY_TICK: u32 = 30;
/// Ticks without a packet after which a bucket may get a new replica.
const STICKY_IDLE: u16 = 32;

/// Counts of the verdicts on a burst.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct VerdictCounts {
    pub(crate) next: u64,
    pub(crate) dropped: u64,
    pub(crate) port: u64,
    pub(crate) role: u64,
    pub(crate) detoured: u64,
}

impl VerdictCounts {
    /// Of one packet, by the verdict in its descriptor; of none, for a message.
    pub(crate) fn of(descriptor: Descriptor) -> Self {
        let mut counts = Self::default();
        match VerdictKind::from_raw(descriptor.verdict()) {
            Some(VerdictKind::Drop | VerdictKind::DropFlow) => counts.dropped = 1,
            Some(VerdictKind::Port) => counts.port = 1,
            Some(VerdictKind::Role) => counts.role = 1,
            Some(VerdictKind::Hold) | None => {}
            Some(_) => counts.next = 1,
        }
        counts
    }
}

impl AddAssign for VerdictCounts {
    fn add_assign(&mut self, other: Self) {
        self.next += other.next;
        self.dropped += other.dropped;
        self.port += other.port;
        self.role += other.role;
        self.detoured += other.detoured;
    }
}

/// All tx rings of an NF thread.
#[derive(Debug)]
pub(crate) struct TxRings {
    shared: Arc<Shared>,
    /// The thread's number in the NF.
    thread: u16,
    /// The number of this NF thread.
    me: u8,
    /// By worker, of those that there are now.
    workers: Vec<TxRing>,
    nf_threads: Vec<Option<TxRing>>,
    /// For each role, the replicas of its flows, if it balances them so.
    sticky: Vec<Option<Sticky>>,
    /// Time in ticks of 2^[`STICKY_TICK`] cycles, for sticky flows.
    tick: u16,
    /// Bit mask of NF threads whose ring has pending descriptors or backpressure.
    active: u64,
    wait_times: WaitTimes,
    detoured: u64,
    engine_is_gone: bool,
}

impl TxRings {
    pub(crate) fn new(shared: Arc<Shared>, thread: u16, me: u8) -> Self {
        let nf_threads = (0..MAX_NF_THREADS).map(|_| None).collect();
        let mut this = Self {
            shared,
            thread,
            me,
            workers: Vec::new(),
            nf_threads,
            sticky: Vec::new(),
            tick: 0,
            active: 0,
            wait_times: WaitTimes::new(),
            detoured: 0,
            engine_is_gone: false,
        };
        this.follow_workers();
        this
    }

    /// Has rings to the workers that there are now. The NF has no packets of others.
    #[cold]
    fn follow_workers(&mut self) {
        let workers = self.shared.control.workers();
        self.workers.truncate(workers.into());
        for worker in self.workers.len() as u16..workers {
            // SAFETY: the only producer: `Attachment` makes one Endpoint per thread, which keeps `shared` mapped, and
            // the list has no other one of this ring.
            let producer = unsafe { self.shared.control.ring_from_nf(self.thread, worker).producer() };
            self.workers.push(TxRing::new(producer, None));
        }
    }

    /// Applies a new table: uses its direct rings out of this NF thread, and the rings to new workers.
    pub(crate) fn apply(&mut self, table: &Table) {
        self.follow_workers();
        self.clear_all_backpressure();
        self.sticky.resize_with(MAX_ROLES, || None);
        for (sticky, role) in self.sticky.iter_mut().zip(&table.roles) {
            if role.balance() != Balance::Sticky {
                *sticky = None;
            } else if sticky.is_none() {
                *sticky = Some(Sticky::new(STICKY_ORDER, STICKY_IDLE));
            }
        }
        for to in 1..MAX_NF_THREADS as u8 {
            let ring = table.rings[usize::from(self.me)][usize::from(to)].get();
            let slot = &mut self.nf_threads[usize::from(to)];
            let wanted = ring.map(|ring| (to, ring));
            if slot.as_ref().and_then(|tx_ring| tx_ring.nf_thread) != wanted {
                let memory = ring.and_then(|ring| self.shared.direct_ring(ring));
                // SAFETY: the only producer: the engine assigns each direct ring one producing NF thread, which is this
                // one.
                *slot = memory.map(|memory| TxRing::new(unsafe { memory.producer() }, wanted));
            }
            if let Some(tx_ring) = slot {
                tx_ring.chains = chains_from_to(table, self.me, to);
            }
        }
    }

    /// Sends a burst by its verdicts and publishes it. Every descriptor must name an existing worker.
    #[inline]
    pub(crate) fn dispatch(
        &mut self,
        reader: &TableReader,
        burst: &[Descriptor],
        verdicts: &[Verdict],
    ) -> VerdictCounts {
        let table = reader.table();
        let mut counts = VerdictCounts::default();
        let mut next_hop = NextHop::none();
        self.tick = (clock::cycles() >> STICKY_TICK) as u16;
        let mut at = 0;
        while at < burst.len().min(verdicts.len()) {
            let (verdict, count) = (verdicts[at], run_length(&burst[at..], &verdicts[at..]));
            let (run, packets) = (&burst[at..at + count], count as u64);
            at += count;
            match verdict {
                Verdict::Next => {
                    counts.next += packets;
                    if !next_hop.matches(&run[0], None) {
                        next_hop = NextHop::next(table, &run[0]);
                    }
                    self.forward(reader, &next_hop, run, |descriptor| descriptor);
                }
                Verdict::Role(role) => {
                    counts.role += packets;
                    if !next_hop.matches(&run[0], Some(role.0)) {
                        next_hop = NextHop::role(table, &run[0], role.0);
                    }
                    self.forward(reader, &next_hop, run, |descriptor| {
                        descriptor.with_verdict(VerdictKind::Role, role.0)
                    });
                }
                Verdict::Drop => {
                    counts.dropped += packets;
                    self.send_to_worker(run, |descriptor| descriptor.with_verdict(VerdictKind::Drop, 0));
                }
                Verdict::Port(port) => {
                    counts.port += packets;
                    self.send_to_worker(run, |descriptor| descriptor.with_verdict(VerdictKind::Port, port.0));
                }
                Verdict::DropFlow(idle) => {
                    counts.dropped += packets;
                    self.send_to_worker(run, |descriptor| {
                        descriptor.with_verdict(VerdictKind::DropFlow, idle.0)
                    });
                }
                // Through the engine, which must record the verdict.
                Verdict::SkipFlow(idle) => {
                    counts.next += packets;
                    self.send_to_worker(run, |descriptor| {
                        descriptor.with_verdict(VerdictKind::SkipFlow, idle.0)
                    });
                }
                Verdict::SteerFlow(to) => {
                    counts.next += packets;
                    let (kind, argument) = to.in_descriptor();
                    self.send_to_worker(run, |descriptor| descriptor.with_verdict(kind, argument));
                }
            }
        }
        self.publish();
        counts.detoured = core::mem::take(&mut self.detoured);
        counts
    }

    /// Writes a packet or a message for its worker, as it is.
    #[cold]
    pub(crate) fn send_as_is(&mut self, descriptor: Descriptor) {
        self.send_to_worker(&[descriptor], |descriptor| descriptor);
    }

    /// Asks every worker to forget the per-flow verdicts of this NF thread.
    #[cold]
    pub(crate) fn withdraw(&mut self) {
        for worker in 0..self.workers.len() as u8 {
            self.send_to_worker(&[Descriptor::withdrawal(worker)], |message| message);
        }
        self.publish();
    }

    /// Sends packets to the replicas of their next hop, or through the engine, changed by `detour`.
    #[inline(always)]
    fn forward(
        &mut self,
        reader: &TableReader,
        next_hop: &NextHop,
        run: &[Descriptor],
        detour: impl Fn(Descriptor) -> Descriptor,
    ) {
        let replicas = next_hop.destination.replicas();
        if replicas.is_empty() {
            return self.send_to_worker(run, detour);
        }
        let share = run.len().div_ceil(replicas.len()) as u32;
        for nf_thread in replicas {
            if let Some(Some(tx_ring)) = self.nf_threads.get_mut(usize::from(*nf_thread)) {
                tx_ring.prefetch(share);
            }
        }
        for descriptor in run {
            let nf_thread = match replicas {
                [only] => *only,
                several => self.choose(several, next_hop, descriptor.hash()),
            };
            if !self.send_to_nf_thread(reader, nf_thread, descriptor.with_hop(next_hop.destination.hop)) {
                self.send_to_worker(&[*descriptor], &detour);
            }
        }
    }

    /// Returns whether the packet was written to the NF thread's ring.
    #[inline(always)]
    fn send_to_nf_thread(&mut self, reader: &TableReader, nf_thread: u8, descriptor: Descriptor) -> bool {
        let index = usize::from(nf_thread) % MAX_NF_THREADS;
        let Some(tx_ring) = &mut self.nf_threads[index] else { return false };
        if !tx_ring.has_room() && !self.wait_for_nf_thread(reader, index) {
            self.detoured += 1;
            return false;
        }
        let Some(tx_ring) = &mut self.nf_threads[index] else { return false };
        tx_ring.write(descriptor);
        // Slot before owner table, owner table before tail: if this process is killed in between, the engine finds the
        // buffer either with its old owner, or in an unpublished slot (RingMemory::unpublished).
        compiler_fence(Ordering::Release);
        if let Some(region) = self.shared.region_of(descriptor.worker()) {
            region.set_owner(descriptor.buffer(), nf_thread);
        }
        compiler_fence(Ordering::Release);
        self.active |= 1 << index;
        true
    }

    /// Returns descriptors to their common worker, each changed by `rewrite`; waits for room.
    #[inline(always)]
    fn send_to_worker(&mut self, run: &[Descriptor], rewrite: impl Fn(Descriptor) -> Descriptor) {
        let Some(first) = run.first() else { return };
        let (index, mut rest) = (usize::from(first.worker()), run);
        if index >= self.workers.len() {
            // A new worker, whose packet came by another NF before this one has looked at the new table.
            self.follow_workers();
        }
        while let Some(tx_ring) = self.workers.get_mut(index) {
            let written = tx_ring.write_each(rest, &rewrite);
            rest = &rest[written..];
            if rest.is_empty() || !self.wait_for_worker(index) {
                break;
            }
        }
    }

    /// Publishes all written descriptors, and wakes sleeping consumers.
    pub(crate) fn publish(&mut self) {
        for (worker, tx_ring) in self.workers.iter_mut().enumerate() {
            if tx_ring.publish() {
                self.shared.eventfds.wake_worker(worker);
            }
        }
        let mut rest = self.active;
        while rest != 0 {
            let index = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let Some(tx_ring) = &mut self.nf_threads[index] else { continue };
            if tx_ring.publish() {
                self.shared.eventfds.wake_nf_thread(index);
            }
            self.update_ring_backpressure(index);
        }
    }

    /// Sets backpressure for a ring that is three quarters full, and clears it when half of the ring is free again.
    fn update_ring_backpressure(&mut self, index: usize) {
        let (Some(tx_ring), Some(region)) = (&mut self.nf_threads[index], self.shared.regions.first()) else {
            return;
        };
        let capacity = tx_ring.producer.memory().capacity();
        if tx_ring.producer.room(capacity / 4) < capacity / 4 {
            // Sets it again if need be: the ring's reader may have cleared it.
            tx_ring.has_backpressure = true;
            set_backpressure(region, &tx_ring.chains, self.me);
        }
        // Looks again after it was set: the reader may have emptied the ring just before, and then does not clear it.
        if tx_ring.has_backpressure && tx_ring.producer.room(capacity / 2) >= capacity / 2 {
            tx_ring.has_backpressure = false;
            clear_backpressure(region, &tx_ring.chains, self.me);
        }
        if !tx_ring.has_backpressure {
            self.active &= !(1 << index);
        }
    }

    /// Updates the backpressure of rings that were too full; returns whether any still is.
    pub(crate) fn update_backpressure(&mut self) -> bool {
        let mut rest = self.active;
        while rest != 0 {
            let index = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            self.update_ring_backpressure(index);
        }
        self.active != 0
    }

    /// Whether a ring was too full at the last update.
    #[inline(always)]
    pub(crate) const fn is_under_pressure(&self) -> bool {
        self.active != 0
    }

    fn clear_all_backpressure(&mut self) {
        let Some(region) = self.shared.regions.first() else { return };
        for tx_ring in self.nf_threads.iter_mut().flatten() {
            if core::mem::take(&mut tx_ring.has_backpressure) {
                clear_backpressure(region, &tx_ring.chains, self.me);
            }
        }
        self.active = 0;
    }

    /// Moves the heartbeat of a thread that waits for others.
    fn beat(&self) {
        let heartbeat = &self.shared.control.thread(self.thread).heartbeat;
        heartbeat.store(heartbeat.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

/// Number of packets at the front with the same verdict, chain, hop and worker as the first.
#[inline(always)]
fn run_length(burst: &[Descriptor], verdicts: &[Verdict]) -> usize {
    let (Some(first), Some(verdict)) = (burst.first(), verdicts.first()) else { return 0 };
    let key = first.path_key();
    let is_other =
        |(descriptor, other): (&Descriptor, &Verdict)| !key.matches(*descriptor) || other != verdict;
    burst.iter().zip(verdicts).position(is_other).unwrap_or(burst.len().min(verdicts.len()))
}
