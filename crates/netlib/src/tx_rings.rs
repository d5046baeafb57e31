//! The rings that packets leave by: one to each worker, one to each NF thread that follows this one in a chain.

use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use netvm_region::{Balance, MAX_NF_THREADS, MAX_ROLES, Sticky, Table, TableReader, clock};
use netvm_ring::{Descriptor, VerdictKind};

mod next_hop;
mod tx_ring;

use next_hop::NextHop;
use tx_ring::TxRing;

use crate::attach::Shared;
use crate::packet::Verdict;
use crate::pressure::{chains_from_to, press, release};

/// How long a packet waits for room in a direct ring, where rings form a loop, before it goes round by the engine, which
/// never waits: so that no loop of NFs that wait for each other stands still. Where there is no loop it waits on: the NF
/// at the end of the line always moves.
const DETOUR_AFTER_MICROS: u64 = 2000;

/// Buckets of sticky flows, as a power of two: the values of a descriptor's hash.
const STICKY_ORDER: u32 = 8;
/// Cycles of a tick, as a power of two: a third of a second or so.
const STICKY_TICK: u32 = 30;
/// Ticks without a packet after which a bucket may get another replica.
const STICKY_IDLE: u16 = 32;

/// What happened to the packets of a burst, for the counters.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) next: u64,
    pub(crate) dropped: u64,
    pub(crate) port: u64,
    pub(crate) role: u64,
    pub(crate) detoured: u64,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct TxRings {
    shared: Arc<Shared>,
    /// This NF thread, for the table and the backpressure words.
    me: u8,
    workers: Vec<TxRing>,
    nf_threads: Vec<Option<TxRing>>,
    /// By number of the role, where flows stick to replicas.
    sticky: Vec<Option<Sticky>>,
    /// Ticks of [`STICKY_TICK`] cycles, for those.
    tick: u16,
    /// NF threads with something pending, or under pressure.
    touched: u64,
    detour_after: u64,
    detoured: u64,
    gone: bool,
}

impl TxRings {
    pub(crate) fn new(shared: Arc<Shared>, thread: u16, me: u8) -> Self {
        let to_worker = |worker| {
            // SAFETY: the only producer: `Attachment` makes one Endpoint of a thread, and it keeps `shared` mapped.
            TxRing::new(unsafe { shared.control.ring_from_nf(thread, worker).producer() }, None)
        };
        let workers = (0..shared.control.header().workers).map(to_worker).collect();
        let nf_threads = (0..MAX_NF_THREADS).map(|_| None).collect();
        let detour_after = clock::cycles_in_micros(DETOUR_AFTER_MICROS);
        Self {
            shared,
            me,
            workers,
            nf_threads,
            sticky: Vec::new(),
            tick: 0,
            touched: 0,
            detour_after,
            detoured: 0,
            gone: false,
        }
    }

    /// Uses the direct rings of `table` out of this NF thread.
    pub(crate) fn follow(&mut self, table: &Table) {
        self.release_all();
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
                // SAFETY: the only producer: the engine gives each direct ring one producing NF thread, which is this one.
                *slot = memory.map(|memory| TxRing::new(unsafe { memory.producer() }, wanted));
            }
            if let Some(tx_ring) = slot {
                tx_ring.chains = chains_from_to(table, self.me, to);
            }
        }
    }

    /// Sends a burst on its ways and makes it visible. Every descriptor names a worker that there is.
    #[inline]
    pub(crate) fn dispatch(
        &mut self,
        reader: &TableReader,
        burst: &[Descriptor],
        verdicts: &[Verdict],
    ) -> Tally {
        let table = reader.table();
        let mut tally = Tally::default();
        let mut way = NextHop::none();
        self.tick = (clock::cycles() >> STICKY_TICK) as u16;
        let mut at = 0;
        while at < burst.len().min(verdicts.len()) {
            let (verdict, count) = (verdicts[at], alike(&burst[at..], &verdicts[at..]));
            let (run, packets) = (&burst[at..at + count], count as u64);
            at += count;
            match verdict {
                Verdict::Next => {
                    tally.next += packets;
                    if !way.is(&run[0], None) {
                        way = NextHop::next(table, &run[0]);
                    }
                    self.pass_on(reader, &way, run, |descriptor| descriptor);
                }
                Verdict::Role(role) => {
                    tally.role += packets;
                    if !way.is(&run[0], Some(role.0)) {
                        way = NextHop::role(table, &run[0], role.0);
                    }
                    self.pass_on(reader, &way, run, |descriptor| {
                        descriptor.with_verdict(VerdictKind::Role, role.0)
                    });
                }
                Verdict::Drop => {
                    tally.dropped += packets;
                    self.hand_to_worker(run, |descriptor| descriptor.with_verdict(VerdictKind::Drop, 0));
                }
                Verdict::Port(port) => {
                    tally.port += packets;
                    self.hand_to_worker(run, |descriptor| descriptor.with_verdict(VerdictKind::Port, port.0));
                }
                Verdict::DropFlow(idle) => {
                    tally.dropped += packets;
                    self.hand_to_worker(run, |descriptor| {
                        descriptor.with_verdict(VerdictKind::DropFlow, idle.0)
                    });
                }
                // Round by the engine, which is to know of it.
                Verdict::SkipFlow(idle) => {
                    tally.next += packets;
                    self.hand_to_worker(run, |descriptor| {
                        descriptor.with_verdict(VerdictKind::SkipFlow, idle.0)
                    });
                }
            }
        }
        self.publish();
        tally.detoured = core::mem::take(&mut self.detoured);
        tally
    }

    /// Tells every worker that what this NF thread has said of whole flows holds no more.
    #[cold]
    pub(crate) fn withdraw(&mut self) {
        for worker in 0..self.workers.len() as u8 {
            self.hand_to_worker(&[Descriptor::withdrawal(worker)], |word| word);
        }
        self.publish();
    }

    /// To replicas at the way's end, or, told as `round` says, to the engine.
    #[inline(always)]
    fn pass_on(
        &mut self,
        reader: &TableReader,
        way: &NextHop,
        run: &[Descriptor],
        round: impl Fn(Descriptor) -> Descriptor,
    ) {
        let replicas = way.destination.replicas();
        if replicas.is_empty() {
            return self.hand_to_worker(run, round);
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
                several => self.choose(several, way, descriptor.hash()),
            };
            if !self.hand_to_nf_thread(reader, nf_thread, descriptor.with_hop(way.destination.hop)) {
                self.hand_to_worker(&[*descriptor], &round);
            }
        }
    }

    fn choose(&mut self, replicas: &[u8], way: &NextHop, hash: u8) -> u8 {
        match (way.destination.balance(), self.sticky.get(usize::from(way.role))) {
            (Balance::LeastOccupied, _) => self.least_occupied(replicas),
            (Balance::Sticky, Some(Some(_))) => self.held(replicas, way.role, hash),
            _ => replicas[usize::from(hash) % replicas.len()],
        }
    }

    /// The replica that a flow has had, the least occupied one at its first packet.
    fn held(&mut self, replicas: &[u8], role: u16, hash: u8) -> u8 {
        let least = self.least_occupied(replicas);
        let Some(Some(sticky)) = self.sticky.get(usize::from(role)) else { return least };
        let is_there = |nf_thread: u16| replicas.iter().any(|replica| u16::from(*replica) == nf_thread);
        sticky.choose(hash.into(), self.tick, is_there, || least.into()) as u8
    }

    fn least_occupied(&mut self, replicas: &[u8]) -> u8 {
        let load = |tx_rings: &mut Self, nf_thread: u8| {
            let tx_ring = tx_rings.nf_threads[usize::from(nf_thread) % MAX_NF_THREADS].as_mut();
            tx_ring.map_or(u32::MAX, |tx_ring| tx_ring.producer.occupancy() + tx_ring.pending)
        };
        let mut best = (u32::MAX, replicas[0]);
        for nf_thread in replicas {
            let load = load(self, *nf_thread);
            if load < best.0 {
                best = (load, *nf_thread);
            }
        }
        best.1
    }

    /// Whether the packet could be handed on.
    #[inline(always)]
    fn hand_to_nf_thread(&mut self, reader: &TableReader, nf_thread: u8, descriptor: Descriptor) -> bool {
        let index = usize::from(nf_thread) % MAX_NF_THREADS;
        let Some(tx_ring) = &mut self.nf_threads[index] else { return false };
        if !tx_ring.has_room() && !self.wait_for_nf_thread(reader, index) {
            self.detoured += 1;
            return false;
        }
        let Some(tx_ring) = &mut self.nf_threads[index] else { return false };
        tx_ring.write(descriptor);
        // The slot before the owner table, the owner table before the tail: if this process is killed in between, the engine finds
        // the buffer either with its old owner, or in an unpublished slot (RingMemory::unpublished).
        compiler_fence(Ordering::Release);
        if let Some(region) = self.shared.region_of(descriptor.worker()) {
            region.set_owner(descriptor.buffer(), nf_thread);
        }
        compiler_fence(Ordering::Release);
        self.touched |= 1 << index;
        true
    }

    /// Descriptors of one worker, each told as `told` says; waits for room.
    #[inline(always)]
    fn hand_to_worker(&mut self, run: &[Descriptor], told: impl Fn(Descriptor) -> Descriptor) {
        let Some(first) = run.first() else { return };
        let (index, mut rest) = (usize::from(first.worker()), run);
        while let Some(tx_ring) = self.workers.get_mut(index) {
            let written = tx_ring.write_each(rest, &told);
            rest = &rest[written..];
            if rest.is_empty() || !self.wait_for_worker(index) {
                break;
            }
        }
    }

    /// Makes everything visible that was written.
    fn publish(&mut self) {
        for (worker, tx_ring) in self.workers.iter_mut().enumerate() {
            if tx_ring.publish() {
                self.shared.eventfds.ring_worker(worker);
            }
        }
        let mut rest = self.touched;
        while rest != 0 {
            let index = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            self.publish_nf_thread(index);
        }
    }

    fn publish_nf_thread(&mut self, index: usize) {
        let Some(tx_ring) = &mut self.nf_threads[index] else { return };
        if tx_ring.publish() {
            self.shared.eventfds.ring_nf_thread(index);
        }
        self.regulate(index);
    }

    /// Presses the chains of a ring that is three quarters full, releases them when half of it is free again.
    fn regulate(&mut self, index: usize) {
        let (Some(tx_ring), Some(region)) = (&mut self.nf_threads[index], self.shared.regions.first()) else {
            return;
        };
        let capacity = tx_ring.producer.memory().capacity();
        let enough = if tx_ring.pressed { capacity / 2 } else { capacity / 4 };
        let room = tx_ring.producer.room(enough);
        if room < capacity / 4 {
            // Again if need be: the reader of the ring may have released them.
            tx_ring.pressed = true;
            press(region, &tx_ring.chains, self.me);
        } else if tx_ring.pressed && room >= capacity / 2 {
            tx_ring.pressed = false;
            release(region, &tx_ring.chains, self.me);
        }
        if !tx_ring.pressed {
            self.touched &= !(1 << index);
        }
    }

    /// Looks again at rings that were too full; whether any still is.
    pub(crate) fn under_pressure(&mut self) -> bool {
        let mut rest = self.touched;
        while rest != 0 {
            let index = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            self.regulate(index);
        }
        self.touched != 0
    }

    /// Whether a ring was too full when it was looked at last.
    #[inline(always)]
    pub(crate) const fn has_pressed(&self) -> bool {
        self.touched != 0
    }

    fn release_all(&mut self) {
        let Some(region) = self.shared.regions.first() else { return };
        for tx_ring in self.nf_threads.iter_mut().flatten() {
            if core::mem::take(&mut tx_ring.pressed) {
                release(region, &tx_ring.chains, self.me);
            }
        }
        self.touched = 0;
    }

    /// Waits for room; not when the table has moved on, as the NF thread may be gone.
    #[cold]
    fn wait_for_nf_thread(&mut self, reader: &TableReader, index: usize) -> bool {
        self.publish();
        let looped = reader.table().looped != 0;
        let (start, mut turn) = (clock::cycles(), 0u32);
        while !reader.is_stale() && !self.gone {
            std::thread::yield_now();
            if let Some(tx_ring) = &mut self.nf_threads[index]
                && tx_ring.has_room()
            {
                return true;
            }
            if looped && clock::cycles().wrapping_sub(start) > self.detour_after {
                return false;
            }
            turn = turn.wrapping_add(1);
            if turn.is_multiple_of(1024) {
                self.gone = self.shared.engine_has_gone();
            }
        }
        false
    }

    /// Waits for as long as the engine lives: it never waits for an NF, so there will be room.
    #[cold]
    fn wait_for_worker(&mut self, index: usize) -> bool {
        self.publish();
        while !self.gone {
            for _ in 0..64 {
                std::thread::yield_now();
                if self.workers[index].has_room() {
                    return true;
                }
            }
            self.gone = self.shared.engine_has_gone();
        }
        false
    }
}

/// How many packets at the front have the same verdict, place in a chain and worker as the first.
#[inline(always)]
fn alike(burst: &[Descriptor], verdicts: &[Verdict]) -> usize {
    let (Some(first), Some(verdict)) = (burst.first(), verdicts.first()) else { return 0 };
    let place = first.path_key();
    let is_other =
        |(descriptor, other): (&Descriptor, &Verdict)| !place.matches(*descriptor) || other != verdict;
    burst.iter().zip(verdicts).position(is_other).unwrap_or(burst.len().min(verdicts.len()))
}
